#include "common/memory_limit.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "gtest/gtest.h"

namespace taskd {
namespace {

class MemoryLimitTest : public ::testing::Test {
 protected:
  MemoryLimitTest() {
    char name[] = "/tmp/memory_limit_test.XXXXXX";
    root_ = mkdtemp(name);
  }
  ~MemoryLimitTest() override { std::filesystem::remove_all(root_); }

  void Write(const std::string& path, const std::string& text) {
    std::filesystem::create_directories(std::filesystem::path(root_ + path).parent_path());
    std::ofstream(root_ + path) << text << "\n";
  }

  std::string root_;
};

TEST_F(MemoryLimitTest, WithoutGroupsItIsTheMachines) {
  const uint64_t machine = AvailableMemoryBytes(root_);
  EXPECT_GT(machine, 64u << 20);
  Write("/proc/self/cgroup", "0::/a/b");
  Write("/sys/fs/cgroup/a/b/memory.max", "max");
  EXPECT_EQ(AvailableMemoryBytes(root_), machine);
}

TEST_F(MemoryLimitTest, LeastOfAGroupAndThoseAboveIt) {
  Write("/proc/self/cgroup", "0::/a/b");
  Write("/sys/fs/cgroup/a/b/memory.max", "9000");
  EXPECT_EQ(AvailableMemoryBytes(root_), 9000u);
  Write("/sys/fs/cgroup/a/memory.max", "7000");
  EXPECT_EQ(AvailableMemoryBytes(root_), 7000u);
  Write("/sys/fs/cgroup/memory.max", "8000");
  EXPECT_EQ(AvailableMemoryBytes(root_), 7000u);
}

TEST_F(MemoryLimitTest, ContainerSeesItsGroupAsTheTopOne) {
  Write("/proc/self/cgroup", "5:devices:/docker/1234\n4:cpu,memory:/docker/1234\n0::/");
  Write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "5000");
  EXPECT_EQ(AvailableMemoryBytes(root_), 5000u);
  Write("/proc/self/cgroup", "0::/kubepods/pod1");
  Write("/sys/fs/cgroup/memory.max", "6000");
  EXPECT_EQ(AvailableMemoryBytes(root_), 6000u);
}

TEST_F(MemoryLimitTest, GarbageIsNoLimit) {
  const uint64_t machine = AvailableMemoryBytes(root_);
  Write("/proc/self/cgroup", "\n::\n0\n0:\n0::no-slash\n4:memory:");
  Write("/sys/fs/cgroup/memory.max", "many");
  EXPECT_EQ(AvailableMemoryBytes(root_), machine);
}

}  // namespace
}  // namespace taskd
