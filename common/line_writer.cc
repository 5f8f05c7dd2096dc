#include "common/line_writer.h"

#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

namespace taskd {
namespace {

using std::chrono::steady_clock;

uint64_t LinesIn(std::string_view text) { return static_cast<uint64_t>(std::count(text.begin(), text.end(), '\n')); }

bool IsWritable(int fd, int timeout_ms) {
  pollfd ready{fd, POLLOUT, 0};
  return ::poll(&ready, 1, timeout_ms) > 0;
}

std::string WriteWhole(int fd, std::string_view rest) {
  while (!rest.empty()) {
    const ssize_t count = ::write(fd, rest.data(), rest.size());
    if (count >= 0) {
      rest.remove_prefix(static_cast<size_t>(count));
    } else if (errno == EAGAIN) {  // somebody has made it non-blocking
      IsWritable(fd, -1);
    } else if (errno != EINTR) {
      return std::strerror(errno);
    }
  }
  return "";
}

}  // namespace

class LineWriter::Queue {
 public:
  Queue(UniqueFd fd, Target target, Options options)
      : fd_(std::move(fd)), target_(std::move(target)), options_(std::move(options)) {
    if (!target_) target_ = [this](std::string_view lines) { return WriteWhole(fd_.get(), lines); };
  }

  static void Write(const std::shared_ptr<Queue>& self, std::string lines);
  void Flush(steady_clock::time_point deadline);
  void End();

 private:
  using Lock = std::unique_lock<std::mutex>;

  // Without a thread: only a descriptor says that it does not block.
  bool TakesSome(int timeout_ms) const { return fd_.valid() && IsWritable(fd_.get(), timeout_ms); }
  void MakeRoom(size_t bytes);
  bool HasThread(const std::shared_ptr<Queue>& self);
  void RunThread();
  void WriteNext(Lock& lock);

  const UniqueFd fd_;  // of one that has no target of its own
  Target target_;
  const Options options_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::string> waiting_;  // guarded by mutex_, as all that follows
  size_t waiting_bytes_ = 0;
  uint64_t lost_lines_ = 0;  // which were before those that wait
  std::string why_lost_;
  bool writing_ = false;
  bool has_thread_ = false;
  bool ending_ = false;
};

void LineWriter::Queue::MakeRoom(size_t bytes) {
  if (waiting_.size() < options_.max_texts && waiting_bytes_ + bytes <= options_.max_bytes) return;
  while (!waiting_.empty() &&
         (waiting_.size() > options_.max_texts / 2 || waiting_bytes_ + bytes > options_.max_bytes / 2)) {
    lost_lines_ += LinesIn(waiting_.front());
    waiting_bytes_ -= waiting_.front().size();
    waiting_.pop_front();
  }
  why_lost_ = "nobody reads";
}

bool LineWriter::Queue::HasThread(const std::shared_ptr<Queue>& self) {
  if (has_thread_ || !options_.may_start_thread) return has_thread_;
  // Signals are for the threads that handle them, and SIGPIPE is for nobody.
  sigset_t all;
  sigset_t before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  try {
    std::thread([self] { self->RunThread(); }).detach();
    has_thread_ = true;
  } catch (const std::system_error&) {  // there are no more; the next line tries again
  }
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return has_thread_;
}

void LineWriter::Queue::Write(const std::shared_ptr<Queue>& self, std::string lines) {
  Queue& queue = *self;
  Lock lock(queue.mutex_);
  queue.MakeRoom(lines.size());
  queue.waiting_bytes_ += lines.size();
  queue.waiting_.push_back(std::move(lines));
  if (queue.HasThread(self)) {
    queue.changed_.notify_all();
  } else {
    while (!queue.waiting_.empty() && !queue.writing_ && queue.TakesSome(0)) queue.WriteNext(lock);
  }
}

void LineWriter::Queue::RunThread() {
  Lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return ending_ || !waiting_.empty(); });
    if (ending_) return;
    WriteNext(lock);
  }
}

void LineWriter::Queue::WriteNext(Lock& lock) {
  const std::string lines = std::move(waiting_.front());
  waiting_.pop_front();
  waiting_bytes_ -= lines.size();
  const uint64_t lost = std::exchange(lost_lines_, 0);
  const std::string why_lost = why_lost_;
  writing_ = true;
  lock.unlock();
  std::string error = lost > 0 && options_.loss ? target_(options_.loss(lost, why_lost)) : "";
  const uint64_t untold = error.empty() ? 0 : lost;
  if (error.empty()) error = target_(lines);
  if (options_.written) options_.written(error.empty());
  lock.lock();
  writing_ = false;
  if (!error.empty()) {
    lost_lines_ += untold + LinesIn(lines);
    why_lost_ = std::move(error);
  }
  changed_.notify_all();
}

void LineWriter::Queue::Flush(steady_clock::time_point deadline) {
  Lock lock(mutex_);
  if (has_thread_) {
    changed_.wait_until(lock, deadline, [this] { return waiting_.empty() && !writing_; });
    return;
  }
  while (!waiting_.empty() && !writing_) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - steady_clock::now());
    if (!TakesSome(std::max(0, static_cast<int>(left.count())))) return;
    WriteNext(lock);
  }
}

void LineWriter::Queue::End() {
  const Lock lock(mutex_);
  ending_ = true;
  changed_.notify_all();
}

LineWriter::LineWriter(UniqueFd fd, Options options)
    : queue_(std::make_shared<Queue>(std::move(fd), nullptr, std::move(options))) {}

LineWriter::LineWriter(Target target, Options options)
    : queue_(std::make_shared<Queue>(UniqueFd(), std::move(target), std::move(options))) {}

LineWriter::~LineWriter() { queue_->End(); }

void LineWriter::Write(std::string lines) {
  if (!lines.empty()) Queue::Write(queue_, std::move(lines));
}

void LineWriter::Flush(steady_clock::time_point deadline) { queue_->Flush(deadline); }

}  // namespace taskd
