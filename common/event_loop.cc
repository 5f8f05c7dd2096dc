#include "common/event_loop.h"

#include <sys/eventfd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <ctime>

namespace taskd {
namespace {

constexpr int64_t kNsPerMs = 1'000'000;

uint64_t Pack(int fd, uint32_t generation) { return uint64_t{generation} << 32 | static_cast<uint32_t>(fd); }

}  // namespace

EventLoop::EventLoop() : epoll_(epoll_create1(EPOLL_CLOEXEC)), wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  Add(wake_.get(), EPOLLIN, [this](uint32_t) {
    uint64_t count;
    while (read(wake_.get(), &count, sizeof(count)) > 0) {
    }
  });
}

EventLoop::~EventLoop() = default;

int64_t EventLoop::NowNs() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1'000'000'000LL + now.tv_nsec;
}

void EventLoop::Add(int fd, uint32_t events, FdCallback callback) {
  // The generation distinguishes an event of a descriptor closed in this round from one of its successor's.
  if (watches_.size() <= static_cast<size_t>(fd)) watches_.resize(fd + 1);
  watches_[fd] = std::make_shared<Watch>(Watch{++generation_, std::move(callback)});
  epoll_event event{.events = events, .data = {.u64 = Pack(fd, generation_)}};
  epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event);
}

bool EventLoop::Watches(int fd) const {
  return fd >= 0 && static_cast<size_t>(fd) < watches_.size() && watches_[fd] != nullptr;
}

void EventLoop::Change(int fd, uint32_t events) {
  if (!Watches(fd)) return;
  epoll_event event{.events = events, .data = {.u64 = Pack(fd, watches_[fd]->generation)}};
  epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, fd, &event);
}

void EventLoop::Remove(int fd) {
  if (!Watches(fd)) return;
  watches_[fd].reset();
  epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
}

EventLoop::TimerId EventLoop::RunAfter(int64_t delay_ns, Callback callback) {
  TimerId id{NowNs() + delay_ns, next_timer_++};
  timers_.emplace(id, std::move(callback));
  return id;
}

void EventLoop::Cancel(TimerId timer) { timers_.erase(timer); }

void EventLoop::Post(Callback callback) {
  {
    std::lock_guard lock(mutex_);
    posted_.push_back(std::move(callback));
    if (posted_.size() > 1) return;  // whoever came first wakes it
  }
  if (thread_ == std::this_thread::get_id()) {
    posted_here_ = true;  // it is awake
    return;
  }
  const uint64_t one = 1;
  [[maybe_unused]] ssize_t written = write(wake_.get(), &one, sizeof(one));  // EAGAIN: it is awake already
}

void EventLoop::AtRoundEnd(Callback callback) { round_end_.push_back(std::move(callback)); }

int EventLoop::TimeoutMs() const {
  if (!ready_.empty() || !round_end_.empty() || posted_here_) return 0;
  if (timers_.empty()) return -1;
  const int64_t left_ns = timers_.begin()->first.first - NowNs();
  if (left_ns <= 0) return 0;
  return static_cast<int>(std::min<int64_t>((left_ns + kNsPerMs - 1) / kNsPerMs, INT_MAX));
}

void EventLoop::RunTimers() {
  const int64_t now_ns = NowNs();
  while (!timers_.empty() && timers_.begin()->first.first <= now_ns) {
    Callback callback = std::move(timers_.begin()->second);
    timers_.erase(timers_.begin());
    callback();
  }
}

void EventLoop::RunPosted() {
  posted_here_ = false;
  std::vector<Callback> callbacks;
  {
    std::lock_guard lock(mutex_);
    callbacks.swap(posted_);
  }
  for (Callback& callback : callbacks) callback();
}

void EventLoop::RunRoundEnd() {
  std::vector<Callback> callbacks;
  callbacks.swap(round_end_);
  for (Callback& callback : callbacks) callback();
}

// Null: the descriptor is not watched any more.
std::shared_ptr<EventLoop::Watch> EventLoop::WatchOf(const epoll_event& event) const {
  const int fd = static_cast<int>(event.data.u64 & 0xffffffff);
  if (!Watches(fd) || watches_[fd]->generation != event.data.u64 >> 32) return nullptr;
  return watches_[fd];
}

// The kernel reports a descriptor that had no turn yet again, behind the others.
void EventLoop::Poll() {
  std::array<epoll_event, 256> events;
  const int count = epoll_wait(epoll_.get(), events.data(), events.size(), TimeoutMs());
  for (int i = 0; i < count; ++i) {
    std::shared_ptr<Watch> watch = WatchOf(events[i]);
    if (watch == nullptr || watch->is_ready) continue;
    watch->is_ready = true;
    ready_.push_back(events[i]);
  }
}

void EventLoop::RunReady() {
  const TimeSlice slice;
  while (!ready_.empty()) {
    const epoll_event event = ready_.front();
    ready_.pop_front();
    std::shared_ptr<Watch> watch = WatchOf(event);  // kept: the callback may remove it
    if (watch == nullptr) continue;
    watch->is_ready = false;
    watch->callback(event.events);
    if (slice.is_over()) return;
  }
}

void EventLoop::Run() {
  thread_ = std::this_thread::get_id();
  while (!stop_) {
    Poll();
    RunReady();
    RunTimers();
    RunRoundEnd();
    RunPosted();  // wake_ has its turn only behind the descriptors that became ready before it
  }
  thread_ = std::thread::id();
  stop_ = false;
}

void EventLoop::Stop() {
  stop_ = true;
  Post([] {});
}

}  // namespace taskd
