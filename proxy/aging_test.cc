#include "proxy/aging.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>

#include "common/unique_fd.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proxy/testing/temp_dir.h"

namespace taskd {
namespace {

using ::testing::ElementsAre;
using testing::MarkFiles;
using ::testing::SizeIs;
using testing::TempDir;
using testing::WriteFile;

// A mark file of 1000 bytes whose modification time is `age` seconds in the past.
void MakeFile(const std::string& path, int age) {
  WriteFile(path, std::string(1000, 'x'));
  timespec times[2];
  clock_gettime(CLOCK_REALTIME, &times[0]);
  times[0].tv_sec -= age;
  times[1] = times[0];
  ASSERT_EQ(utimensat(AT_FDCWD, path.c_str(), times, 0), 0);
}

AgingResult Age(const std::string& path, int64_t limit_bytes) {
  const std::atomic<bool> stop{false};
  return AgeProfilingDir(path, limit_bytes, stop);
}

TEST(Aging, DoesNothingBelowTheLimitOrWithoutOne) {
  TempDir temp;
  for (int i = 0; i < 10; ++i) MakeFile(temp / ("task/0/174556719" + std::to_string(i)), i);
  EXPECT_EQ(Age(temp.path(), 10'000).removed, 0);
  EXPECT_EQ(Age(temp.path(), 0).removed, 0);
  EXPECT_EQ(Age(temp / "missing", 1).removed, 0);
}

TEST(Aging, RemovesTheOldestFifthOverAllRanksAndTasks) {
  TempDir temp;
  for (int i = 0; i < 10; ++i) {
    MakeFile(temp / ("task" + std::to_string(i % 2) + "/" + std::to_string(i) + "/174556719" + std::to_string(i)), i);
  }
  AgingResult result = Age(temp.path(), 9'999);
  EXPECT_EQ(result.removed, 2);
  EXPECT_EQ(result.bytes, 8'000);
  EXPECT_THAT(MarkFiles(temp / "task1/9"), SizeIs(0));
  EXPECT_THAT(MarkFiles(temp / "task0/8"), SizeIs(0));
  EXPECT_THAT(MarkFiles(temp / "task1/7"), SizeIs(1));
}

TEST(Aging, GoesOnUntilItIsUnderTheLimit) {
  TempDir temp;
  for (int i = 0; i < 10; ++i) MakeFile(temp / ("task/0/174556719" + std::to_string(i)), 100 - i);
  AgingResult result = Age(temp.path(), 2'500);
  EXPECT_LE(result.bytes, 2'500);
  EXPECT_FALSE(result.over);
  EXPECT_THAT(MarkFiles(temp / "task/0"), ElementsAre("1745567198", "1745567199"));
}

TEST(Aging, OneOfFewFilesGoes) {
  TempDir temp;
  for (int i = 0; i < 3; ++i) MakeFile(temp / ("task/0/174556719" + std::to_string(i)), 100 - i);
  EXPECT_EQ(Age(temp.path(), 2'999).removed, 1);
}

TEST(Aging, LeavesWhatIsNotAMarkFile) {
  TempDir temp;
  MakeFile(temp / "task/0/parallel_group.json", 100);
  MakeFile(temp / "task/0/notes", 100);
  MakeFile(temp / "task/0/.rank.json", 100);
  MakeFile(temp / "1745567190", 100);
  MakeFile(temp / "task/1745567190", 100);
  MakeFile(temp / "task/results/1745567190", 100);
  MakeFile(temp / "task/0/deep/1745567190", 100);
  std::filesystem::create_directories(temp / "task/1");
  std::filesystem::create_symlink(temp / "task/0/notes", temp / "task/1/1745567190");
  AgingResult result = Age(temp.path(), 1);
  EXPECT_EQ(result.removed, 0);
  EXPECT_TRUE(result.over);
}

TEST(Aging, RemovesNothingOnceItIsStopped) {
  TempDir temp;
  MakeFile(temp / "task/0/1745567190", 100);
  const std::atomic<bool> stop{true};
  EXPECT_EQ(AgeProfilingDir(temp.path(), 1, stop).removed, 0);
}

TEST(Aging, NeverRemovesAnOpenFile) {
  TempDir temp;
  MakeFile(temp / "task/0/1745567190", 100);
  MakeFile(temp / "task/0/1745567191", 50);
  MakeFile(temp / "task/0/1745567192", 10);
  UniqueFd locked(open((temp / "task/0/1745567190").c_str(), O_RDONLY));
  ASSERT_EQ(flock(locked.get(), LOCK_SH), 0);
  EXPECT_EQ(Age(temp.path(), 1).removed, 2);
  EXPECT_THAT(MarkFiles(temp / "task/0"), ElementsAre("1745567190"));
}

}  // namespace
}  // namespace taskd
