// Frames in a stream of bytes: a u32 length in the machine's byte order, then so many bytes. No I/O.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace taskd {

// Appends `body` to `out` as a frame.
void AppendWithLength(std::string_view body, std::string& out);

// Cuts frames off the front of a stream, however that was cut on its way. Memory follows the bytes that have come,
// never a length that was announced: what was not handed out yet, and at most 64 KiB more.
class FrameBuffer {
 public:
  // `max_bytes`: of a body.
  explicit FrameBuffer(uint32_t max_bytes) : max_bytes_(max_bytes) {}

  void set_max_bytes(uint32_t max_bytes) { max_bytes_ = max_bytes; }

  void Append(std::string_view bytes) { buffer_ += bytes; }
  // The next body, valid until the next call of anything. False: there is no whole one. INVALID_ARGUMENT: it is too
  // long, which is known as soon as its length is there; it stays at the front.
  absl::StatusOr<bool> Next(std::string_view& body);
  // The length field of the frame at the front; 0 where that is not there yet.
  uint32_t next_length() const;
  // What was appended and not handed out, from the length of the frame at the front on.
  std::string_view rest() const { return std::string_view(buffer_).substr(position_); }
  size_t size() const { return buffer_.size() - position_; }
  void Clear();

 private:
  uint32_t max_bytes_;
  std::string buffer_;
  size_t position_ = 0;
};

}  // namespace taskd
