#include "proxy/file_threads.h"

#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

#include "common/log.h"

namespace taskd::proxy {
namespace {

constexpr auto kIdleTime = std::chrono::seconds(10);  // then all but one end

}  // namespace

struct FileThreads::State {
  std::mutex mutex;
  std::condition_variable wake;
  std::deque<std::function<void()>> jobs;
  int threads = 0;
  int idle = 0;
  uint64_t begun = 0;       // jobs
  uint64_t seen_begun = 0;  // at the last Grow
  bool waited = false;      // jobs waited at the last Grow
  bool stopping = false;
};

FileThreads::FileThreads() : state_(std::make_shared<State>()) {}

FileThreads::~FileThreads() {
  std::lock_guard<std::mutex> lock(state_->mutex);
  state_->stopping = true;
  state_->wake.notify_all();
}

void FileThreads::Loop(const std::shared_ptr<State>& state) {
  std::unique_lock<std::mutex> lock(state->mutex);
  while (!state->stopping) {
    if (state->jobs.empty()) {
      ++state->idle;
      const bool woken = state->wake.wait_for(lock, kIdleTime, [&] { return state->stopping || !state->jobs.empty(); });
      --state->idle;
      if (!woken && state->threads > 1) break;
      continue;
    }
    std::function<void()> job = std::move(state->jobs.front());
    state->jobs.pop_front();
    ++state->begun;
    lock.unlock();
    job();
    job = nullptr;  // what it owns goes without the lock
    lock.lock();
  }
  --state->threads;
}

void FileThreads::Start() {
  ++state_->threads;
  try {
    std::thread([state = state_] { Loop(state); }).detach();
  } catch (const std::system_error& error) {  // no thread to be had: the others go on
    --state_->threads;
    spdlog::warn("no further thread for files: {}", error.what());
  }
}

void FileThreads::Run(std::function<void()> job) {
  std::lock_guard<std::mutex> lock(state_->mutex);
  state_->jobs.push_back(std::move(job));
  if (state_->threads == 0) Start();
  state_->wake.notify_one();
}

void FileThreads::Grow() {
  std::lock_guard<std::mutex> lock(state_->mutex);
  const bool waiting = !state_->jobs.empty() && state_->idle == 0;
  // Jobs that are begun one after the other need no second thread.
  const bool stuck = waiting && state_->waited && state_->begun == state_->seen_begun;
  if (stuck && state_->threads < kMaxThreads) Start();
  state_->waited = waiting;
  state_->seen_begun = state_->begun;
}

int FileThreads::threads() const {
  std::lock_guard<std::mutex> lock(state_->mutex);
  return state_->threads;
}

}  // namespace taskd::proxy
