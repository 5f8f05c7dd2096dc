// For a thread that calls a server again and again: a call that can be ended from outside, and pauses that grow.
#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <random>

#include "grpcpp/client_context.h"

namespace taskd::manager {

// Pauses between tries: each a random part, a half at least, of a time that doubles from `first` to `last`.
class BackOff {
 public:
  BackOff(std::chrono::milliseconds first, std::chrono::milliseconds last) : first_(first), last_(last), next_(first) {}

  void Reset() { next_ = first_; }
  std::chrono::milliseconds Next() {
    std::uniform_int_distribution<int64_t> part(next_.count() / 2, next_.count());
    next_ = std::min(next_ * 2, last_);
    return std::max(first_, std::chrono::milliseconds(part(random_)));
  }

 private:
  const std::chrono::milliseconds first_;
  const std::chrono::milliseconds last_;
  std::chrono::milliseconds next_;
  std::minstd_rand random_{std::random_device{}()};
};

// One call at a time. Stop from any thread, the rest from the caller's.
class StoppableCalls {
 public:
  // Cancels the call that is under way; from now on there is none, and no pause.
  void Stop() {
    {
      std::lock_guard lock(mutex_);
      stopped_ = true;
      if (context_ != nullptr) context_->TryCancel();
    }
    wake_.notify_all();
  }

  // Before the call and after it; `context` lives until then. False: it is not to be made.
  bool Begin(grpc::ClientContext* context) {
    std::lock_guard lock(mutex_);
    if (stopped_) return false;
    context_ = context;
    return true;
  }
  void End() {
    std::lock_guard lock(mutex_);
    context_ = nullptr;
  }

  bool stopped() const {
    std::lock_guard lock(mutex_);
    return stopped_;
  }
  // False: stopped.
  bool Pause(std::chrono::milliseconds time) {
    std::unique_lock lock(mutex_);
    return !wake_.wait_for(lock, time, [this] { return stopped_; });
  }

 private:
  mutable std::mutex mutex_;
  std::condition_variable wake_;
  bool stopped_ = false;
  grpc::ClientContext* context_ = nullptr;
};

}  // namespace taskd::manager
