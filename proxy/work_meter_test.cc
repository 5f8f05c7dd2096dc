#include "proxy/work_meter.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/testing/deadline.h"

namespace taskd::proxy {
namespace {

constexpr uint64_t kS = 1'000'000'000;

TEST(WorkMeterTest, WhatCountsAsWork) {
  WorkMeter meter;
  EXPECT_EQ(meter.Look({5 * kS, 1 << 30}, 10 * kS).cpu_ns, 0u) << "nobody knows since when";
  ProcessWork work{5 * kS, 1 << 30};
  work.cpu_ns += kS / 20;
  work.io_bytes += 1000;
  WorkMeter::Busy busy = meter.Look(work, 11 * kS);
  EXPECT_EQ(busy.cpu_ns, 0u) << "it polls";
  EXPECT_EQ(busy.io_ns, 0u) << "it logs";
  work.cpu_ns += kS / 4;
  busy = meter.Look(work, 13 * kS);
  EXPECT_EQ(busy.cpu_ns, 2 * kS);
  EXPECT_EQ(busy.io_ns, 0u);
  work.io_bytes += 64 * 1024;
  busy = meter.Look(work, 14 * kS);
  EXPECT_EQ(busy.cpu_ns, 0u);
  EXPECT_EQ(busy.io_ns, kS);
  work.on_disk = true;
  EXPECT_EQ(meter.Look(work, 15 * kS).io_ns, kS);
  work.cpu_ns += 100 * kS;
  EXPECT_EQ(meter.Look(work, 60 * kS).cpu_ns, 0u) << "the proxy was stopped";
  work.cpu_ns -= 50 * kS;  // of a child that nobody waited for
  EXPECT_EQ(meter.Look(work, 61 * kS).cpu_ns, 0u);
}

TEST(WorkMeterTest, IoFile) {
  EXPECT_EQ(ParseIoBytes("rchar: 3\nwchar: 20\nsyscr: 7\nsyscw: 9\nread_bytes: 4096\nwrite_bytes: 100\n"
                         "cancelled_write_bytes: 5\n"),
            4219u);
  EXPECT_EQ(ParseIoBytes(""), 0u);
}

// The child computes and writes, and its parent waits, as a launcher script or a loader's owner does.
TEST(WorkMeterTest, ChildrenCount) {
  const pid_t parent = fork();
  if (parent == 0) {
    if (fork() == 0) {
      const int null = open("/dev/null", O_WRONLY);
      static char bytes[4096];
      while (write(null, bytes, sizeof bytes) > 0) {
      }
      _exit(1);
    }
    while (true) pause();
  }
  const ProcessWork before = ReadWork(parent);
  EXPECT_TRUE(testing::WaitUntil([&] {
    const ProcessWork now = ReadWork(parent);
    return now.cpu_ns > before.cpu_ns && now.io_bytes > before.io_bytes;
  }));
  const std::string children = "/proc/" + std::to_string(parent) + "/task/" + std::to_string(parent) + "/children";
  pid_t child = 0;
  FILE* list = fopen(children.c_str(), "r");
  ASSERT_NE(list, nullptr);
  EXPECT_EQ(fscanf(list, "%d", &child), 1);
  fclose(list);
  kill(child, SIGKILL);
  kill(parent, SIGKILL);
  waitpid(parent, nullptr, 0);
  EXPECT_EQ(ReadWork(parent).cpu_ns, 0u);
}

}  // namespace
}  // namespace taskd::proxy
