// One thread that waits for many descriptors, timers and calls from other threads (epoll).
#pragma once

#include <sys/epoll.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "common/unique_fd.h"

namespace taskd {

// Thread safety: Post() and Stop() from any thread; everything else on the thread of Run(), or before it began.
class EventLoop {
 public:
  using Callback = std::function<void()>;
  using FdCallback = std::function<void(uint32_t events)>;  // EPOLLIN, EPOLLOUT, EPOLLHUP, EPOLLERR
  using TimerId = std::pair<int64_t, uint64_t>;

  EventLoop();
  ~EventLoop();
  bool valid() const { return epoll_.valid() && wake_.valid(); }  // false: no descriptors were left for it
  EventLoop(const EventLoop&) = delete;
  EventLoop& operator=(const EventLoop&) = delete;

  // Level triggered. The callback may remove any descriptor, its own too. The caller keeps the descriptor open until it
  // has removed it. Descriptors that became ready between two rounds are reported in the order in which they did.
  void Add(int fd, uint32_t events, FdCallback callback);
  void Change(int fd, uint32_t events);
  void Remove(int fd);

  // Once. Timers of one moment run in the order in which they were set.
  TimerId RunAfter(int64_t delay_ns, Callback callback);
  void Cancel(TimerId timer);  // one that ran already: nothing happens

  // Runs soon on the loop's thread, in the order of the calls. What is posted after Run() returned never runs.
  void Post(Callback callback);
  // At the end of this round, when no descriptor's event of the round is left: for work that gathers what a round
  // brought.
  void AtRoundEnd(Callback callback);

  void Run();   // until Stop()
  void Stop();  // Run() returns when the round is over

  static int64_t NowNs();  // CLOCK_MONOTONIC

 private:
  struct Watch {
    uint32_t generation;
    FdCallback callback;
  };

  bool Watches(int fd) const;
  int TimeoutMs() const;
  void RunTimers();
  void RunPosted();
  void RunRoundEnd();

  UniqueFd epoll_;
  UniqueFd wake_;
  std::vector<std::shared_ptr<Watch>> watches_;  // by descriptor
  uint32_t generation_ = 0;
  std::map<TimerId, Callback> timers_;
  uint64_t next_timer_ = 0;
  std::vector<Callback> round_end_;
  std::atomic<std::thread::id> thread_;  // of Run()
  bool posted_here_ = false;             // by that thread since it last ran what is posted
  std::atomic<bool> stop_ = false;
  std::mutex mutex_;
  std::vector<Callback> posted_;  // guarded by mutex_
};

}  // namespace taskd
