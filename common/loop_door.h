// The way into a loop for those who may outlive it.
#pragma once

#include <mutex>
#include <utility>

#include "common/event_loop.h"

namespace taskd {

// Thread safe.
class LoopDoor {
 public:
  explicit LoopDoor(EventLoop* loop) : loop_(loop) {}
  LoopDoor(const LoopDoor&) = delete;
  LoopDoor& operator=(const LoopDoor&) = delete;

  // As EventLoop::Post(); once the door is closed it drops what it is given.
  void Post(EventLoop::Callback callback) {
    std::lock_guard lock(mutex_);
    if (loop_ != nullptr) loop_->Post(std::move(callback));
  }
  // Before the loop is destroyed.
  void Close() {
    std::lock_guard lock(mutex_);
    loop_ = nullptr;
  }

 private:
  std::mutex mutex_;
  EventLoop* loop_;  // guarded by mutex_
};

}  // namespace taskd
