// Threads for work on files that may never return: storage that hangs takes the thread with it, and nothing else.
//
// Design:
// 1. One thread does all the work while storage answers. Another one is started when work waits and no thread is idle,
//    up to kMaxThreads. When storage hangs under all of these, further work waits for it too.
// 2. A thread in a system call that hangs cannot be ended, and in some (a frozen or lost disk) not even be killed. So
//    the threads are detached, and a job owns all that it touches: whoever started it may be gone when it goes on.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

namespace taskd::proxy {

// Thread-safe.
class FileThreads {
 public:
  // Of one of these at a time. A folder that hangs takes one; a node has some 8 to 16 ranks.
  static constexpr int kMaxThreads = 32;

  FileThreads();
  ~FileThreads();  // what hangs stays behind; jobs that have not begun never do
  FileThreads(const FileThreads&) = delete;
  FileThreads& operator=(const FileThreads&) = delete;

  void Run(std::function<void()> job);
  // To be called now and then (every 50 ms): starts a thread where jobs have waited for one since the last call.
  void Grow();

  int threads() const;

 private:
  struct State;
  static void Loop(const std::shared_ptr<State>& state);
  void Start();

  const std::shared_ptr<State> state_;
};

}  // namespace taskd::proxy
