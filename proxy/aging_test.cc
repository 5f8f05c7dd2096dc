#include "proxy/aging.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <map>
#include <string>
#include <thread>

#include "common/unique_fd.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proxy/testing/temp_dir.h"

namespace taskd::proxy {
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
  return AgeProfilingDir(path, {.all_bytes = limit_bytes, .task = "task", .rank_bytes = {}}, stop);
}

AgingResult AgeRanks(const std::string& path, const std::map<int, int64_t>& rank_bytes, int64_t all_bytes = 0) {
  const std::atomic<bool> stop{false};
  return AgeProfilingDir(path, {.all_bytes = all_bytes, .task = "task", .rank_bytes = rank_bytes}, stop);
}

// Other folders of digits in a working folder are none of ours: only the job's own folder is walked, and ranks' folders lie
// directly in it.
TEST(Aging, AJobsOwnFolderHasItsRanksInIt) {
  TempDir temp;
  for (int i = 0; i < 10; ++i) MakeFile(temp / ("0/174556719" + std::to_string(i)), i);
  MakeFile(temp / "deeper/0/1745567190", 0);
  const std::atomic<bool> stop{false};
  const AgingResult aged = AgeProfilingDir(temp.path(), {.all_bytes = 1, .task = "", .rank_bytes = {}}, stop);
  EXPECT_EQ(aged.removed, 10);
  EXPECT_TRUE(std::filesystem::exists(temp / "deeper/0/1745567190"));
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
  MakeFile(temp / "task/0/17455671900", 100);  // eleven digits
  ASSERT_EQ(mkfifo((temp / "task/0/1745567191").c_str(), 0600), 0);
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
  EXPECT_EQ(AgeProfilingDir(temp.path(), {.all_bytes = 1, .task = "task", .rank_bytes = {{0, 1}}}, stop).removed, 0);
}

TEST(Aging, FollowsNoLinkAtAnyLevel) {
  TempDir temp;
  TempDir outside;
  MakeFile(outside / "task/0/1745567190", 100);
  std::filesystem::create_directories(temp / "p/task2");
  std::filesystem::create_directory_symlink(outside.path(), temp / "link");
  std::filesystem::create_directory_symlink(outside / "task", temp / "p/task");
  std::filesystem::create_directory_symlink(outside / "task/0", temp / "p/task2/0");
  for (const char* path : {"link", "link/", "p", "p/"}) EXPECT_EQ(Age(temp / path, 1).removed, 0) << path;
  EXPECT_THAT(MarkFiles(outside / "task/0"), SizeIs(1));
}

// A rank's folder is swapped for a link as soon as the first of its files has gone.
TEST(Aging, RemovesNothingOutsideWhenAFolderIsSwapped) {
  TempDir temp;
  TempDir outside;
  for (int i = 0; i < 100; ++i) {
    const std::string name = std::to_string(1'745'567'190 + i);
    MakeFile(temp / ("p/task/0/" + name), 1000 - i);
    MakeFile(temp / ("p/task/1/" + name), 1000 - i);
    MakeFile(outside / name, 1000 - i);
  }
  std::atomic<bool> done{false};
  std::thread swapper([&] {
    while (!std::filesystem::is_symlink(temp / "p/task/0")) {
      if (std::filesystem::exists(temp / "p/task/0/1745567190") && !done) continue;
      std::filesystem::rename(temp / "p/task/0", temp / "moved");
      std::filesystem::create_directory_symlink(outside.path(), temp / "p/task/0");
    }
  });
  Age(temp / "p", 1);
  done = true;
  swapper.join();
  EXPECT_THAT(MarkFiles(outside.path()), SizeIs(100));
}

TEST(Aging, TheLimitOfARankIsAboutItsOwnFiles) {
  TempDir temp;
  for (int i = 0; i < 5; ++i) {
    const std::string name = "/174556719" + std::to_string(i);
    MakeFile(temp / ("task/0" + name), 100 - i);
    MakeFile(temp / ("task/1" + name), 1000 - i);
    MakeFile(temp / ("other/0" + name), 1000 - i);
  }
  MakeFile(temp / "task/00/1745567190", 1000);
  AgingResult result = AgeRanks(temp.path(), {{0, 1'500}});
  EXPECT_EQ(result.removed, 4);
  EXPECT_EQ(result.removed_of_ranks, 4);
  EXPECT_FALSE(result.over);
  EXPECT_THAT(MarkFiles(temp / "task/0"), ElementsAre("1745567194"));
  EXPECT_THAT(MarkFiles(temp / "task/1"), SizeIs(5));
  EXPECT_THAT(MarkFiles(temp / "task/00"), SizeIs(1));
  EXPECT_THAT(MarkFiles(temp / "other/0"), SizeIs(5));
}

// As an ordinary job gives it: one number on all ranks, for what the job has on the node.
TEST(Aging, TheSameLimitOfAllRanksIsTheJobs) {
  TempDir temp;
  for (int i = 0; i < 10; ++i) {
    MakeFile(temp / ("task/" + std::to_string(i % 2) + "/174556719" + std::to_string(i)), i);
    MakeFile(temp / ("old/" + std::to_string(i % 2) + "/174556719" + std::to_string(i)), 1000);
  }
  AgingResult result = AgeRanks(temp.path(), {{0, 9'999}, {1, 9'999}});
  EXPECT_EQ(result.removed, 2);
  EXPECT_THAT(MarkFiles(temp / "task/0"), ElementsAre("1745567190", "1745567192", "1745567194", "1745567196"));
  EXPECT_THAT(MarkFiles(temp / "task/1"), ElementsAre("1745567191", "1745567193", "1745567195", "1745567197"));
}

TEST(Aging, ALowerLimitDoesNotCostRanksWithAHigherOne) {
  TempDir temp;
  for (int i = 0; i < 5; ++i) {
    const std::string name = "/174556719" + std::to_string(i);
    MakeFile(temp / ("task/0" + name), 10);
    MakeFile(temp / ("task/1" + name), 1000);
    MakeFile(temp / ("task/2" + name), 1000);
  }
  EXPECT_EQ(AgeRanks(temp.path(), {{0, 1}, {1, 5'000}}).removed, 5);
  EXPECT_THAT(MarkFiles(temp / "task/1"), SizeIs(5));
  EXPECT_THAT(MarkFiles(temp / "task/2"), SizeIs(5));
  AgingResult both = AgeRanks(temp.path(), {{1, 4'000}}, 8'000);
  EXPECT_EQ(both.removed_of_ranks, 1);
  EXPECT_EQ(both.removed, 2) << "and the operator's";
  EXPECT_EQ(both.bytes, 8'000);
}

TEST(Aging, NeverRemovesAnOpenFile) {
  TempDir temp;
  MakeFile(temp / "task/0/1745567190", 100);
  MakeFile(temp / "task/0/1745567191", 50);
  MakeFile(temp / "task/0/1745567192", 10);
  UniqueFd locked(open((temp / "task/0/1745567190").c_str(), O_RDONLY));
  ASSERT_EQ(flock(locked.get(), LOCK_SH), 0);
  EXPECT_EQ(AgeRanks(temp.path(), {{0, 1}}).removed, 2);
  EXPECT_THAT(MarkFiles(temp / "task/0"), ElementsAre("1745567190"));
  MakeFile(temp / "task/0/1745567193", 10);
  EXPECT_EQ(Age(temp.path(), 1).removed, 1);
  EXPECT_THAT(MarkFiles(temp / "task/0"), ElementsAre("1745567190"));
}

}  // namespace
}  // namespace taskd::proxy
