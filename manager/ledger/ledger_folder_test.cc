#include "manager/ledger/ledger_folder.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "ledger/kept.h"

namespace taskd::manager {
namespace {

using ::testing::HasSubstr;

std::string Ledger(int round, const std::string& job = "ns/job") {
  ledger::KeptLedger ledger;
  ledger.job = job;
  ledger.task = "task";
  ledger.kept.round = round;
  return ledger::RenderKept(ledger);
}

class LedgerFolderTest : public ::testing::Test {
 protected:
  LedgerFolderTest() {
    char name[] = "/tmp/ledger_folder_test.XXXXXX";
    root_ = mkdtemp(name);
    folder_ = root_ + "/a/ledger";
  }
  ~LedgerFolderTest() override { std::filesystem::remove_all(root_); }

  LedgerFolder Make(const std::string& job = "ns/job") const { return {folder_, job, "task"}; }
  std::string File(const std::string& suffix) const {
    return absl::StrCat(folder_, "/", ledger::KeptName("ns/job", "task"), suffix);
  }
  std::string Read(const std::string& path) const {
    std::ifstream file(path);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  void Write(const std::string& path, const std::string& text) const { std::ofstream(path) << text; }
  std::vector<std::string> Names() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(folder_)) names.push_back(entry.path().filename());
    std::sort(names.begin(), names.end());
    return names;
  }
  // As if nobody had written for so long.
  void Age(const std::string& path, int64_t s) const {
    struct stat status;
    ASSERT_EQ(stat(path.c_str(), &status), 0);
    const timespec then = {status.st_mtime - s, 0};
    const timespec times[2] = {then, then};
    ASSERT_EQ(utimensat(AT_FDCWD, path.c_str(), times, 0), 0);
  }

  std::string root_, folder_;
};

TEST_F(LedgerFolderTest, TheNextAttemptFindsWhatTheLastOneKept) {
  {
    LedgerFolder first = Make();
    EXPECT_EQ(first.Open().value(), "");
    ASSERT_TRUE(first.Save(Ledger(1)).ok());
    ASSERT_TRUE(first.Save(Ledger(2)).ok());
    EXPECT_EQ(Names().size(), 2u);  // and its lock
  }
  struct stat status;
  ASSERT_EQ(stat(folder_.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0700u);
  LedgerFolder second = Make();
  EXPECT_EQ(second.Open().value(), Ledger(2));
  EXPECT_EQ(Make("ns/renamed").Open().value(), "");
}

TEST_F(LedgerFolderTest, OneManagerHasIt) {
  LedgerFolder first = Make();
  ASSERT_TRUE(first.Open().ok());
  ASSERT_TRUE(first.Save(Ledger(1)).ok());
  LedgerFolder second = Make();
  const absl::Status refused = second.Open().status();
  EXPECT_TRUE(absl::IsUnavailable(refused));
  EXPECT_THAT(refused.message(), HasSubstr(absl::StrCat("another manager has it (host ")));
  EXPECT_THAT(refused.message(), HasSubstr(absl::StrCat("pid ", getpid())));
  EXPECT_TRUE(absl::IsAborted(second.Save(Ledger(9))));
  EXPECT_TRUE(first.Save(Ledger(2)).ok());
}

TEST_F(LedgerFolderTest, AKilledManagersLockIsFreeAtOnce) {
  const pid_t child = fork();
  if (child == 0) {
    LedgerFolder folder = Make();
    const bool kept = folder.Open().ok() && folder.Save(Ledger(3)).ok();
    kill(getpid(), kept ? SIGKILL : SIGABRT);
  }
  siginfo_t ended;
  ASSERT_EQ(waitid(P_PID, static_cast<id_t>(child), &ended, WEXITED | WNOWAIT), 0);
  ASSERT_EQ(ended.si_status, SIGKILL);
  LedgerFolder next = Make();  // although nobody has waited for it
  EXPECT_EQ(next.Open().value(), Ledger(3));
  EXPECT_TRUE(next.Save(Ledger(4)).ok());
  ASSERT_EQ(waitpid(child, nullptr, 0), child);
}

TEST_F(LedgerFolderTest, TheLockOfAnotherMachineIsFreeOnceItWritesNoMore) {
  {
    LedgerFolder first = Make();
    ASSERT_TRUE(first.Open().ok());
    ASSERT_TRUE(first.Save(Ledger(1)).ok());
    Write(File(".lock"), "0123456789abcdef\n4711\n99\nanother-boot pid:[1]\nnode-7\n");
  }
  EXPECT_THAT(Make().Open().status().message(), HasSubstr("(host node-7, pid 4711)"));
  Age(File(".lock"), 3600);
  EXPECT_TRUE(absl::IsUnavailable(Make().Open().status())) << "it has written just now";
  Age(File(ledger::kKeptSuffix), LedgerFolder::kStaleS);
  LedgerFolder next = Make();
  EXPECT_EQ(next.Open().value(), Ledger(1));
  ASSERT_TRUE(next.Save(Ledger(2)).ok());
  EXPECT_EQ(Names().size(), 2u);
}

TEST_F(LedgerFolderTest, WhoWasTakenForDeadStops) {
  LedgerFolder slow = Make();
  ASSERT_TRUE(slow.Open().ok());
  ASSERT_TRUE(slow.Save(Ledger(1)).ok());
  Age(File(".lock"), 3600);
  Age(File(ledger::kKeptSuffix), 3600);
  LedgerFolder next = Make();
  ASSERT_TRUE(next.Open().ok());
  EXPECT_TRUE(absl::IsAborted(slow.Save(Ledger(2))));
  EXPECT_EQ(Read(File(ledger::kKeptSuffix)), Ledger(1));
}

TEST_F(LedgerFolderTest, OnlyOneTakesALockOver) {
  std::filesystem::create_directories(folder_);
  ASSERT_EQ(chmod(folder_.c_str(), 0700), 0);
  Write(File(".lock"), "0123456789abcdef\n4711\n99\nanother-boot pid:[1]\nnode-7\n");
  Age(File(".lock"), 3600);
  const std::string taken = File(".lock.0123456789abcdef.taken");
  Write(taken, "");  // by another one, which is at it
  for (int i = 0; i < 2; ++i) EXPECT_THAT(Make().Open().status().message(), HasSubstr("is taking over"));
  EXPECT_TRUE(std::filesystem::exists(taken));
  Age(taken, LedgerFolder::kStaleS);  // or it has ended before it went on
  EXPECT_THAT(Make().Open().status().message(), HasSubstr("is taking over"));
  EXPECT_TRUE(Make().Open().ok()) << "not for ever";
}

TEST_F(LedgerFolderTest, AFolderThatTheCallerGuardsHasNoLock) {
  LedgerFolder first(folder_, "ns/job", "task", LedgerFolder::Guard::kByTheCaller);
  EXPECT_EQ(first.Open().value(), "");
  ASSERT_TRUE(first.Save(Ledger(1)).ok());
  EXPECT_EQ(Names().size(), 1u);
  LedgerFolder second(folder_, "ns/job", "task", LedgerFolder::Guard::kByTheCaller);
  EXPECT_EQ(second.Open().value(), Ledger(1));
  // The name of a job that nobody has named changes with its manager's process.
  LedgerFolder unnamed(folder_, "unnamed", "", LedgerFolder::Guard::kByTheCaller);
  EXPECT_EQ(unnamed.Open().value(), "");
  ASSERT_TRUE(unnamed.Save(Ledger(2, "default/host-1")).ok());
  EXPECT_EQ(LedgerFolder(folder_, "unnamed", "", LedgerFolder::Guard::kByTheCaller).Open().value(),
            Ledger(2, "default/host-1"));
}

TEST_F(LedgerFolderTest, AnEmptyLockIsFreeInTheEnd) {
  std::filesystem::create_directories(folder_);
  ASSERT_EQ(chmod(folder_.c_str(), 0700), 0);
  Write(File(".lock"), "");
  EXPECT_TRUE(absl::IsUnavailable(Make().Open().status()));
  Age(File(".lock"), 3600);
  EXPECT_TRUE(Make().Open().ok());
}

TEST_F(LedgerFolderTest, ALaterReleasesLedgerIsLeftAsItIs) {
  { ASSERT_TRUE(Make().Open().ok()); }
  const std::string later = absl::StrReplaceAll(Ledger(1), {{"{\"schema\":1", "{\"schema\":7"}});
  Write(File(ledger::kKeptSuffix), later);
  const absl::Status refused = Make().Open().status();
  EXPECT_TRUE(absl::IsFailedPrecondition(refused));
  EXPECT_THAT(refused.message(), HasSubstr("of a later release (schema 7)"));
  EXPECT_EQ(Read(File(ledger::kKeptSuffix)), later);
}

TEST_F(LedgerFolderTest, AnotherJobsLedgerIsLeftAsItIs) {
  { ASSERT_TRUE(Make().Open().ok()); }
  Write(File(ledger::kKeptSuffix), Ledger(1, "ns/other"));
  EXPECT_TRUE(absl::IsFailedPrecondition(Make().Open().status()));
}

TEST_F(LedgerFolderTest, WhatCannotBeReadIsMovedAside) {
  { ASSERT_TRUE(Make().Open().ok()); }
  Write(File(ledger::kKeptSuffix), "{\"schema\":1");
  LedgerFolder next = Make();
  EXPECT_EQ(next.Open().value(), "");
  ASSERT_TRUE(next.Save(Ledger(1)).ok());
  EXPECT_THAT(Names(), ::testing::Contains(HasSubstr(".unreadable-")));
}

TEST_F(LedgerFolderTest, AFolderThatOthersCanWriteToIsRefused) {
  std::filesystem::create_directories(folder_);
  ASSERT_EQ(chmod(folder_.c_str(), 0777), 0);
  const absl::Status refused = Make().Open().status();
  EXPECT_TRUE(absl::IsUnavailable(refused));
  EXPECT_THAT(refused.message(), HasSubstr("others can write to"));
}

TEST_F(LedgerFolderTest, AFolderOfSomebodyElseIsRefused) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can give a folder away";
  std::filesystem::create_directories(folder_);
  ASSERT_EQ(chmod(folder_.c_str(), 0700), 0);
  ASSERT_EQ(chown(folder_.c_str(), 2002, 2002), 0);
  const absl::Status refused = Make().Open().status();
  EXPECT_TRUE(absl::IsUnavailable(refused));
  EXPECT_THAT(refused.message(), HasSubstr("belongs to user 2002, not to this one, 0"));
}

TEST_F(LedgerFolderTest, WhatWasKeptStaysWhereTheDiskIsFull) {
  LedgerFolder folder = Make();
  ASSERT_TRUE(folder.Open().ok());
  ASSERT_TRUE(folder.Save(Ledger(1)).ok());
  signal(SIGXFSZ, SIG_IGN);
  rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  rlimit none = before;
  none.rlim_cur = 1;
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &none), 0);
  const absl::Status full = folder.Save(Ledger(2));
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  EXPECT_THAT(full.message(), HasSubstr("File too large"));
  EXPECT_EQ(Read(File(ledger::kKeptSuffix)), Ledger(1));
  ASSERT_TRUE(folder.Save(Ledger(2)).ok());
  EXPECT_EQ(Read(File(ledger::kKeptSuffix)), Ledger(2));
}

TEST_F(LedgerFolderTest, LinksAndPipesAreNoLedger) {
  { ASSERT_TRUE(Make().Open().ok()); }
  ASSERT_EQ(mkfifo(File(ledger::kKeptSuffix).c_str(), 0600), 0);
  EXPECT_THAT(Make().Open().status().message(), HasSubstr("is not a regular file"));
  ASSERT_EQ(unlink(File(ledger::kKeptSuffix).c_str()), 0);
  ASSERT_EQ(symlink("/etc/passwd", File(ledger::kKeptSuffix).c_str()), 0);
  EXPECT_FALSE(Make().Open().ok());
  std::filesystem::create_directory_symlink(folder_, root_ + "/link");
  EXPECT_FALSE(LedgerFolder(root_ + "/link", "ns/job", "task").Open().ok());
}

TEST_F(LedgerFolderTest, AFolderThatCannotBeWrittenToSaysWhy) {
  if (geteuid() == 0) GTEST_SKIP() << "root writes everywhere";
  LedgerFolder folder = Make();
  ASSERT_TRUE(folder.Open().ok());
  ASSERT_EQ(chmod(folder_.c_str(), 0500), 0);
  EXPECT_THAT(folder.Save(Ledger(1)).message(), HasSubstr("Permission denied"));
  ASSERT_EQ(chmod(folder_.c_str(), 0700), 0);
  EXPECT_TRUE(folder.Save(Ledger(1)).ok());
}

}  // namespace
}  // namespace taskd::manager
