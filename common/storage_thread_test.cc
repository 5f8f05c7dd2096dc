#include "common/storage_thread.h"

#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <future>
#include <memory>
#include <string>

#include "common/testing/deadline.h"
#include "common/testing/other_user.h"
#include "gtest/gtest.h"

namespace taskd {
namespace {

TEST(StorageThreadTest, DoesAllOfItInOrderBeforeItEnds) {
  auto done = std::make_shared<std::string>();
  {
    StorageThread thread(testing::kHangLimit);
    for (const char c : {'a', 'b', 'c'}) {
      EXPECT_TRUE(thread.Do([done, c] {
        done->push_back(c);
        return [done] { done->push_back('.'); };
      }));
    }
  }
  EXPECT_EQ(*done, "a.b.c.");
}

// Neither the caller nor the destructor waits for storage that does not answer; what waits is bounded.
TEST(StorageThreadTest, WhatHangsStopsNobody) {
  auto storage = std::make_shared<std::promise<void>>();
  auto later = std::make_shared<std::promise<void>>();
  {
    StorageThread thread(std::chrono::milliseconds(1));
    auto hangs = std::make_shared<std::promise<void>>();
    EXPECT_TRUE(thread.Do([storage, hangs] {
      hangs->set_value();
      storage->get_future().wait();
      return [] { ADD_FAILURE() << "a report when there may be no logger any more"; };
    }));
    hangs->get_future().wait();
    EXPECT_TRUE(thread.Do([later] {
      later->set_value();
      return nullptr;
    }));
    for (int i = 1; i < StorageThread::kMostWaiting; ++i) EXPECT_TRUE(thread.Do([] { return nullptr; }));
    EXPECT_FALSE(thread.Do([] { return nullptr; }));
  }
  storage->set_value();
  later->get_future().wait();  // what was left behind is done all the same
}

TEST(StorageThreadTest, AUserWithTooManyThreadsIsNoEnd) {
  if (geteuid() != 0) GTEST_SKIP() << "this is not root";
  EXPECT_TRUE(testing::AsUser(testing::kVictim, [] {
    const rlimit none{0, 0};
    StorageThread thread(testing::kHangLimit);
    return setrlimit(RLIMIT_NPROC, &none) == 0 && !thread.Do([] { return nullptr; }) &&
           !thread.Do([] { return nullptr; });
  }));
}

}  // namespace
}  // namespace taskd
