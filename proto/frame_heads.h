// Heads of HTTP/2's frames (RFC 9113 §4.1) in what one side sends, however that is cut: so it is counted before a
// library sees it.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace taskd::proto {

struct FrameHead {
  static constexpr uint8_t kData = 0;
  static constexpr uint8_t kHeaders = 1, kPushPromise = 5, kContinuation = 9;  // these carry header blocks
  uint8_t type = 0;
  size_t size = 0;  // of the frame behind its head
};

// The heads that come to their end in the bytes of one call after the other.
class FrameHeads {
 public:
  // `skip`: bytes before the first frame, as a client's preface.
  explicit FrameHeads(size_t skip) : skip_(skip) {}

  // The next head; what was read of `bytes` is cut off. Nothing: they are used up.
  std::optional<FrameHead> Next(std::string_view& bytes) {
    while (!bytes.empty()) {
      if (skip_ > 0) {
        const size_t part = std::min(skip_, bytes.size());
        skip_ -= part;
        bytes.remove_prefix(part);
        continue;
      }
      head_[head_size_++] = static_cast<uint8_t>(bytes.front());
      bytes.remove_prefix(1);
      if (head_size_ < kHeadBytes) continue;
      head_size_ = 0;
      skip_ = size_t{head_[0]} << 16 | size_t{head_[1]} << 8 | head_[2];
      return FrameHead{head_[3], skip_};
    }
    return std::nullopt;
  }

 private:
  static constexpr size_t kHeadBytes = 9;
  size_t skip_;  // to the next head
  std::array<uint8_t, kHeadBytes> head_ = {};
  size_t head_size_ = 0;
};

// Whether header blocks stay within bounds: the bytes of one in all its fragments, and how many these are.
class HeaderBlocks {
 public:
  static constexpr size_t kMostBytes = 16 << 10;
  static constexpr size_t kMostContinuations = 8;  // what nghttp2 takes too

  bool Take(const FrameHead& head) {
    if (head.type == FrameHead::kHeaders || head.type == FrameHead::kPushPromise) {
      bytes_ = head.size;
      continuations_ = 0;
    } else if (head.type == FrameHead::kContinuation) {
      bytes_ += head.size;
      ++continuations_;
    }
    return bytes_ <= kMostBytes && continuations_ <= kMostContinuations;
  }

 private:
  size_t bytes_ = 0;
  size_t continuations_ = 0;
};

}  // namespace taskd::proto
