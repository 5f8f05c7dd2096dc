#include "common/storage_thread.h"

#include <condition_variable>
#include <deque>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

namespace taskd {

struct StorageThread::Share {
  std::mutex mutex;  // guards all below
  std::condition_variable changed;
  std::deque<std::function<Report()>> waiting;
  bool runs = false;  // the thread
  bool ends = false;
  bool is_gone = false;  // the object
};

std::shared_ptr<StorageThread::Share> StorageThread::MakeShare() { return std::make_shared<Share>(); }

StorageThread::~StorageThread() {
  std::unique_lock lock(share_->mutex);
  share_->ends = true;
  share_->changed.notify_all();
  share_->changed.wait_for(lock, patience_, [&] { return !share_->runs; });
  share_->is_gone = true;
}

bool StorageThread::Do(std::function<Report()> work) {
  std::lock_guard lock(share_->mutex);
  if (share_->waiting.size() >= kMostWaiting) return false;
  share_->waiting.push_back(std::move(work));
  if (!share_->runs) {
    try {
      std::thread([share = share_] { Run(share); }).detach();
    } catch (const std::system_error&) {
      share_->waiting.pop_back();
      return false;
    }
    share_->runs = true;
  }
  share_->changed.notify_all();
  return true;
}

void StorageThread::Run(const std::shared_ptr<Share>& share) {
  std::unique_lock lock(share->mutex);
  while (true) {
    share->changed.wait(lock, [&] { return share->ends || !share->waiting.empty(); });
    if (share->waiting.empty()) break;
    const std::function<Report()> work = std::move(share->waiting.front());
    share->waiting.pop_front();
    lock.unlock();
    const Report report = work();
    lock.lock();
    if (report && !share->is_gone) report();
  }
  share->runs = false;
  share->changed.notify_all();
}

}  // namespace taskd
