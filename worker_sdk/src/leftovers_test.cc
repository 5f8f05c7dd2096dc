// What a rank leaves in /dev/shm when it ends: nothing without need, and never one file a run.
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "taskd/hello.h"
#include "taskd/taskd.h"
#include "testing/fresh_process.h"

namespace taskd::worker {
namespace {

using ::testing::IsEmpty;
using ::testing::SizeIs;

class LeftoversTest : public ::testing::Test {
 protected:
  LeftoversTest() : socket_("/tmp/taskd-leftovers-" + std::to_string(getpid()) + "/none.sock") {
    setenv("TASKD_SOCKET", socket_.c_str(), 1);
  }
  ~LeftoversTest() override {
    for (const std::string& path : Segments()) unlink(path.c_str());
    unsetenv("TASKD_SOCKET");
  }

  std::vector<std::string> Segments() const {
    char hash[17];
    snprintf(hash, sizeof(hash), "%016llx", static_cast<unsigned long long>(hello::HashSocketPath(socket_.c_str())));
    std::vector<std::string> paths;
    for (const auto& entry : std::filesystem::directory_iterator(hello::kSegmentFolder)) {
      if (entry.path().filename().string().find(hash) != std::string::npos) paths.push_back(entry.path());
    }
    return paths;
  }

  // Runs `body` as rank `rank` in a process of its own that ends as programs do, with exit().
  static void RunRank(int rank, const std::function<void()>& body) {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      if (taskd_worker_init(rank, 0, 0) != 0) _exit(1);
      body();
      exit(0);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_EQ(status, 0);
  }

  static void MakeOld(const std::string& path) {
    const timespec times[2] = {{1'000'000, 0}, {1'000'000, 0}};
    ASSERT_EQ(utimensat(AT_FDCWD, path.c_str(), times, 0), 0);
  }

  const std::string socket_;
};

TEST_F(LeftoversTest, ARankThatRecordedNothingLeavesNothing) {
  RunRank(0, [] {});
  EXPECT_THAT(Segments(), IsEmpty());
}

TEST_F(LeftoversTest, WhatNobodyHasReadStaysForAProxyThatIsLate) {
  RunRank(0, [] { taskd_mark("early"); });
  EXPECT_THAT(Segments(), SizeIs(1));
}

TEST_F(LeftoversTest, TheNextLifeOfTheRankRemovesWhatNoProxyEverTook) {
  RunRank(0, [] { taskd_mark("old"); });
  ASSERT_THAT(Segments(), SizeIs(1));
  const std::string abandoned = Segments()[0];
  RunRank(1, [] { taskd_mark("another rank"); });
  ASSERT_THAT(Segments(), SizeIs(2));
  MakeOld(abandoned);
  auto gone = [&] { return access(abandoned.c_str(), F_OK) != 0; };
  RunRank(1, [] { taskd_mark("another rank"); });
  EXPECT_FALSE(gone()) << "it is rank 0's";
  RunRank(0, [&] {
    taskd_mark("new");
    testing::WaitUntil(gone);
  });
  EXPECT_TRUE(gone());
  EXPECT_THAT(Segments(), SizeIs(3)) << "and only that: the others are minutes too young";
}

}  // namespace
}  // namespace taskd::worker
