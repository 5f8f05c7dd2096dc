// Makes values last without making their owner wait for storage that hangs: a thread of its own writes, and of the
// values that wait for it only the newest.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace taskd::manager {

template <typename Value>
class LatestWriter {
 public:
  using Write = std::function<absl::Status(const Value&)>;

  // `patience`: how long a write may keep its caller.
  LatestWriter(Write write, std::chrono::milliseconds patience)
      : write_(std::move(write)), patience_(patience), thread_([this] { Run(); }) {}
  // Writes what still waits.
  ~LatestWriter() {
    {
      std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  LatestWriter(const LatestWriter&) = delete;
  LatestWriter& operator=(const LatestWriter&) = delete;

  // OK: it lasts. Any other error: the write's own. UNAVAILABLE after `patience`, at once where an earlier write hangs
  // longer than that: it does not last yet; it will as soon as the storage goes on, if no newer value took its place.
  absl::Status Save(const Value& value) {
    std::unique_lock lock(mutex_);
    next_ = value;
    const uint64_t number = ++given_;
    changed_.notify_all();
    const auto deadline = (writing_ ? writing_since_ : std::chrono::steady_clock::now()) + patience_;
    if (changed_.wait_until(lock, deadline, [&] { return written_ >= number; })) return status_;
    return absl::UnavailableError(absl::StrCat("the storage has not answered within ", patience_.count(), " ms"));
  }

 private:
  void Run() {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [this] { return stopping_ || next_.has_value(); });
      if (!next_.has_value()) return;
      const Value value = *std::exchange(next_, std::nullopt);
      const uint64_t number = given_;
      writing_ = true;
      writing_since_ = std::chrono::steady_clock::now();
      lock.unlock();
      absl::Status status = write_(value);
      lock.lock();
      writing_ = false;
      written_ = number;
      status_ = std::move(status);
      changed_.notify_all();
    }
  }

  const Write write_;
  const std::chrono::milliseconds patience_;

  std::mutex mutex_;  // guards all below
  std::condition_variable changed_;
  bool stopping_ = false;
  bool writing_ = false;
  std::chrono::steady_clock::time_point writing_since_;
  std::optional<Value> next_;
  uint64_t given_ = 0, written_ = 0;  // numbers of values
  absl::Status status_;               // of the last write
  std::thread thread_;                // last: it uses the others
};

}  // namespace taskd::manager
