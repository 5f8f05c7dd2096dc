#include "common/job_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/testing/other_user.h"
#include "gmock/gmock.h"

namespace taskd {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

class JobFileTest : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/taskd-jobs-XXXXXX";
    ASSERT_NE(mkdtemp(name), nullptr);
    root_ = name;
    setenv("XDG_RUNTIME_DIR", name, 1);
    folder_ = root_ + "/taskd/jobs";
  }
  void TearDown() override {
    unsetenv("XDG_RUNTIME_DIR");
    std::filesystem::remove_all(root_);
  }

  // Those of this test's folder; the machine may have others of this user.
  static std::vector<JobFile> Jobs() {
    absl::StatusOr<std::vector<JobFile>> jobs = ListJobs();
    EXPECT_TRUE(jobs.ok()) << jobs.status();
    std::vector<JobFile> ours;
    for (JobFile& job : *jobs) {
      if (job.task_id == "test") ours.push_back(std::move(job));
    }
    return ours;
  }
  static JobFile Job(const std::string& listen, const std::string& name) {
    JobFile job = DescribeListener(*ParseHostPort("listen", listen));
    job.job = name;
    job.task_id = "test";
    job.secret = "s3cret";
    return job;
  }
  static std::unique_ptr<JobFileHandle> Write(const JobFile& job) {
    absl::StatusOr<std::unique_ptr<JobFileHandle>> handle = JobFileHandle::Write(job);
    EXPECT_TRUE(handle.ok()) << handle.status();
    return handle.ok() ? *std::move(handle) : nullptr;
  }
  // Content as a manager's, locked like a manager's.
  UniqueFd Plant(const std::string& name, const std::string& content, mode_t mode = 0600) {
    const std::string path = folder_ + "/" + name;
    UniqueFd fd(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
    EXPECT_EQ(write(fd.get(), content.data(), content.size()), static_cast<ssize_t>(content.size()));
    EXPECT_EQ(fchmod(fd.get(), mode), 0);
    EXPECT_EQ(flock(fd.get(), LOCK_EX | LOCK_NB), 0);
    return fd;
  }
  static std::string Read(const std::string& path) {
    std::ifstream file(path);
    return {std::istreambuf_iterator<char>(file), {}};
  }

  std::string root_;
  std::string folder_;
};

TEST_F(JobFileTest, IsThereAsLongAsItsHandle) {
  std::unique_ptr<JobFileHandle> handle = Write(Job("127.0.0.1:9601", "ns/a"));
  struct stat info;
  ASSERT_EQ(lstat(handle->path().c_str(), &info), 0);
  EXPECT_EQ(info.st_mode, S_IFREG | 0600u);
  const std::vector<JobFile> jobs = Jobs();
  ASSERT_EQ(jobs.size(), 1u);
  EXPECT_EQ(jobs[0].listen, "127.0.0.1:9601");
  EXPECT_THAT(jobs[0].hosts, ElementsAre("127.0.0.1"));
  EXPECT_EQ(jobs[0].port, 9601);
  EXPECT_EQ(jobs[0].job, "ns/a");
  EXPECT_EQ(jobs[0].secret, "s3cret");
  EXPECT_EQ(jobs[0].pid, getpid());
  EXPECT_NE(jobs[0].netns, 0u);
  handle.reset();
  EXPECT_THAT(Jobs(), IsEmpty());
  EXPECT_TRUE(std::filesystem::is_empty(folder_));
}

TEST_F(JobFileTest, OfAKilledManagerGoes) {
  const pid_t child = fork();
  if (child == 0) {
    auto handle = JobFileHandle::Write(Job("127.0.0.1:9601", "ns/a"));
    kill(getpid(), SIGKILL);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_FALSE(std::filesystem::is_empty(folder_));
  EXPECT_THAT(Jobs(), IsEmpty());
  EXPECT_TRUE(std::filesystem::is_empty(folder_));
}

TEST_F(JobFileTest, HostileContentIsSkipped) {
  std::unique_ptr<JobFileHandle> good = Write(Job("127.0.0.1:9601", "ns/a"));
  const std::string text = Read(good->path());
  EXPECT_EQ(mkfifo((folder_ + "/fifo.json").c_str(), 0600), 0);
  std::filesystem::create_symlink(good->path(), folder_ + "/link.json");
  std::filesystem::create_directory(folder_ + "/folder.json");
  std::vector<UniqueFd> held;
  held.push_back(Plant("readable.json", text, 0644));
  held.push_back(Plant("setuid.json", text, 04600));
  held.push_back(Plant("large.json", text + std::string(64 * 1024, ' ')));
  held.push_back(Plant("empty.json", ""));
  held.push_back(Plant("array.json", "[]"));
  held.push_back(Plant("deep.json", std::string(60000, '[')));
  held.push_back(Plant("types.json", R"({"listen":1,"hosts":{},"port":"9601"})"));
  held.push_back(Plant("nul.json", std::string("\0\0", 2)));
  held.push_back(Plant("no-suffix", text));
  std::string wrong_port = text;
  wrong_port.replace(wrong_port.find("9601,"), 4, "-123");
  held.push_back(Plant("port.json", wrong_port));
  if (geteuid() == 0) {
    held.push_back(Plant("theirs.json", text));
    ASSERT_EQ(chown((folder_ + "/theirs.json").c_str(), testing::kStranger, testing::kStranger), 0);
  }
  EXPECT_EQ(Jobs().size(), 1u);
  EXPECT_TRUE(std::filesystem::exists(good->path()));
}

TEST_F(JobFileTest, AFolderThatOthersMayWriteToIsRefused) {
  std::filesystem::create_directories(folder_);
  ASSERT_EQ(chmod(folder_.c_str(), 0777), 0);
  EXPECT_TRUE(absl::IsInvalidArgument(JobFileHandle::Write(Job("127.0.0.1:9601", "ns/a")).status()));
  std::filesystem::remove(folder_);
  std::filesystem::create_directory(root_ + "/elsewhere");
  std::filesystem::create_directory_symlink(root_ + "/elsewhere", folder_);
  EXPECT_TRUE(absl::IsInvalidArgument(JobFileHandle::Write(Job("127.0.0.1:9601", "ns/a")).status()));
  EXPECT_TRUE(std::filesystem::is_empty(root_ + "/elsewhere"));
}

TEST_F(JobFileTest, IsFoundWhereAnotherChoiceWasMade) {
  if (geteuid() != 0) GTEST_SKIP() << "root only";
  EXPECT_TRUE(testing::InOwnMounts([] {
    std::unique_ptr<JobFileHandle> before_login = Write(Job("127.0.0.1:9601", "ns/a"));
    EXPECT_EQ(mkdir("/run/user/0", 0700), 0);
    EXPECT_EQ(ListJobs()->size(), 1u);
    std::unique_ptr<JobFileHandle> after_login = Write(Job("127.0.0.1:9605", "ns/b"));
    EXPECT_THAT(after_login->path(), ::testing::StartsWith("/run/user/0/taskd/jobs/"));
    EXPECT_EQ(ListJobs()->size(), 2u);
    return !::testing::Test::HasFailure();
  }));
}

TEST_F(JobFileTest, AStrangersFolderIsNamedWhereNoJobIsFound) {
  if (geteuid() != 0) GTEST_SKIP() << "root only";
  EXPECT_TRUE(testing::InOwnMounts([] {
    mkdir("/tmp/taskd-2001", 0777);
    return chown("/tmp/taskd-2001", testing::kStranger, testing::kStranger) == 0 &&
           testing::AsUser(testing::kVictim, [] {
             return absl::IsInvalidArgument(ListJobs().status()) && absl::IsInvalidArgument(ChooseJob("").status()) &&
                    !JobAt({"127.0.0.1", 9601});
           });
  }));
}

TEST_F(JobFileTest, AnotherUsersJobIsNotSeen) {
  if (geteuid() != 0) GTEST_SKIP() << "root only";
  ASSERT_EQ(chmod(root_.c_str(), 0755), 0);
  EXPECT_TRUE(testing::InOwnMounts([] {
    auto mine = JobFileHandle::Write(Job("127.0.0.1:9601", "ns/a"));
    return mine.ok() && ListJobs()->size() == 1 && testing::AsUser(testing::kStranger, [&] {
             return ListJobs()->empty() && open((*mine)->path().c_str(), O_RDONLY) < 0;
           });
  }));
}

TEST_F(JobFileTest, IsFoundByItsAddress) {
  std::unique_ptr<JobFileHandle> a = Write(Job("127.0.0.1:47001", "ns/a"));
  std::unique_ptr<JobFileHandle> b = Write(Job("0.0.0.0:47002", "ns/b"));
  std::unique_ptr<JobFileHandle> c = Write(Job("[::]:47003", "ns/c"));
  auto name = [](const std::string& address) {
    std::optional<JobFile> job = JobAt(*ParseHostPort("--manager", address));
    return job ? job->job : "none";
  };
  EXPECT_EQ(name("127.0.0.1:47001"), "ns/a");
  EXPECT_EQ(name("localhost:47001"), "ns/a");
  EXPECT_EQ(name("127.0.0.2:47001"), "none");
  EXPECT_EQ(name("127.0.0.1:47009"), "none");
  EXPECT_EQ(name("127.0.0.1:47002"), "ns/b");
  EXPECT_EQ(name("0.0.0.0:47002"), "ns/b");
  EXPECT_EQ(name("[::1]:47002"), "ns/b") << "our listeners take both families";
  EXPECT_EQ(name("[::1]:47003"), "ns/c");
  EXPECT_EQ(name("127.0.0.1:47003"), "ns/c");
  EXPECT_EQ(name("192.0.2.1:47003"), "none");
}

TEST_F(JobFileTest, NetworkNamespacesHaveTheSameAddresses) {
  JobFile there = Job("127.0.0.1:47001", "ns/there");
  const uint64_t here = there.netns;
  there.netns = here + 1;
  std::unique_ptr<JobFileHandle> a = Write(there);
  EXPECT_FALSE(JobAt({"127.0.0.1", 47001}));  // another loopback
  std::unique_ptr<JobFileHandle> b = Write(Job("127.0.0.1:47001", "ns/here"));
  ASSERT_TRUE(JobAt({"127.0.0.1", 47001}));
  EXPECT_EQ(JobAt({"127.0.0.1", 47001})->job, "ns/here");
  std::unique_ptr<JobFileHandle> c = Write(Job("127.0.0.1:47001", "ns/again"));
  EXPECT_FALSE(JobAt({"127.0.0.1", 47001}));

  there = Job("127.0.0.1:47002", "ns/bridge");
  there.hosts = {"192.0.2.7"};
  there.netns = here + 1;
  std::unique_ptr<JobFileHandle> d = Write(there);
  ASSERT_TRUE(JobAt({"192.0.2.7", 47002}));
}

TEST_F(JobFileTest, AJobIsListedOnceThoughItsLaunchersAreHereToo) {
  JobFile manager = Job("127.0.0.1:47001", "ns/a");
  JobFile launcher = DescribeManager({"127.0.0.1", 47001});
  launcher.secret = manager.secret;
  launcher.started_unix_s = manager.started_unix_s - 1;
  std::unique_ptr<JobFileHandle> a = Write(launcher);
  std::unique_ptr<JobFileHandle> b = Write(launcher);
  EXPECT_TRUE(JobAt({"127.0.0.1", 47001})) << "where the manager is on another machine";
  std::unique_ptr<JobFileHandle> c = Write(manager);
  ASSERT_TRUE(JobAt({"127.0.0.1", 47001}));
  EXPECT_EQ(JobAt({"127.0.0.1", 47001})->job, "ns/a");
  EXPECT_FALSE(JobAt({"127.0.0.1", 47001})->elsewhere);
}

// A launcher that was there before the manager had written its file took the job's secret for another one.
TEST_F(JobFileTest, TheManagersWordCountsWhereALauncherSaysOtherwise) {
  JobFile launcher = DescribeManager({"127.0.0.1", 47001});
  launcher.task_id = "test";
  launcher.secret = "mistaken";
  auto mistaken = Write(launcher);
  EXPECT_EQ(JobAt({"127.0.0.1", 47001})->secret, "mistaken");
  auto manager = Write(Job("127.0.0.1:47001", "default/a"));
  EXPECT_EQ(Jobs().size(), 1u);
  EXPECT_EQ(JobAt({"127.0.0.1", 47001})->secret, "s3cret");
  auto other = Write(Job("127.0.0.1:47002", "default/b"));
  EXPECT_EQ(Jobs().size(), 2u);
}

// In mounts of their own: the machine may have other jobs of this user.
TEST_F(JobFileTest, ChoosesTheOnlyOne) {
  if (geteuid() != 0) GTEST_SKIP() << "root only";
  EXPECT_TRUE(testing::InOwnMounts([] {
    const absl::Status none = ChooseJob("").status();
    EXPECT_TRUE(absl::IsNotFound(none));
    EXPECT_EQ(none.message(), "no job of this user runs on this machine; name one with --manager HOST:PORT");
    std::unique_ptr<JobFileHandle> a = Write(Job("0.0.0.0:9601", "ns/a"));
    EXPECT_EQ(JobAddress(*ChooseJob("")), "127.0.0.1:9601");
    const absl::Status unknown = ChooseJob("ns/b").status();
    EXPECT_TRUE(absl::IsNotFound(unknown));
    EXPECT_EQ(unknown.message(),
              "no job 'ns/b' of this user runs on this machine; ns/a runs, and taskd jobs lists all; name one with "
              "--manager HOST:PORT");
    setenv("TASKD_JOB", "b", 1);
    EXPECT_THAT(std::string(ChooseJob("default/b").status().message()), HasSubstr("no job 'default/b' (TASKD_JOB) of"));
    unsetenv("TASKD_JOB");
    std::unique_ptr<JobFileHandle> b = Write(Job("127.0.0.1:9605", "ns/b"));
    EXPECT_EQ(ChooseJob("ns/b")->listen, "127.0.0.1:9605");
    const absl::Status several = ChooseJob("").status();
    EXPECT_TRUE(absl::IsInvalidArgument(several));
    EXPECT_THAT(std::string(several.message()),
                AllOf(HasSubstr("2 jobs of this user run on this machine; name one with --manager or --job\n"),
                      HasSubstr(absl::StrCat("\n  127.0.0.1:9601  ns/a  pid ", getpid(), "  since 20")),
                      HasSubstr("\n  127.0.0.1:9605  ns/b  pid "), Not(HasSubstr("s3cret"))));
    std::unique_ptr<JobFileHandle> again = Write(Job("127.0.0.1:9607", "ns/b"));
    EXPECT_THAT(std::string(ChooseJob("ns/b").status().message()), HasSubstr("2 managers of job 'ns/b'"));
    return !::testing::Test::HasFailure();
  }));
}

TEST_F(JobFileTest, InsideAnAllocationTheAllocationsIsMeant) {
  if (geteuid() != 0) GTEST_SKIP() << "root only";
  EXPECT_TRUE(testing::InOwnMounts([] {
    setenv("SLURM_JOB_ID", "12", 1);
    std::unique_ptr<JobFileHandle> other = Write(Job("127.0.0.1:9601", "default/x"));
    EXPECT_EQ(ChooseJob("")->job, "default/x") << "no job is of any allocation";
    std::unique_ptr<JobFileHandle> a = Write(Job("127.0.0.1:9605", "slurm/train-112"));
    EXPECT_THAT(std::string(ChooseJob("").status().message()), HasSubstr("no job of Slurm job 12 of this user"));
    std::unique_ptr<JobFileHandle> b = Write(Job("127.0.0.1:9606", "slurm/train-12"));
    EXPECT_EQ(ChooseJob("")->job, "slurm/train-12");
    EXPECT_EQ(ChooseJob("slurm/train-112")->job, "slurm/train-112") << "what is named wins";
    return !::testing::Test::HasFailure();
  }));
}

}  // namespace
}  // namespace taskd
