#include "common/storage_thread.h"

#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>

namespace taskd {

struct StorageThread::Share {
  std::mutex mutex;  // guards all below
  std::condition_variable changed;
  std::deque<std::function<void()>> waiting;
  bool runs = false;  // the thread
  bool ends = false;
};

std::shared_ptr<StorageThread::Share> StorageThread::MakeShare() { return std::make_shared<Share>(); }

StorageThread::~StorageThread() {
  std::unique_lock lock(share_->mutex);
  share_->ends = true;
  share_->changed.notify_all();
  share_->changed.wait_for(lock, patience_, [&] { return !share_->runs; });
}

bool StorageThread::Do(std::function<void()> work) {
  std::lock_guard lock(share_->mutex);
  if (share_->waiting.size() >= kMostWaiting) return false;
  share_->waiting.push_back(std::move(work));
  if (!std::exchange(share_->runs, true)) std::thread([share = share_] { Run(share); }).detach();
  share_->changed.notify_all();
  return true;
}

void StorageThread::Run(const std::shared_ptr<Share>& share) {
  std::unique_lock lock(share->mutex);
  while (true) {
    share->changed.wait(lock, [&] { return share->ends || !share->waiting.empty(); });
    if (share->waiting.empty()) break;
    const std::function<void()> work = std::move(share->waiting.front());
    share->waiting.pop_front();
    lock.unlock();
    work();
    lock.lock();
  }
  share->runs = false;
  share->changed.notify_all();
}

}  // namespace taskd
