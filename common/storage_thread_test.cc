#include "common/storage_thread.h"

#include <chrono>
#include <future>
#include <memory>
#include <string>

#include "common/testing/deadline.h"
#include "gtest/gtest.h"

namespace taskd {
namespace {

TEST(StorageThreadTest, DoesAllOfItInOrderBeforeItEnds) {
  auto done = std::make_shared<std::string>();
  {
    StorageThread thread(testing::kHangLimit);
    for (const char c : {'a', 'b', 'c'}) EXPECT_TRUE(thread.Do([done, c] { done->push_back(c); }));
  }
  EXPECT_EQ(*done, "abc");
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
    }));
    hangs->get_future().wait();
    EXPECT_TRUE(thread.Do([later] { later->set_value(); }));
    for (int i = 1; i < StorageThread::kMostWaiting; ++i) EXPECT_TRUE(thread.Do([] {}));
    EXPECT_FALSE(thread.Do([] {}));
  }
  storage->set_value();
  later->get_future().wait();  // what was left behind is done all the same
}

}  // namespace
}  // namespace taskd
