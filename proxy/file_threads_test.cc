#include "proxy/file_threads.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>

#include "common/testing/deadline.h"
#include "gtest/gtest.h"

namespace taskd::proxy {
namespace {

// What a system call on storage that hangs is to its thread. Shared with jobs that outlive the test.
class Gate {
 public:
  void Pass() {
    std::unique_lock<std::mutex> lock(mutex_);
    ++waiting_;
    changed_.wait(lock, [this] { return open_; });
    --waiting_;
    ++passed_;
    changed_.notify_all();
  }
  void Open() {
    std::lock_guard<std::mutex> lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }
  int waiting() {
    std::lock_guard<std::mutex> lock(mutex_);
    return waiting_;
  }
  int passed() {
    std::lock_guard<std::mutex> lock(mutex_);
    return passed_;
  }
  bool WaitPassed(int count) {
    std::unique_lock<std::mutex> lock(mutex_);
    return taskd::testing::WaitFor(changed_, lock, [&] { return passed_ >= count; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool open_ = false;
  int waiting_ = 0;
  int passed_ = 0;
};

TEST(FileThreads, OneIsEnoughForWorkThatEnds) {
  FileThreads threads;
  auto gate = std::make_shared<Gate>();
  gate->Open();
  for (int i = 1; i <= 100; ++i) {
    threads.Run([gate] { gate->Pass(); });
    ASSERT_TRUE(gate->WaitPassed(i));
    threads.Grow();
  }
  EXPECT_EQ(threads.threads(), 1);
}

TEST(FileThreads, WorkThatHangsCostsTheOthersNothing) {
  auto hangs = std::make_shared<Gate>();
  auto goes = std::make_shared<Gate>();
  goes->Open();
  {
    FileThreads threads;
    for (int i = 1; i <= 5; ++i) {
      threads.Run([hangs] { hangs->Pass(); });
      threads.Run([goes] { goes->Pass(); });
      ASSERT_TRUE(taskd::testing::WaitUntil([&] {
        threads.Grow();
        return goes->passed() >= i;
      }));
    }
    EXPECT_GE(threads.threads(), 5);
  }
  hangs->Open();
  EXPECT_TRUE(hangs->WaitPassed(5)) << "what was left behind goes on when it can";
}

TEST(FileThreads, StorageThatHangsUnderEveryRankTakesSoManyThreadsAndNoMore) {
  constexpr int kJobs = FileThreads::kMaxThreads + 8;
  auto gate = std::make_shared<Gate>();
  FileThreads threads;
  for (int i = 0; i < kJobs; ++i) threads.Run([gate] { gate->Pass(); });
  ASSERT_TRUE(taskd::testing::WaitUntil([&] {
    threads.Grow();
    return gate->waiting() >= FileThreads::kMaxThreads;
  }));
  for (int i = 0; i < 10; ++i) threads.Grow();
  EXPECT_EQ(threads.threads(), FileThreads::kMaxThreads);
  gate->Open();
  EXPECT_TRUE(gate->WaitPassed(kJobs));
}

}  // namespace
}  // namespace taskd::proxy
