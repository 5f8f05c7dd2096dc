#include "common/frame_buffer.h"

#include <cstring>

#include "absl/strings/str_cat.h"

namespace taskd {
namespace {

constexpr size_t kMaxHandedOutBytes = 64 * 1024;  // kept in front of the rest, which would have to be moved

}  // namespace

void AppendWithLength(std::string_view body, std::string& out) {
  const auto length = static_cast<uint32_t>(body.size());
  out.append(reinterpret_cast<const char*>(&length), sizeof(length));
  out.append(body);
}

absl::StatusOr<bool> FrameBuffer::Next(std::string_view& body) {
  if (position_ > 0 && (position_ == buffer_.size() || position_ > kMaxHandedOutBytes)) {
    buffer_.erase(0, position_);
    position_ = 0;
  }
  const uint32_t length = next_length();
  if (length > max_bytes_) {
    return absl::InvalidArgumentError(
        absl::StrCat("a frame of ", length, " bytes; at most ", max_bytes_, " are allowed"));
  }
  if (size() < sizeof(length) + size_t{length}) return false;
  body = std::string_view(buffer_).substr(position_ + sizeof(length), length);
  position_ += sizeof(length) + length;
  return true;
}

uint32_t FrameBuffer::next_length() const {
  uint32_t length = 0;
  if (size() >= sizeof(length)) std::memcpy(&length, buffer_.data() + position_, sizeof(length));
  return length;
}

void FrameBuffer::Clear() {
  buffer_.clear();
  position_ = 0;
}

}  // namespace taskd
