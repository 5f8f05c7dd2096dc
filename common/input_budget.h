// What a file that somebody else wrote may take in memory: its bytes, what they unpack to, and what is made of them.
#pragma once

#include <cstddef>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace taskd {

inline constexpr int kDefaultInputMb = 64;
inline constexpr int kMostInputMb = 2048;  // places in a text are 32 bits
inline constexpr size_t kDefaultInputBytes = size_t{kDefaultInputMb} << 20;

// Counts while a file is read, so that reading ends before the memory is taken. Not thread-safe.
class InputBudget {
 public:
  explicit InputBudget(size_t bytes = kDefaultInputBytes) : limit_(bytes), left_(bytes) {}

  // False, and nothing is left from then on: it is more than what is left.
  bool Take(size_t bytes) {
    left_ = bytes <= left_ && !exceeded_ ? left_ - bytes : 0;
    exceeded_ = exceeded_ || left_ == 0;
    return !exceeded_;
  }
  size_t left() const { return left_; }

  // RESOURCE_EXHAUSTED with the rule once Take() was false, else OK.
  absl::Status status() const {
    if (!exceeded_) return absl::OkStatus();
    return absl::ResourceExhaustedError(
        absl::StrCat("takes more than ", limit_ >> 20, " MiB unpacked and read; --max-input-mb is the limit"));
  }

 private:
  const size_t limit_;
  size_t left_;
  bool exceeded_ = false;
};

}  // namespace taskd
