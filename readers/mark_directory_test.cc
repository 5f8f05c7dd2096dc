#include "readers/mark_directory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

namespace taskd::readers {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class MarkDirectoryTest : public ::testing::Test {
 protected:
  MarkDirectoryTest() {
    std::string name = ::testing::TempDir() + "mark_directory_XXXXXX";
    root_ = ::mkdtemp(name.data());
  }
  ~MarkDirectoryTest() override { std::filesystem::remove_all(root_); }

  void Write(const std::string& path, const std::string& text) {
    std::filesystem::path file = root_ / path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }
  void Folder(const std::string& path) { std::filesystem::create_directories(root_ / path); }
  absl::StatusOr<MarkDirectory> List(const std::string& path) { return ListMarkDirectory((root_ / path).string()); }
  std::string Error(const std::string& path) {
    absl::StatusOr<MarkDirectory> directory = List(path);
    if (directory.ok()) return "no error";
    EXPECT_TRUE(absl::IsInvalidArgument(directory.status()) || absl::IsNotFound(directory.status()));
    EXPECT_EQ(directory.status().message().find('\n'), absl::string_view::npos);
    return std::string(directory.status().message());
  }

  std::filesystem::path root_;
};

std::vector<int> Numbers(const MarkDirectory& directory) {
  std::vector<int> numbers;
  for (const RankMarks& marks : directory.ranks) numbers.push_back(marks.rank);
  return numbers;
}

TEST_F(MarkDirectoryTest, RanksAndFilesInOrderOfTheirNumbers) {
  Write("job/10/1767225700", "12345");
  Write("job/10/1767225600", "123");
  Write("job/10/999999999", "1");
  Write("job/2/1767225600", "1");
  Folder("job/7");
  absl::StatusOr<MarkDirectory> directory = List("job/");
  ASSERT_TRUE(directory.ok()) << directory.status();
  EXPECT_EQ(directory->task, "job");
  EXPECT_EQ(directory->bytes, 10u);
  EXPECT_THAT(Numbers(*directory), ElementsAre(2, 7, 10));
  std::vector<std::string> names;
  for (const MarkFile& file : directory->ranks[2].files) {
    names.push_back(std::filesystem::path(file.path).filename().string());
  }
  EXPECT_THAT(names, ElementsAre("999999999", "1767225600", "1767225700"));
  EXPECT_EQ(directory->ranks[2].files[2].bytes, 5u);
  EXPECT_TRUE(directory->ranks[1].files.empty());
}

TEST_F(MarkDirectoryTest, OnlyNamesOfDigitsCount) {
  Write("job/0/1767225600", "1");
  Write("job/0/1767225600.gz", "1");
  Write("job/0/parallel_group.json", "{}");
  Write("job/0/.rank.json.new", "1");
  Folder("job/0/1767225700");
  Write("job/rank1/1767225600", "1");
  Write("job/01/1767225600", "1");
  Write("job/131072/1767225600", "1");
  Write("job/-1/1767225600", "1");
  Write("job/3", "a file");
  // A folder of digits inside makes 0 look like a task; 5 makes the folder above one.
  Write("job/5/1767225600", "1");
  absl::StatusOr<MarkDirectory> directory = List("job");
  ASSERT_TRUE(directory.ok()) << directory.status();
  EXPECT_THAT(Numbers(*directory), ElementsAre(0, 5));
  EXPECT_EQ(directory->ranks[0].files.size(), 1u);
}

TEST_F(MarkDirectoryTest, ProfilingDirectoryWithOneTask) {
  Write("profiling/task-a/0/1767225600", "1");
  Folder("profiling/not-a-task");
  Write("profiling/.hidden/0/1767225600", "1");
  absl::StatusOr<MarkDirectory> directory = List("profiling");
  ASSERT_TRUE(directory.ok()) << directory.status();
  EXPECT_EQ(directory->task, "task-a");
  Write("profiling/task-b/0/1767225600", "1");
  EXPECT_THAT(Error("profiling"), HasSubstr("profiling holds 2 tasks, name one: task-a, task-b"));
}

TEST_F(MarkDirectoryTest, OfTheJobsOfAWorkingDirectoryTheNewestIsTaken) {
  Write("work/data/0/1767225600", "no marks, but a folder of digits");
  Write("work/taskd-old-name/0/1767225600", "1");
  Write("work/taskd-a-20261129-142302/0/1767225600", "1");
  Write("work/taskd-b-20261129-142301/0/1767225600", "1");
  Folder("work/taskd-c-20261130-000000");  // no marks in it
  absl::StatusOr<MarkDirectory> directory = List("work");
  ASSERT_TRUE(directory.ok()) << directory.status();
  EXPECT_EQ(directory->task, "taskd-a-20261129-142302");
  EXPECT_THAT(directory->choice,
              HasSubstr("work holds the folders of 2 jobs; this is the newest, taskd-a-20261129-142302"));
  EXPECT_EQ(List("work/taskd-b-20261129-142301")->choice, "");
}

TEST_F(MarkDirectoryTest, TaskWhoseNameIsDigits) {
  Write("profiling/4711/0/1767225600", "1");
  Write("profiling/4711/1/1767225600", "1");
  absl::StatusOr<MarkDirectory> directory = List("profiling");
  ASSERT_TRUE(directory.ok()) << directory.status();
  EXPECT_EQ(directory->task, "4711");
  EXPECT_THAT(Numbers(*directory), ElementsAre(0, 1));
}

TEST_F(MarkDirectoryTest, WhatIsNoMarkDirectorySaysSo) {
  EXPECT_THAT(Error("nowhere"), HasSubstr("No such file or directory"));
  Write("file", "1");
  EXPECT_THAT(Error("file"), HasSubstr("Not a directory"));
  Folder("empty");
  EXPECT_THAT(Error("empty"), HasSubstr("empty holds no marks"));
  Write("one/0/1767225600", "");
  EXPECT_THAT(Error("one"), HasSubstr("one holds no marks"));
  Write("job/0/1767225600", "1");
  EXPECT_THAT(Error("job/0"), HasSubstr("name the folder above it"));
}

TEST_F(MarkDirectoryTest, FoldersThatNodesLeftAreOneJob) {
  Write("a/job/2/1767225600", "1");
  Write("a/job/3/1767225600", "1");
  Write("b/job/0/1767225600", "123");
  Folder("other");
  std::vector<std::string> others;
  const auto list = [this, &others](std::vector<std::string> paths) {
    for (std::string& path : paths) path = (root_ / path).string();
    others.clear();
    return ListMarkDirectories(paths, others);
  };
  absl::StatusOr<MarkDirectory> directory = list({"a", "b/job"});
  ASSERT_TRUE(directory.ok()) << directory.status();
  EXPECT_EQ(directory->task, "job");
  EXPECT_EQ(directory->bytes, 5u);
  EXPECT_THAT(Numbers(*directory), ElementsAre(0, 2, 3));

  EXPECT_TRUE(absl::IsNotFound(list({"other", "nowhere"}).status()));
  directory = list({"other", "a"});
  ASSERT_TRUE(directory.ok()) << directory.status();
  EXPECT_THAT(Numbers(*directory), ElementsAre(2, 3));
  EXPECT_THAT(others, ElementsAre((root_ / "other").string()));
  Write("b/job/3/1767225600", "1");
  absl::Status twice = list({"a", "b"}).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(twice)) << twice;
  EXPECT_THAT(std::string(twice.message()), HasSubstr("rank 3 is in "));
}

TEST_F(MarkDirectoryTest, PlacesOfRanks) {
  Write("job/0/1767225600", "1");
  Write("job/0/.rank.json", R"({"node":3,"host":"worker-3","local_rank":1})");
  Write("job/1/1767225600", "1");
  Write("job/1/.rank.json", R"({"node":"3","host":7,"local_rank":-1})");
  Write("job/2/1767225600", "1");
  Write("job/2/.rank.json", "{\"node\":");
  absl::StatusOr<MarkDirectory> directory = List("job");
  ASSERT_TRUE(directory.ok()) << directory.status();
  EXPECT_EQ(directory->ranks[0].node, 3);
  EXPECT_EQ(directory->ranks[0].host, "worker-3");
  EXPECT_EQ(directory->ranks[0].local_rank, 1);
  EXPECT_EQ(directory->ranks[1].node, -1);
  EXPECT_EQ(directory->ranks[1].host, "");
  EXPECT_EQ(directory->ranks[2].node, -1);
  EXPECT_THAT(NodesOfRanks(directory->ranks, {0, 1, 2}), ElementsAre(3, -1, -1));
}

TEST(NodesOfRanks, DevicesBeginAgainOnANewNode) {
  std::vector<RankMarks> ranks(6);
  EXPECT_THAT(NodesOfRanks(ranks, {0, 1, 2, 0, 1, 2}), ElementsAre(0, 0, 0, 1, 1, 1));
  // A rank without device records has no node; the others have one.
  EXPECT_THAT(NodesOfRanks(ranks, {0, -1, 2, -1, 1, 2}), ElementsAre(0, -1, 0, -1, 1, 1));
  EXPECT_THAT(NodesOfRanks(ranks, {-1, -1, -1, -1, -1, -1}), ElementsAre(-1, -1, -1, -1, -1, -1));
  // Each process sees one device, so the ids do not distinguish nodes.
  EXPECT_THAT(NodesOfRanks(ranks, {0, 0, 0, 0, 0, 0}), ElementsAre(-1, -1, -1, -1, -1, -1));
}

}  // namespace
}  // namespace taskd::readers
