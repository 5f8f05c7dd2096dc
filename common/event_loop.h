// One thread that waits for many descriptors, timers and calls from other threads (epoll).
#pragma once

#include <sys/epoll.h>

#include <atomic>
#include <cstdint>
#include <deque>
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

  // A round ends after so long, and what is ready and has had no turn comes first in the next one. So work of a round
  // that others wait for (timers, what was posted, AtRoundEnd()) waits for no more than this and one callback.
  static constexpr int64_t kSliceNs = 5'000'000;

 private:
  struct Watch {
    uint32_t generation;
    FdCallback callback;
    bool is_ready = false;  // it is in ready_
  };

  bool Watches(int fd) const;
  std::shared_ptr<Watch> WatchOf(const epoll_event& event) const;
  void Poll();
  void RunReady();
  int TimeoutMs() const;
  void RunTimers();
  void RunPosted();
  void RunRoundEnd();

  UniqueFd epoll_;
  UniqueFd wake_;
  std::vector<std::shared_ptr<Watch>> watches_;  // by descriptor
  uint32_t generation_ = 0;
  std::deque<epoll_event> ready_;  // descriptors in the order in which they became ready, each once
  std::map<TimerId, Callback> timers_;
  uint64_t next_timer_ = 0;
  std::vector<Callback> round_end_;
  std::atomic<std::thread::id> thread_;  // of Run()
  bool posted_here_ = false;             // by that thread since it last ran what is posted
  std::atomic<bool> stop_ = false;
  std::mutex mutex_;
  std::vector<Callback> posted_;  // guarded by mutex_
};

// What a callback may spend on one of many peers before the next has its turn.
class TimeSlice {
 public:
  explicit TimeSlice(int64_t length_ns = EventLoop::kSliceNs) : end_ns_(EventLoop::NowNs() + length_ns) {}
  bool is_over() const { return EventLoop::NowNs() >= end_ns_; }

 private:
  const int64_t end_ns_;
};

}  // namespace taskd
