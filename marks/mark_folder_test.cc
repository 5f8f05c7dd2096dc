#include "marks/mark_folder.h"

#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <string_view>

#include "absl/time/time.h"
#include "common/testing/deadline.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proxy/testing/temp_dir.h"

namespace taskd {
namespace {

using ::testing::HasSubstr;
using testing::TempDir;

class MarkFolderTest : public ::testing::Test {
 protected:
  MarkFolderTest() {
    for (const char* name : {"submit", "work"}) std::filesystem::create_directory(temp_ / name);
    // Making a folder below a file fails for root too.
    testing::WriteFile(temp_ / "file", "");
    wishes_.first = temp_ / "file/user/cluster-info/profiling";
    wishes_.working_dirs = {temp_ / "submit", temp_ / "work"};
    wishes_.job = "default/train";
    wishes_.name = "taskd-train-20250425-074630";
    wishes_.unix_s = 1745567190;
  }
  MarkFolder Choose() { return ChooseMarkFolder(wishes_, testing::kHangLimit); }

  TempDir temp_;
  MarkFolderWishes wishes_;
};

TEST_F(MarkFolderTest, TakesTheFirstThatCanBeWrittenAndMakesNothing) {
  const std::string refusal = wishes_.first + ": Not a directory";
  MarkFolder folder = Choose();
  EXPECT_EQ(folder.path, temp_ / ("submit/" + wishes_.name));
  EXPECT_EQ(folder.TaskPath(), folder.path) << "the ranks' folders lie in it";
  EXPECT_EQ(folder.Name(), wishes_.name);
  EXPECT_EQ(folder.refusal, refusal);
  EXPECT_THAT(folder.made, ::testing::ElementsAre(folder.path)) << "by whoever chose the name";
  EXPECT_FALSE(std::filesystem::exists(folder.path));

  wishes_.working_dirs = {"", temp_ / "work"};
  EXPECT_EQ(Choose().path, temp_ / ("work/" + wishes_.name));
  wishes_.working_dirs = {"work"};
  EXPECT_EQ(Choose().path, "") << "not absolute";
  EXPECT_EQ(Choose().Name(), "");
  EXPECT_EQ(Choose().refusal, refusal) << "of the first one";

  wishes_.first = temp_ / "not/there/yet";
  folder = Choose();
  EXPECT_EQ(folder.path, wishes_.first);
  EXPECT_EQ(folder.TaskPath(), wishes_.first + "/" + wishes_.name);
  EXPECT_EQ(folder.refusal, "");
  EXPECT_FALSE(std::filesystem::exists(folder.path));
}

TEST_F(MarkFolderTest, AJobWithoutAFolderGetsTheNextFreeSecond) {
  wishes_.name = "";
  for (int64_t second = 0; second < 3; ++second) {
    const MarkFolder folder = Choose();
    const std::string time =
        absl::FormatTime("%Y%m%d-%H%M%S", absl::FromUnixSeconds(wishes_.unix_s + second), absl::LocalTimeZone());
    EXPECT_EQ(folder.path, temp_ / ("submit/taskd-train-" + time));
    EXPECT_EQ(folder.task_folder, "");
    EXPECT_THAT(folder.made, ::testing::ElementsAre(folder.path));
    EXPECT_TRUE(std::filesystem::is_directory(folder.path));
  }
  wishes_.job = "";
  EXPECT_THAT(Choose().Name(), ::testing::StartsWith("taskd-job-"));
  wishes_.job = "team/it's";
  EXPECT_THAT(Choose().Name(), ::testing::StartsWith("taskd-team-it-s-"));
}

TEST_F(MarkFolderTest, InTheProfilingDirectoryATaskWithoutANameHasItsSecond) {
  wishes_.first = temp_ / "profiling";
  wishes_.name = "";
  for (const char* name : {"default_task_id_1745567190", "default_task_id_1745567191", "default_task_id_1745567192"}) {
    const MarkFolder folder = Choose();
    EXPECT_EQ(folder.path, wishes_.first);
    EXPECT_EQ(folder.task_folder, name);
    EXPECT_EQ(folder.Name(), name);
    EXPECT_EQ(folder.made.back(), temp_ / (std::string("profiling/") + name));
    EXPECT_EQ(folder.made.size(), name == std::string_view("default_task_id_1745567190") ? 2u : 1u)
        << "with the one above";
    EXPECT_TRUE(std::filesystem::is_directory(temp_ / (std::string("profiling/") + name)));
  }
  wishes_.task_name = "4711/0";
  EXPECT_EQ(Choose().task_folder, "4711-0");
  EXPECT_THAT(Choose().made, ::testing::IsEmpty());

  wishes_.first = temp_ / "file/profiling";
  wishes_.working_dirs = {};
  EXPECT_EQ(Choose().path, "");
  EXPECT_THAT(Choose().made, ::testing::IsEmpty());
}

// MINDX_TASK_ID selects MindCluster's layout.
TEST_F(MarkFolderTest, AMindClusterTaskHasItsLayoutInEachPlace) {
  wishes_.mindx_task_id = "task";
  wishes_.task_name = "other";
  EXPECT_EQ(Choose().TaskPath(), temp_ / "submit/taskd-train/task");
  EXPECT_EQ(Choose().Name(), "task");
  wishes_.job = "";
  EXPECT_EQ(Choose().TaskPath(), temp_ / "submit/taskd-task/task");
  wishes_.first = temp_ / "profiling";
  EXPECT_EQ(Choose().TaskPath(), temp_ / "profiling/task");
}

TEST_F(MarkFolderTest, WhatWasGivenIsTakenOrNone) {
  wishes_.given = temp_ / "given/";
  EXPECT_EQ(Choose().path, temp_ / "given");
  wishes_.given = temp_ / "file/given";
  EXPECT_EQ(Choose().path, "");
  EXPECT_EQ(Choose().refusal, wishes_.given + ": Not a directory");
  std::filesystem::create_directory_symlink(temp_ / "work", temp_ / "link");
  wishes_.given = temp_ / "link";
  EXPECT_EQ(Choose().path, "");
  EXPECT_THAT(Choose().refusal, HasSubstr("is a symbolic link"));
  const std::filesystem::path before = std::filesystem::current_path();
  std::filesystem::current_path(temp_ / "work");
  wishes_.given = "relative";
  EXPECT_EQ(Choose().path, std::filesystem::current_path() / "relative");
  std::filesystem::current_path(before);
}

TEST_F(MarkFolderTest, AWorkingFolderIsTakenByItsRealPath) {
  std::filesystem::create_directory_symlink(temp_ / "work", temp_ / "link");
  wishes_.working_dirs = {temp_ / "link"};
  EXPECT_EQ(Choose().path, temp_ / ("work/" + wishes_.name));
  std::filesystem::create_directory_symlink(temp_ / "submit", temp_ / ("work/" + wishes_.name));
  EXPECT_EQ(Choose().path, "") << "the folder itself is never a link";
}

TEST_F(MarkFolderTest, TheTasksFolderCountsWhereItIsThere) {
  wishes_.given = temp_ / "given";
  wishes_.task_name = "task";
  std::filesystem::create_directory(wishes_.given);
  EXPECT_EQ(Choose().path, wishes_.given);
  testing::WriteFile(wishes_.given + "/task", "");
  EXPECT_EQ(Choose().refusal, wishes_.given + "/task: Not a directory");
}

// A user other than root may find a folder of another user, which `hostPath: DirectoryOrCreate` has made.
TEST_F(MarkFolderTest, AFolderOfAnotherUserIsPassedOver) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root to be another user for a while";
  wishes_.first = temp_ / "roots/profiling";
  std::filesystem::create_directories(wishes_.first);
  for (const char* name : {"submit", "work"}) ASSERT_EQ(chmod((temp_ / name).c_str(), 01777), 0);
  const std::string trap = temp_ / ("submit/" + wishes_.name);
  std::filesystem::create_directory(trap);
  ASSERT_EQ(chmod(trap.c_str(), 0777), 0);
  ASSERT_EQ(chmod(temp_.path().c_str(), 0755), 0);
  // access() checks the real user id.
  ASSERT_EQ(setresuid(65534, 65534, 0), 0);
  const MarkFolder folder = Choose();
  wishes_.working_dirs = {temp_ / "submit"};
  const MarkFolder none = Choose();
  ASSERT_EQ(setresuid(0, 0, 0), 0);
  EXPECT_EQ(folder.path, temp_ / ("work/" + wishes_.name));
  EXPECT_EQ(folder.refusal, wishes_.first + ": Permission denied");
  EXPECT_EQ(none.path, "");

  // The folder belongs to another user, but the task's folder in it was made for this user.
  wishes_.task_name = "task";
  std::filesystem::create_directory(wishes_.first + "/task");
  ASSERT_EQ(chown((wishes_.first + "/task").c_str(), 65534, 65534), 0);
  ASSERT_EQ(setresuid(65534, 65534, 0), 0);
  const MarkFolder prepared = Choose();
  ASSERT_EQ(setresuid(0, 0, 0), 0);
  EXPECT_EQ(prepared.path, wishes_.first);
}

}  // namespace
}  // namespace taskd
