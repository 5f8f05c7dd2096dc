#include "proto/built_size.h"

#include <algorithm>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/wire_format_lite.h"

namespace taskd::proto {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::internal::WireFormatLite;

// With the pointer to it and the allocator's part; the largest of ours has some 220 bytes.
constexpr size_t kMessageBytes = 264;
constexpr size_t kStringBytes = 64;
constexpr size_t kNumberBytes = 8;
constexpr size_t kUnknownBytes = 32;

class Counter {
 public:
  Counter(google::protobuf::io::ZeroCopyInputStream* wire, size_t max_bytes) : in_(wire), left_(max_bytes) {}

  // False: broken or too much.
  bool Message(const Descriptor& type) {
    while (const uint32_t tag = in_.ReadTag()) {
      const FieldDescriptor* field = type.FindFieldByNumber(WireFormatLite::GetTagFieldNumber(tag));
      if (!Field(field, WireFormatLite::GetTagWireType(tag))) return false;
    }
    return in_.ConsumedEntireMessage();
  }
  bool too_much() const { return too_much_; }

 private:
  bool Take(size_t bytes) {
    too_much_ = too_much_ || bytes > left_;
    left_ -= too_much_ ? 0 : bytes;
    return !too_much_;
  }

  bool Field(const FieldDescriptor* field, WireFormatLite::WireType type) {
    const size_t number_bytes = field == nullptr ? kUnknownBytes : field->is_repeated() ? kNumberBytes : 0;
    uint64_t number;
    switch (type) {
      case WireFormatLite::WIRETYPE_VARINT:
        return Take(number_bytes) && in_.ReadVarint64(&number);
      case WireFormatLite::WIRETYPE_FIXED64:
        return Take(number_bytes) && in_.Skip(8);
      case WireFormatLite::WIRETYPE_FIXED32:
        return Take(number_bytes) && in_.Skip(4);
      case WireFormatLite::WIRETYPE_LENGTH_DELIMITED:
        return Delimited(field);
      default:
        return false;
    }
  }

  bool Delimited(const FieldDescriptor* field) {
    uint32_t size;
    if (!in_.ReadVarint32(&size) || size > INT32_MAX) return false;
    if (field != nullptr && field->type() == FieldDescriptor::TYPE_MESSAGE) {
      if (!Take(kMessageBytes)) return false;
      const auto outer = in_.PushLimit(static_cast<int>(size));
      const bool sound = Message(*field->message_type()) && in_.BytesUntilLimit() == 0;
      in_.PopLimit(outer);
      return sound;
    }
    if (field != nullptr && field->is_packable()) return Packed(*field, size);
    return Take(kStringBytes + (field == nullptr ? kUnknownBytes : 0)) && Take(size) &&
           in_.Skip(static_cast<int>(size));
  }

  bool Packed(const FieldDescriptor& field, uint32_t size) {
    const WireFormatLite::WireType type =
        WireFormatLite::WireTypeForFieldType(static_cast<WireFormatLite::FieldType>(field.type()));
    if (type != WireFormatLite::WIRETYPE_VARINT) return Take(2 * size_t{size}) && in_.Skip(static_cast<int>(size));
    // Each number ends with the byte that has no highest bit. One that is too long is the parser's to refuse.
    uint8_t last = 0;
    while (size > 0) {
      const void* data;
      int there;
      if (!in_.GetDirectBufferPointer(&data, &there)) return false;
      const auto* bytes = static_cast<const uint8_t*>(data);
      const uint32_t part = std::min(size, static_cast<uint32_t>(there));
      size_t numbers = 0;
      for (uint32_t i = 0; i < part; ++i) numbers += bytes[i] >> 7 ^ 1;
      if (!Take(numbers * kNumberBytes) || !in_.Skip(static_cast<int>(part))) return false;
      last = bytes[part - 1];
      size -= part;
    }
    return last < 0x80;
  }

  google::protobuf::io::CodedInputStream in_;
  size_t left_;
  bool too_much_ = false;
};

}  // namespace

absl::Status CheckBuiltSize(const Descriptor& type, google::protobuf::io::ZeroCopyInputStream* wire, size_t max_bytes) {
  Counter counter(wire, max_bytes);
  if (counter.Message(type)) return absl::OkStatus();
  if (!counter.too_much()) return absl::InvalidArgumentError(absl::StrCat("no sound ", type.full_name()));
  return absl::ResourceExhaustedError(
      absl::StrCat(type.full_name(), ": its parts would take more than ", max_bytes >> 20, " MiB of memory"));
}

}  // namespace taskd::proto
