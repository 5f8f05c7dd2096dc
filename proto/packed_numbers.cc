#include "proto/packed_numbers.h"

#include <bit>
#include <cstring>

#include "proto/wire_reader.h"

namespace taskd::proto {
namespace {

constexpr size_t kWord = sizeof(uint64_t);
constexpr size_t kBlock = 64;  // bytes, of which a word can say where numbers end

uint64_t WordAt(const char* bytes) {
  uint64_t word;
  memcpy(&word, bytes, kWord);
  return word;
}

// A bit for each byte of the block with which a number ends.
uint64_t EndsIn(const char* block) {
  uint64_t ends = 0;
  for (size_t i = 0; i < kBlock / kWord; ++i) {
    const uint64_t lasts = (~WordAt(block + i * kWord) & 0x8080808080808080) >> 7;
    ends |= lasts * 0x0102040810204080 >> 56 << i * kWord;
  }
  return ends;
}

// The number of `size` bytes, at most a word.
uint64_t NumberOf(uint64_t word, size_t size) {
  word &= ~uint64_t{0} >> 8 * (kWord - size);
  word = (word & 0x007f007f007f007f) | (word & 0x7f007f007f007f00) >> 1;
  word = (word & 0x00003fff00003fff) | (word & 0x3fff00003fff0000) >> 2;
  return (word & 0x000000000fffffff) | (word & 0x0fffffff00000000) >> 4;
}

}  // namespace

std::optional<size_t> ReadPacked(std::string_view wire, uint64_t* to, size_t size, size_t most) {
  const char* begin = wire.data();
  const char* const end = begin + wire.size();
  const char* block = begin;
  // Where a whole word can be read from wherever a number begins.
  while (std::endian::native == std::endian::little && static_cast<size_t>(end - block) >= kBlock + kWord) {
    for (uint64_t ends = EndsIn(block); ends != 0; ends &= ends - 1) {
      const char* const next = block + std::countr_zero(ends) + 1;
      const auto length = static_cast<size_t>(next - begin);
      uint64_t number = 0;
      if (length <= kWord) {
        number = NumberOf(WordAt(begin), length);
      } else if (WireReader one({begin, length}); !one.NextPacked(&number) || one.NextPacked(&number)) {
        return std::nullopt;
      }
      if (size < most) to[size] = number;
      ++size;
      begin = next;
    }
    block += kBlock;
  }
  WireReader rest({begin, static_cast<size_t>(end - begin)});
  for (uint64_t number; rest.NextPacked(&number); ++size) {
    if (size < most) to[size] = number;
  }
  return rest.broken() ? std::nullopt : std::optional(size);
}

}  // namespace taskd::proto
