// Stands in for abseil where there is none for arm64 (arm64_check.sh): as much of it as proxy/ring_segment.cc uses.
#pragma once

#include <optional>
#include <string>
#include <utility>

namespace absl {

class Status {
 public:
  explicit Status(std::string message) : message_(std::move(message)) {}
  const std::string& message() const { return message_; }

 private:
  std::string message_;
};

inline Status ErrnoToStatus(int, std::string message) { return Status(std::move(message)); }
inline Status FailedPreconditionError(std::string message) { return Status(std::move(message)); }
inline Status InvalidArgumentError(std::string message) { return Status(std::move(message)); }
inline Status ResourceExhaustedError(std::string message) { return Status(std::move(message)); }

template <typename T>
class StatusOr {
 public:
  StatusOr(Status status) : status_(std::move(status)) {}       // NOLINT(google-explicit-constructor): as abseil's
  StatusOr(T value) : status_(""), value_(std::move(value)) {}  // NOLINT(google-explicit-constructor)
  bool ok() const { return value_.has_value(); }
  T&& operator*() && { return *std::move(value_); }

 private:
  Status status_;
  std::optional<T> value_;
};

}  // namespace absl
