#include "proxy/cpu_wait.h"

#include <sched.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <thread>
#include <vector>

#include "common/testing/deadline.h"
#include "gtest/gtest.h"
#include "proxy/tick_clock.h"

namespace taskd::proxy {
namespace {

constexpr uint64_t kMs = 1'000'000;

TEST(CpuWaitTest, ReadsSchedstat) {
  EXPECT_EQ(ParseSchedstat("5012345 777 42\n"), (Schedstat{5012345, 777}));
  for (const char* text : {"", "5", "5 7", "x 7 5", "5 x 7", "5 -7 7", "5 99999999999999999999 7"}) {
    EXPECT_EQ(ParseSchedstat(text), std::nullopt) << text;
  }
}

TEST(CpuWaitTest, ReadsOffTheLineBetweenLooks) {
  CpuWaits waits;
  EXPECT_EQ(waits.Between(0, 1), std::nullopt);
  waits.Add(1000, 50);
  EXPECT_EQ(waits.Between(1000, 1000), 0u);
  EXPECT_EQ(waits.Between(1000, 1001), std::nullopt);
  waits.Add(1100, 150);
  waits.Add(1200, 150);
  EXPECT_EQ(waits.Between(1000, 1200), 100u);
  EXPECT_EQ(waits.Between(1025, 1050), 25u);
  EXPECT_EQ(waits.Between(1050, 1150), 50u);
  EXPECT_EQ(waits.Between(1120, 1180), 0u);
  EXPECT_EQ(waits.Between(999, 1100), std::nullopt) << "nobody looked before";
  EXPECT_EQ(waits.Between(1150, 1201), std::nullopt) << "nor since";
  EXPECT_EQ(waits.Between(1150, 1050), std::nullopt);
}

TEST(CpuWaitTest, WhatDoesNotGoOnIsLeftOut) {
  CpuWaits waits;
  waits.Add(1000, 50);
  waits.Add(1000, 60);  // no time has passed
  waits.Add(900, 70);
  waits.Add(1100, 40);  // another thread's
  waits.Add(1200, 80);
  EXPECT_EQ(waits.Between(1000, 1200), 30u);
  EXPECT_EQ(waits.Between(1000, 1100), 15u);
}

TEST(CpuWaitTest, OldLooksAreFurtherApartAndNothingIsForgotten) {
  CpuWaits waits;
  const uint64_t looks = 100 * CpuWaits::kMostLooks;
  for (uint64_t i = 0; i <= looks; ++i) waits.Add(1000 + 10 * i, 3 * i);
  EXPECT_EQ(waits.Between(1000, 1000 + 10 * looks), 3 * looks);
  EXPECT_NEAR(static_cast<double>(*waits.Between(1000 + 10 * looks / 2, 1000 + 10 * looks)), 1.5 * looks, 1);
  // The newest are as they were made.
  waits.Add(1000 + 10 * looks + 10, 3 * looks + 500);
  EXPECT_EQ(waits.Between(1000 + 10 * looks, 1000 + 10 * looks + 10), 500u);
  EXPECT_EQ(waits.Between(1000 + 10 * looks - 10, 1000 + 10 * looks), 3u);
}

// Each has a thread that spins while its main thread sleeps, and both threads are on one CPU whatever the machine has.
TEST(CpuWaitTest, SeesTwoProcessesShareACpu) {
  if (!std::ifstream("/proc/self/schedstat")) GTEST_SKIP() << "this kernel does not count it";
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(sched_getcpu(), &one);
  const auto live = [&] {
    if (sched_setaffinity(0, sizeof one, &one) != 0) _exit(1);  // of the thread too, from its begin
    const std::thread spinning([] {
      while (true) {
      }
    });
    while (true) pause();
  };
  pid_t children[2];
  for (pid_t& child : children) {
    child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) live();
  }
  CpuWaitMeter meter;
  const uint64_t begin_ns = ReadMonotonicNs();
  meter.Look(children[0], begin_ns);
  uint64_t waited_ns = 0;
  uint64_t end_ns = begin_ns;
  // Two threads that spin share a CPU by halves, whoever else there is: so much comes, sooner or later.
  EXPECT_TRUE(testing::WaitUntil([&] {
    end_ns = ReadMonotonicNs();
    meter.Look(children[0], end_ns);
    waited_ns = meter.waits().Between(begin_ns, end_ns).value_or(0);
    return waited_ns >= 50 * kMs;
  }));
  for (const pid_t child : children) {
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
  }
  // One that has ended says nothing more.
  meter.Look(children[0], end_ns + kMs);
  EXPECT_EQ(meter.waits().Between(begin_ns, end_ns + kMs), std::nullopt);
}

TEST(CpuWaitTest, LooksTheMoreSeldomTheMoreThreadsThereAre) {
  CpuWaitMeter meter;
  EXPECT_TRUE(meter.IsDue(1));
  meter.Look(getpid(), 1000 * kMs);
  EXPECT_FALSE(meter.IsDue(1199 * kMs));
  EXPECT_TRUE(meter.IsDue(1200 * kMs));
  std::vector<std::thread> threads;
  std::atomic<bool> done = false;
  for (int i = 0; i < 40; ++i) threads.emplace_back([&] { done.wait(false); });
  meter.Look(getpid(), 2000 * kMs);
  EXPECT_FALSE(meter.IsDue(2999 * kMs));
  EXPECT_TRUE(meter.IsDue(4500 * kMs));
  done = true;
  done.notify_all();
  for (std::thread& thread : threads) thread.join();
}

TEST(CpuWaitTest, LooksMoreOftenWhereAStepHasEnded) {
  CpuWaitMeter meter;
  EXPECT_TRUE(meter.IsDueFor(1, 1));
  meter.Look(getpid(), 1000 * kMs);
  EXPECT_FALSE(meter.IsDueFor(1000 * kMs, 1100 * kMs)) << "that is known";
  EXPECT_TRUE(meter.IsDueFor(1001 * kMs, 1100 * kMs));
  std::vector<std::thread> threads;
  std::atomic<bool> done = false;
  for (int i = 0; i < 40; ++i) threads.emplace_back([&] { done.wait(false); });
  meter.Look(getpid(), 2000 * kMs);
  EXPECT_FALSE(meter.IsDueFor(2001 * kMs, 2099 * kMs)) << "for 40 threads";
  EXPECT_TRUE(meter.IsDueFor(2001 * kMs, 2500 * kMs));
  done = true;
  done.notify_all();
  for (std::thread& thread : threads) thread.join();
}

TEST(CpuWaitTest, AProcessThatIsNotThereWaitedUnknown) {
  CpuWaitMeter meter;
  meter.Look(-5, 1000);
  meter.Look(-5, 2000);
  EXPECT_EQ(meter.waits().Between(1000, 2000), std::nullopt);
}

}  // namespace
}  // namespace taskd::proxy
