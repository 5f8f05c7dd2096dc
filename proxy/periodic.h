// Work that is done again and again, in a thread of its own.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>

namespace taskd::proxy {

// Calls `work` every `interval` in a thread of its own until it goes out of scope; then `work`'s argument becomes true.
class Periodic {
 public:
  template <typename Duration, typename Work>
  Periodic(Duration interval, Work work)
      : thread_([this, interval, work] {
          std::unique_lock<std::mutex> lock(mutex_);
          while (!stopping_) {
            lock.unlock();
            work(stopping_);
            lock.lock();
            wake_.wait_for(lock, interval, [this] { return stopping_.load(); });
          }
        }) {}
  ~Periodic() {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      stopping_ = true;
    }
    wake_.notify_all();
    thread_.join();
  }

 private:
  std::mutex mutex_;
  std::condition_variable wake_;
  std::atomic<bool> stopping_{false};
  std::thread thread_;  // last: it uses the others
};

}  // namespace taskd::proxy
