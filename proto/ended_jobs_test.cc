#include "proto/ended_jobs.h"

#include <stdlib.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proxy/testing/temp_dir.h"

namespace taskd::proto {
namespace {

using taskd::testing::TempDir;
using ::testing::ElementsAre;

class EndedJobsTest : public ::testing::Test {
 protected:
  EndedJobsTest() { setenv("XDG_RUNTIME_DIR", temp_.path().c_str(), 1); }
  ~EndedJobsTest() override { unsetenv("XDG_RUNTIME_DIR"); }

  static v1::EndedJob Job(const std::string& name) {
    v1::EndedJob job;
    job.set_job(name);
    job.mutable_status()->add_nodes()->set_host("h");
    return job;
  }
  // Other users' runtime folders may have jobs of this test's user, too.
  std::vector<KeptJob> Kept() const {
    std::vector<KeptJob> kept = ListEndedJobs();
    std::erase_if(kept, [&](const KeptJob& job) { return !job.path.starts_with(temp_.path()); });
    return kept;
  }
  std::vector<std::string> Names() const {
    std::vector<std::string> names;
    for (const KeptJob& job : Kept()) names.push_back(job.job.job());
    return names;
  }
  std::string Folder() const { return temp_ / "taskd/ended/"; }

  TempDir temp_;
};

TEST_F(EndedJobsTest, TheNewestComesFirst) {
  for (const char* name : {"a", "b", "c"}) ASSERT_TRUE(KeepEndedJob(Job(name)).ok());
  EXPECT_THAT(Names(), ElementsAre("c", "b", "a"));
  EXPECT_EQ(Kept()[0].job.status().nodes(0).host(), "h");
  struct stat info;
  ASSERT_EQ(stat(Kept()[0].path.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
  EXPECT_TRUE(RemoveEndedJob(Kept()[1]).ok());
  EXPECT_THAT(Names(), ElementsAre("c", "a"));
}

TEST_F(EndedJobsTest, TooManyOrTooOldOnesGo) {
  ASSERT_TRUE(KeepEndedJob(Job("first")).ok());
  std::filesystem::copy_file(Kept()[0].path, Folder() + "1000000000-1");  // of 1970
  EXPECT_THAT(Names(), ElementsAre("first", "first"));
  for (size_t i = 0; i < kMostEndedJobs; ++i) ASSERT_TRUE(KeepEndedJob(Job(std::to_string(i))).ok());
  EXPECT_EQ(Names().size(), kMostEndedJobs);
  EXPECT_EQ(Names().back(), "0");
}

TEST_F(EndedJobsTest, TooLargeOnesGo) {
  ASSERT_TRUE(KeepEndedJob(Job("large")).ok());
  std::filesystem::resize_file(Kept()[0].path, kEndedJobBytes);
  v1::EndedJob larger = Job("larger");
  larger.mutable_status()->mutable_nodes(0)->set_host(std::string(kEndedJobBytes / 2, 'h'));
  ASSERT_TRUE(KeepEndedJob(larger).ok());
  EXPECT_THAT(Names(), ElementsAre("larger"));
  EXPECT_EQ(Kept()[0].job.status().nodes_size(), 0);
}

TEST_F(EndedJobsTest, WhatNoManagerOfThisUserWroteIsSkipped) {
  ASSERT_TRUE(KeepEndedJob(Job("job")).ok());
  const std::string path = Kept()[0].path;
  std::ofstream(Folder() + "2-2") << "not a job";
  std::ofstream(Folder() + "notes") << "";
  std::filesystem::create_symlink(path, Folder() + "3-3");
  std::filesystem::create_directory(Folder() + "4-4");
  std::filesystem::copy_file(path, Folder() + "5-5");
  ASSERT_EQ(chmod((Folder() + "5-5").c_str(), 0666), 0);
  EXPECT_THAT(Names(), ElementsAre("job"));
}

TEST(MarkFolderOf, IsTheFirstNodesThatHasOne) {
  v1::JobStatus status;
  EXPECT_EQ(MarkFolderOf(status), "");
  status.add_nodes()->mutable_mark_files()->set_error("none");
  v1::MarkFiles* files = status.add_nodes()->mutable_mark_files();
  files->set_dir("/home/u/taskd-train-20261129-142301");
  EXPECT_EQ(MarkFolderOf(status), "/home/u/taskd-train-20261129-142301");
  files->set_dir("/profiling");
  files->set_task("task");
  EXPECT_EQ(MarkFolderOf(status), "/profiling/task");
}

}  // namespace
}  // namespace taskd::proto
