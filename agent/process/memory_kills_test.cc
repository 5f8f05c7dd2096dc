#include "agent/process/memory_kills.h"

#include <stdlib.h>

#include <filesystem>
#include <fstream>

#include "gtest/gtest.h"

namespace taskd::process {
namespace {

namespace fs = std::filesystem;

constexpr char kUnknown[] = "SIGKILL from outside, or out of memory";
constexpr char kOutside[] = "SIGKILL from outside";
constexpr char kNoLimit[] = "9223372036854771712\n";

class MemoryKillsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/taskd-memory-kills-XXXXXX";
    ASSERT_NE(mkdtemp(name), nullptr);
    root_ = name;
  }
  void TearDown() override { fs::remove_all(root_); }

  void Write(const std::string& path, const std::string& text) const {
    fs::create_directories(fs::path(root_ + path).parent_path());
    std::ofstream(root_ + path) << text;
  }
  void V1(const std::string& group, int kills, int at_limit, const std::string& limit) const {
    Write("/sys/fs/cgroup/memory" + group + "/memory.oom_control",
          "oom_kill_disable 0\nunder_oom 0\noom_kill " + std::to_string(kills) + "\n");
    Write("/sys/fs/cgroup/memory" + group + "/memory.failcnt", std::to_string(at_limit) + "\n");
    Write("/sys/fs/cgroup/memory" + group + "/memory.limit_in_bytes", limit);
  }
  void V2(const std::string& group, int kills, int at_limit, const std::string& limit) const {
    Write("/sys/fs/cgroup" + group + "/memory.events", "low 0\nhigh 0\nmax 17\noom " + std::to_string(at_limit) +
                                                           "\noom_kill " + std::to_string(kills) +
                                                           "\noom_group_kill 0\n");
    Write("/sys/fs/cgroup" + group + "/memory.max", limit);
  }

  std::string root_;
};

constexpr char kV1Mount[] =
    "30 20 0:25 / /sys/fs/cgroup ro - tmpfs tmpfs ro\n"
    "36 30 0:31 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n"
    "37 30 0:32 / /sys/fs/cgroup/memory rw,nosuid shared:9 - cgroup cgroup rw,memory\n"
    "38 30 0:33 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";
constexpr char kV2Mount[] = "30 20 0:25 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n";

TEST_F(MemoryKillsTest, V1CountsInTheCgroupItself) {
  Write("/proc/self/mountinfo", kV1Mount);
  Write("/proc/7/cgroup", "5:cpu:/\n4:memory:/job/rank\n0::/\n");
  V1("", 3, 9, kNoLimit);
  V1("/job", 0, 5, "314572800\n");
  V1("/job/rank", 1, 0, kNoLimit);
  MemoryKills kills(root_);
  kills.Watch(7);
  V1("/job", 0, 6, "314572800\n");
  V1("/job/rank", 2, 0, kNoLimit);
  EXPECT_TRUE(kills.HasKill(7));
  EXPECT_EQ(kills.Explain(7), "killed by the kernel: out of memory (limit 300 MiB)");
}

TEST_F(MemoryKillsTest, V1AboveTellsNothing) {
  Write("/proc/self/mountinfo", kV1Mount);
  Write("/proc/7/cgroup", "4:memory:/job/rank\n");
  V1("/job", 0, 5, "314572800\n");
  MemoryKills kills(root_);
  kills.Watch(7);
  V1("/job", 1, 6, "314572800\n");
  EXPECT_EQ(kills.Explain(7), kUnknown);
}

// As Linux 6.18 leaves them where both limits are the same: memory.failcnt and memory.memsw.failcnt stay 0.
TEST_F(MemoryKillsTest, V1LimitOfMemoryAndSwapTogether) {
  Write("/proc/self/mountinfo", kV1Mount);
  Write("/proc/7/cgroup", "4:memory:/rank\n");
  V1("", 0, 0, "629145600\n");
  Write("/sys/fs/cgroup/memory/memory.max_usage_in_bytes", "314572800\n");
  V1("/rank", 0, 0, "314572800\n");
  MemoryKills kills(root_);
  kills.Watch(7);
  V1("/rank", 1, 0, "314572800\n");
  Write("/sys/fs/cgroup/memory/rank/memory.max_usage_in_bytes", "314441728\n");
  EXPECT_EQ(kills.Explain(7), "killed by the kernel: out of memory (limit 300 MiB)");
}

TEST_F(MemoryKillsTest, V2CountsAboveToo) {
  Write("/proc/self/mountinfo", kV2Mount);
  Write("/proc/7/cgroup", "0::/pod/rank\n");
  V2("/pod", 4, 4, "2147483648\n");
  MemoryKills kills(root_);
  kills.Watch(7);
  V2("/pod", 5, 5, "2147483648\n");
  EXPECT_EQ(kills.Explain(7), "killed by the kernel: out of memory (limit 2 GiB)");
}

// The innermost limit that was reached, not the tightest one.
TEST_F(MemoryKillsTest, TheLimitIsTheOneThatWasReached) {
  Write("/proc/self/mountinfo", kV2Mount);
  Write("/proc/7/cgroup", "0::/pod/rank\n");
  V2("/pod", 0, 0, "1073741824\n");
  V2("/pod/rank", 0, 0, "536870912\n");
  MemoryKills kills(root_);
  kills.Watch(7);
  V2("/pod", 1, 1, "1073741824\n");
  V2("/pod/rank", 1, 0, "536870912\n");
  EXPECT_EQ(kills.Explain(7), "killed by the kernel: out of memory (limit 1 GiB)");
}

// The machine's memory, or a limit of a cgroup that cannot be seen from here.
TEST_F(MemoryKillsTest, ALimitThatIsNotSeenIsNotNamed) {
  Write("/proc/self/mountinfo", kV2Mount);
  Write("/proc/7/cgroup", "0::/\n");
  V2("", 0, 0, "max\n");
  MemoryKills kills(root_);
  kills.Watch(7);
  V2("", 1, 0, "max\n");
  EXPECT_EQ(kills.Explain(7), "killed by the kernel: out of memory");
}

TEST_F(MemoryKillsTest, CountersThatDoNotChangeProveThatItCameFromOutside) {
  Write("/proc/self/mountinfo", kV2Mount);
  Write("/proc/7/cgroup", "0::/rank\n");
  V2("/rank", 4, 4, "2147483648\n");
  MemoryKills kills(root_);
  kills.Watch(7);
  EXPECT_FALSE(kills.HasKill(7));
  EXPECT_EQ(kills.Explain(7), kOutside);
}

TEST_F(MemoryKillsTest, AKillIsThatOfOneProcess) {
  Write("/proc/self/mountinfo", kV2Mount);
  for (const char* pid : {"7", "8"}) Write(std::string("/proc/") + pid + "/cgroup", "0::/\n");
  V2("", 0, 0, "2147483648\n");
  MemoryKills kills(root_);
  kills.Watch(7);
  V2("", 1, 1, "2147483648\n");
  kills.Watch(8);  // started after that
  EXPECT_EQ(kills.Explain(7), "killed by the kernel: out of memory (limit 2 GiB)");
  EXPECT_EQ(kills.Explain(8), kOutside);
}

// Without a namespace of its own a container reads the machine's path, and has its own cgroup mounted.
TEST_F(MemoryKillsTest, AMountOfAPartOfTheHierarchy) {
  Write("/proc/self/mountinfo",
        "37 30 0:32 /kubepods/pod1/c1 /sys/fs/cgroup/memory ro,nosuid master:9 - cgroup cgroup rw,memory\n");
  Write("/proc/7/cgroup", "4:memory:/kubepods/pod1/c1\n");
  Write("/proc/8/cgroup", "4:memory:/kubepods/pod1/c1/rank\n");
  Write("/proc/9/cgroup", "4:memory:/kubepods/pod1/c10\n");
  V1("", 0, 0, "314572800\n");
  V1("/rank", 0, 0, kNoLimit);
  MemoryKills kills(root_);
  for (pid_t pid : {7, 8, 9}) kills.Watch(pid);
  V1("", 1, 3, "314572800\n");
  V1("/rank", 1, 0, kNoLimit);
  for (pid_t pid : {7, 8}) EXPECT_EQ(kills.Explain(pid), "killed by the kernel: out of memory (limit 300 MiB)");
  EXPECT_EQ(kills.Explain(9), kUnknown) << "a neighbour's cgroup is not its own";
}

TEST_F(MemoryKillsTest, WhatCannotBeSeenIsNotClaimed) {
  struct Case {
    const char* mounts;
    const char* cgroup;
  };
  for (const Case& one :
       {Case{"", "0::/\n"}, Case{kV2Mount, ""}, Case{kV2Mount, "0::/../other\n"}, Case{kV2Mount, "4:memory:/rank\n"},
        Case{"nonsense\n - \n", ":::\n0:\n"}, Case{kV1Mount, "5:cpu:/\n0::/\n"}}) {
    Write("/proc/self/mountinfo", one.mounts);
    Write("/proc/7/cgroup", one.cgroup);
    MemoryKills kills(root_);
    kills.Watch(7);
    EXPECT_EQ(kills.Explain(7), kUnknown) << one.mounts << one.cgroup;
  }
  MemoryKills kills(root_);
  EXPECT_EQ(kills.Explain(5), kUnknown) << "never watched";
}

// Before Linux 4.13 there is no number of kills: that a limit was reached proves none.
TEST_F(MemoryKillsTest, AnOldKernelCountsNoKills) {
  Write("/proc/self/mountinfo", kV1Mount);
  Write("/proc/7/cgroup", "4:memory:/\n");
  Write("/sys/fs/cgroup/memory/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\n");
  Write("/sys/fs/cgroup/memory/memory.failcnt", "0\n");
  MemoryKills kills(root_);
  kills.Watch(7);
  Write("/sys/fs/cgroup/memory/memory.failcnt", "9\n");
  EXPECT_EQ(kills.Explain(7), kUnknown);
}

TEST_F(MemoryKillsTest, ACgroupThatIsGoneTellsNothing) {
  Write("/proc/self/mountinfo", kV2Mount);
  Write("/proc/7/cgroup", "0::/rank\n");
  V2("/rank", 0, 0, "max\n");
  MemoryKills kills(root_);
  kills.Watch(7);
  fs::remove_all(root_ + "/sys");
  EXPECT_FALSE(kills.HasKill(7));
  EXPECT_EQ(kills.Explain(7), kUnknown);
}

}  // namespace
}  // namespace taskd::process
