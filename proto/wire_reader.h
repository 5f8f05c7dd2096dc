// The fields of a serialized message, one after the other, for messages that come so often that Protobuf's objects cost
// more than what is done with them. As strict as proto/built_size.h: groups, which nobody sends, are a broken wire.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <string_view>

namespace taskd::proto {

static_assert(std::endian::native == std::endian::little);

// The bytes as they lie there, of which there are eight.
inline uint64_t WordAt(const char* bytes) {
  uint64_t word;
  memcpy(&word, bytes, sizeof word);
  return word;
}
// The number of a word's bytes, seven bits each, of which the lowest is first.
inline uint64_t SevenBitsEach(uint64_t word) {
  word &= 0x7f7f7f7f7f7f7f7f;
  word = (word + (word & 0x007f007f007f007f)) >> 1;
  word = (word + 3 * (word & 0x00003fff00003fff)) >> 2;
  return (word + 15 * (word & 0x0fffffff)) >> 4;
}

class WireReader {
 public:
  enum class Type : uint8_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

  // `wire` outlives this.
  explicit WireReader(std::string_view wire) : next_(wire.data()), end_(wire.data() + wire.size()) {}

  // Reads the next field, whatever it is. False: there is none, or broken().
  bool Next() {
    if (next_ == end_) return false;
    uint64_t tag = 0;
    broken_ = !Tag(&tag) || tag >> 3 == 0 || tag > UINT32_MAX || !Value(tag & 7);
    field_ = static_cast<uint32_t>(tag >> 3);
    type_ = static_cast<Type>(tag & 7);
    return !broken_;
  }
  // The next number of packed ones. False: as Next.
  bool NextPacked(uint64_t* number) {
    if (next_ == end_) return false;
    broken_ = !Varint(number);
    return !broken_;
  }
  bool broken() const { return broken_; }

  uint32_t field() const { return field_; }
  Type type() const { return type_; }
  bool Is(uint32_t field, Type type) const { return field_ == field && type_ == type; }
  uint64_t number() const { return number_; }        // of kVarint, and the bits of the fixed ones
  std::string_view bytes() const { return bytes_; }  // of kBytes

 private:
  bool Tag(uint64_t* tag) {
    *tag = static_cast<uint8_t>(*next_);
    if (*tag >= 0x80) return Varint(tag);
    ++next_;
    return true;
  }
  bool Varint(uint64_t* number) {
    if (end_ - next_ >= 8) {
      const uint64_t word = WordAt(next_);
      const uint64_t ends = ~word & 0x8080808080808080;
      if (ends != 0) {
        *number = SevenBitsEach(word & (ends ^ (ends - 1)));
        next_ += std::countr_zero(ends) / 8 + 1;
        return true;
      }
    }
    uint64_t read = 0;
    for (int shift = 0; shift < 70 && next_ != end_; shift += 7) {
      const auto byte = static_cast<uint8_t>(*next_++);
      read |= uint64_t{byte & 0x7fu} << shift;
      if (byte < 0x80) {
        *number = read;
        return true;
      }
    }
    return false;
  }

  bool Value(uint64_t type) {
    switch (type) {
      case 0:
        return Varint(&number_);
      case 1:
        return Take(8) && Fixed();
      case 2:
        return Varint(&number_) && Take(number_);
      case 5:
        return Take(4) && Fixed();
      default:
        return false;
    }
  }
  bool Take(uint64_t size) {
    if (size > static_cast<uint64_t>(end_ - next_)) return false;
    bytes_ = {next_, static_cast<size_t>(size)};
    next_ += size;
    return true;
  }
  bool Fixed() {
    number_ = 0;
    for (size_t i = bytes_.size(); i-- > 0;) number_ = number_ << 8 | static_cast<uint8_t>(bytes_[i]);
    return true;
  }

  const char* next_;
  const char* const end_;
  uint32_t field_ = 0;
  Type type_ = Type::kVarint;
  uint64_t number_ = 0;
  std::string_view bytes_;
  bool broken_ = false;
};

inline int64_t ZigZag(uint64_t number) { return static_cast<int64_t>(number >> 1 ^ (~(number & 1) + 1)); }

}  // namespace taskd::proto
