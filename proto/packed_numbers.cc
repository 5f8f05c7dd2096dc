#include "proto/packed_numbers.h"

#include <bit>
#include <cstring>

#include "proto/wire_reader.h"

#ifdef __x86_64__
#include <immintrin.h>
#endif

namespace taskd::proto {
namespace {

constexpr size_t kWord = sizeof(uint64_t);
constexpr size_t kBlock = 64;  // bytes, of which a word can say where numbers end

// A bit for each byte of the block with which a number ends.
uint64_t EndsIn(const char* block) {
#ifdef __x86_64__
  uint64_t goes_on = 0;
  for (size_t i = 0; i < kBlock; i += sizeof(__m128i)) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(block + i));
    goes_on |= uint64_t{static_cast<uint32_t>(_mm_movemask_epi8(bytes))} << i;
  }
  return ~goes_on;
#else
  uint64_t ends = 0;
  for (size_t i = 0; i < kBlock / kWord; ++i) {
    const uint64_t lasts = (~WordAt(block + i * kWord) & 0x8080808080808080) >> 7;
    ends |= lasts * 0x0102040810204080 >> 56 << i * kWord;
  }
  return ends;
#endif
}

// The number of `size` bytes, at most a word.
struct Shifts {
  uint64_t operator()(uint64_t word, size_t size) const {
    return SevenBitsEach(word & ~uint64_t{0} >> 8 * (kWord - size));
  }
};

class PackedReader {
 public:
  PackedReader(std::string_view wire, uint64_t* to, size_t size, size_t most)
      : begin_(wire.data()), end_(begin_ + wire.size()), to_(to), size_(size), most_(most) {}

  template <typename Gather>
  [[gnu::always_inline]] std::optional<size_t> Read(const Gather& gather) {
    const char* block = begin_;
    const bool is_long = left(block) >= kBlock;
    for (; left(block) >= kBlock; block += kBlock) {
      if (!Take(block, EndsIn(block), gather)) return std::nullopt;
    }
    if (is_long && block != end_ && !Take(block, EndsIn(end_ - kBlock) >> (kBlock - left(block)), gather)) {
      return std::nullopt;
    }
    WireReader rest({begin_, left(begin_)});
    for (uint64_t number; rest.NextPacked(&number);) Add(number);
    return rest.broken() ? std::nullopt : std::optional(size_);
  }

 private:
  size_t left(const char* from) const { return static_cast<size_t>(end_ - from); }

  void Add(uint64_t number) {
    if (size_ < most_) to_[size_] = number;
    ++size_;
  }

  // The numbers that end where `ends` says, of which the first begins where the last one ended. False: one is broken.
  template <typename Gather>
  [[gnu::always_inline]] bool Take(const char* block, uint64_t ends, const Gather& gather) {
    for (; ends != 0; ends &= ends - 1) {
      const char* const next = block + std::countr_zero(ends) + 1;
      const auto length = static_cast<size_t>(next - begin_);
      uint64_t number = 0;
      if (length <= kWord) [[likely]] {
        const bool is_whole = left(begin_) >= kWord;
        number = gather(is_whole ? WordAt(begin_) : WordAt(end_ - kWord) >> 8 * (kWord - left(begin_)), length);
      } else if (WireReader one({begin_, length}); !one.NextPacked(&number) || one.NextPacked(&number)) {
        return false;
      }
      Add(number);
      begin_ = next;
    }
    return true;
  }

  const char* begin_;  // of the next number
  const char* const end_;
  uint64_t* const to_;
  size_t size_;
  const size_t most_;
};

#ifdef __x86_64__
struct Extraction {
  [[gnu::target("bmi2")]] uint64_t operator()(uint64_t word, size_t size) const {
    return _bzhi_u64(_pext_u64(word, 0x7f7f7f7f7f7f7f7f), static_cast<unsigned>(7 * size));
  }
};
[[gnu::target("bmi2")]] std::optional<size_t> ReadByExtraction(PackedReader reader) {
  return reader.Read(Extraction());
}
// Where it is one instruction, and not a hundred of microcode.
bool HasFastExtraction() {
  return __builtin_cpu_supports("bmi2") != 0 && __builtin_cpu_is("znver1") == 0 && __builtin_cpu_is("znver2") == 0;
}
#endif

}  // namespace

std::optional<size_t> ReadPackedAnywhere(std::string_view wire, uint64_t* to, size_t size, size_t most) {
  return PackedReader(wire, to, size, most).Read(Shifts());
}

std::optional<size_t> ReadPacked(std::string_view wire, uint64_t* to, size_t size, size_t most) {
#ifdef __x86_64__
  static const bool has_fast_extraction = HasFastExtraction();
  if (has_fast_extraction) return ReadByExtraction(PackedReader(wire, to, size, most));
#endif
  return ReadPackedAnywhere(wire, to, size, most);
}

}  // namespace taskd::proto
