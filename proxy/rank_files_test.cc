#include "proxy/rank_files.h"

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <thread>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proxy/testing/temp_dir.h"

namespace taskd::proxy {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::MarkFiles;
using testing::ReadFile;
using testing::TempDir;
using testing::WriteFile;

constexpr int64_t kNow = 1'745'567'190;

class RankFilesTest : public ::testing::Test {
 protected:
  RankFilesTest() : dir_(temp_ / "profiling", "task"), files_(dir_, 3), folder_(temp_ / "profiling/task/3") {}

  void Append(RankFiles& files, const std::string& lines, int64_t now = kNow) {
    auto target = files.Prepare(now);
    ASSERT_TRUE(target.ok()) << target.status();
    ASSERT_TRUE(files.Append(lines).ok());
  }

  TempDir temp_;
  ProfilingDir dir_;
  RankFiles files_;
  std::string folder_;
};

TEST_F(RankFilesTest, MakesFoldersAndAFileNamedByTheSecond) {
  Append(files_, "a\n");
  Append(files_, "b\n", kNow + 100);
  EXPECT_EQ(ReadFile(folder_ + "/1745567190"), "a\nb\n");
}

TEST_F(RankFilesTest, AppendsToTheNewestFileOfAnEarlierLife) {
  WriteFile(folder_ + "/1745560000", "older\n");
  WriteFile(folder_ + "/1745560001", "old\n");
  WriteFile(folder_ + "/17455600011", "eleven digits\n");
  WriteFile(folder_ + "/1745569999.bak", "not a number\n");
  Append(files_, "new\n");
  EXPECT_EQ(ReadFile(folder_ + "/1745560001"), "old\nnew\n");
}

TEST_F(RankFilesTest, BeginsANewFileAfterATornEnd) {
  WriteFile(folder_ + "/1745567190", "whole\ntorn");
  Append(files_, "new\n");
  EXPECT_THAT(MarkFiles(folder_), ElementsAre("1745567190", "1745567191"));
  EXPECT_EQ(ReadFile(folder_ + "/1745567191"), "new\n");
}

TEST_F(RankFilesTest, BeginsANewFileAboveTheLimitAlsoWithinOneSecond) {
  const std::string half(kMaxMarkFileBytes / 2, 'x');
  for (int i = 0; i < 7; ++i) Append(files_, half + "\n");
  EXPECT_THAT(MarkFiles(folder_), ElementsAre("1745567190", "1745567191", "1745567192", "1745567193"));
}

TEST_F(RankFilesTest, FindsAgainWhatWasRemovedOrTruncated) {
  Append(files_, "a\n");
  ASSERT_EQ(unlink((folder_ + "/1745567190").c_str()), 0);
  Append(files_, "b\n", kNow + 1);
  EXPECT_EQ(ReadFile(folder_ + "/1745567191"), "b\n");
  std::filesystem::remove_all(temp_ / "profiling");
  Append(files_, "c\n", kNow + 2);
  EXPECT_EQ(ReadFile(folder_ + "/1745567192"), "c\n");
}

TEST_F(RankFilesTest, RefusesSymbolicLinksAtEveryLevel) {
  const std::string elsewhere = temp_ / "elsewhere";
  std::filesystem::create_directories(elsewhere);
  for (const char* level : {"profiling", "profiling/task", "profiling/task/3"}) {
    std::filesystem::remove_all(temp_ / "profiling");
    std::filesystem::path link = temp_ / level;
    std::filesystem::create_directories(link.parent_path());
    std::filesystem::create_symlink(elsewhere, link);
    RankFiles files(dir_, 3);
    auto target = files.Prepare(kNow);
    EXPECT_THAT(std::string(target.status().message()), HasSubstr("symbolic link")) << level;
  }
  EXPECT_TRUE(std::filesystem::is_empty(elsewhere));
}

TEST_F(RankFilesTest, NeverWritesThroughALinkThatLooksLikeAMarkFile) {
  WriteFile(temp_ / "victim", "untouched\n");
  std::filesystem::create_directories(folder_);
  std::filesystem::create_symlink(temp_ / "victim", folder_ + "/1745567190");
  Append(files_, "a\n");
  EXPECT_EQ(ReadFile(temp_ / "victim"), "untouched\n");
  EXPECT_EQ(ReadFile(folder_ + "/1745567191"), "a\n");
}

TEST_F(RankFilesTest, BeginsANewFileAfterWhateverIsNoFile) {
  for (const char* way : {"fifo", "folder", "link", "hard link"}) {
    SCOPED_TRACE(way);
    const std::string what = way;
    std::filesystem::remove_all(folder_);
    WriteFile(folder_ + "/1745560000", "old\n");
    WriteFile(temp_ / "victim", "untouched\n");
    const std::string newest = folder_ + "/1745569999";
    if (what == "fifo") {
      ASSERT_EQ(mkfifo(newest.c_str(), 0666), 0);
    }
    if (what == "folder") std::filesystem::create_directories(newest);
    if (what == "link") std::filesystem::create_symlink(temp_ / "victim", newest);
    if (what == "hard link") std::filesystem::create_hard_link(temp_ / "victim", newest);
    RankFiles files(dir_, 3);
    std::vector<std::string> lines;
    ASSERT_TRUE(files.VisitNewestLines([&](std::string_view line) { lines.emplace_back(line); }).ok());
    if (what != "hard link") {
      EXPECT_THAT(lines, ElementsAre("old")) << "what a proxy that takes over reads back";
    }
    EXPECT_FALSE(*files.SettleInterruptedWrite(1745569999, 0, 5));
    Append(files, "a\n", kNow);
    EXPECT_EQ(ReadFile(folder_ + "/1745570000"), "a\n");
    EXPECT_EQ(ReadFile(temp_ / "victim"), "untouched\n");
  }
}

// Ten digits end with 9999999999, and whatever has that name must not end the recording.
TEST_F(RankFilesTest, NamesNeverGetElevenDigits) {
  WriteFile(folder_ + "/1745560000", "old\n");
  WriteFile(folder_ + "/9999999998", "torn");
  std::filesystem::create_directories(folder_ + "/9999999999");
  Append(files_, "a\n");
  EXPECT_EQ(ReadFile(folder_ + "/1745567190"), "a\n");
  Append(files_, "b\n");
  EXPECT_EQ(ReadFile(folder_ + "/1745567190"), "a\nb\n");
  Append(files_, std::string(kMaxMarkFileBytes, 'x') + "\n");
  Append(files_, "c\n");
  EXPECT_EQ(ReadFile(folder_ + "/1745567191"), "c\n");
  RankFiles next(dir_, 3);
  Append(next, "d\n", kNow - 50);
  EXPECT_EQ(ReadFile(folder_ + "/1745567192"), "d\n");
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder_)) {
    EXPECT_EQ(entry.path().filename().native().size(), 10u) << entry.path();
  }
}

TEST_F(RankFilesTest, TheLastNameIsAFileLikeAnyOther) {
  WriteFile(folder_ + "/9999999999", "old\n");
  Append(files_, "a\n");
  EXPECT_EQ(ReadFile(folder_ + "/9999999999"), "old\na\n");
}

// From now on this thread's ftruncate() fails as on a disk that is in trouble.
bool RefuseTruncation() {
  sock_filter refuse[] = {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
                          BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_ftruncate, 0, 1),
                          BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EIO),
                          BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
  const sock_fprog program = {sizeof(refuse) / sizeof(*refuse), refuse};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

// The disk is full in the middle of a write, and then does not even take back what it has.
TEST_F(RankFilesTest, WholeLinesOfAWriteThatFailedAreNotWrittenTwice) {
  Append(files_, "old\n");
  ASSERT_TRUE(files_.Prepare(kNow).ok());
  rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = signal(SIGXFSZ, SIG_IGN);
  const rlimit full = {7, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &full), 0);
  bool refused = false;
  absl::Status written, prepared;
  std::thread([&] {
    refused = RefuseTruncation();
    if (!refused) return;
    written = files_.Append("a\nb\n");
    prepared = files_.Prepare(kNow).status();
  }).join();
  setrlimit(RLIMIT_FSIZE, &before);
  signal(SIGXFSZ, handler);
  if (!refused) GTEST_SKIP() << "no system call filters here";
  EXPECT_FALSE(written.ok());
  EXPECT_FALSE(prepared.ok()) << "nothing goes elsewhere meanwhile";
  EXPECT_EQ(ReadFile(folder_ + "/1745567190"), "old\na\nb");
  Append(files_, "a\nb\n");  // it is better
  EXPECT_EQ(ReadFile(folder_ + "/1745567190"), "old\na\nb\n");
  EXPECT_THAT(MarkFiles(folder_), ElementsAre("1745567190"));
}

TEST_F(RankFilesTest, SettlesAWriteThatWasNotDone) {
  WriteFile(folder_ + "/1745567190", "old\n");
  auto settled = files_.SettleInterruptedWrite(1745567190, 4, 100);
  ASSERT_TRUE(settled.ok()) << settled.status();
  EXPECT_FALSE(*settled);
  EXPECT_FALSE(*files_.SettleInterruptedWrite(1700000000, 0, 5)) << "its file was never made";
}

// One that was killed while its storage hangs lives on in the kernel, and may still write.
TEST_F(RankFilesTest, SettlesNothingWhileAnotherProxyHasTheFile) {
  Append(files_, "old\n");
  RankFiles next(dir_, 3);
  EXPECT_TRUE(absl::IsUnavailable(next.SettleInterruptedWrite(kNow, 4, 4).status()));
  ASSERT_TRUE(files_.Append("new\n").ok());
  EXPECT_TRUE(absl::IsUnavailable(next.SettleInterruptedWrite(kNow, 4, 4).status()));
  EXPECT_TRUE(*files_.SettleInterruptedWrite(kNow, 4, 4)) << "its own lock is in nobody's way";
}

TEST_F(RankFilesTest, SettlesAWriteThatWasDone) {
  WriteFile(folder_ + "/1745567190", "old\nnew\n");
  EXPECT_TRUE(*files_.SettleInterruptedWrite(1745567190, 4, 4));
  EXPECT_EQ(ReadFile(folder_ + "/1745567190"), "old\nnew\n");
}

TEST_F(RankFilesTest, TakesAPartOfAWriteBack) {
  WriteFile(folder_ + "/1745567190", "old\nne");
  EXPECT_FALSE(*files_.SettleInterruptedWrite(1745567190, 4, 4));
  EXPECT_EQ(ReadFile(folder_ + "/1745567190"), "old\n");
}

TEST_F(RankFilesTest, BelievesNoGarbageAboutTheLastWrite) {
  WriteFile(folder_ + "/1745567190", "old\n");
  for (auto [file, offset, bytes] : {std::tuple<uint64_t, int64_t, int64_t>{UINT64_MAX, 0, 1},
                                     {1745567190, -1, 1},
                                     {1745567190, 0, 0},
                                     {1745567190, 0, INT64_MAX}}) {
    EXPECT_TRUE(absl::IsInvalidArgument(files_.SettleInterruptedWrite(file, offset, bytes).status()));
  }
  EXPECT_EQ(ReadFile(folder_ + "/1745567190"), "old\n");
}

TEST_F(RankFilesTest, VisitsTheTwoNewestFilesInOrder) {
  WriteFile(folder_ + "/1745560000", "0\n");
  WriteFile(folder_ + "/1745560001", "1\n2\n");
  WriteFile(folder_ + "/1745560002", "3\ntorn");
  std::vector<std::string> lines;
  ASSERT_TRUE(files_.VisitNewestLines([&](std::string_view line) { lines.emplace_back(line); }).ok());
  EXPECT_THAT(lines, ElementsAre("1", "2", "3"));
}

TEST(CheckTaskFolder, RefusesPaths) {
  EXPECT_TRUE(CheckTaskFolder("MINDX_TASK_ID", "default_task_id_1745567190").ok());
  for (const char* bad : {"", ".", "..", ".hidden", "a/b", "/etc"})
    EXPECT_FALSE(CheckTaskFolder("MINDX_TASK_ID", bad).ok()) << bad;
}

TEST(ProfilingDir, WritesRankInfoWhateverLiesThere) {
  TempDir temp;
  ProfilingDir dir(temp / "p", "t");
  std::filesystem::create_directories(temp / "p/t/0");
  ASSERT_EQ(mkfifo((temp / "p/t/0/.rank.json.new").c_str(), 0666), 0);
  ASSERT_EQ(mkfifo((temp / "p/t/0/.rank.json").c_str(), 0666), 0);
  ASSERT_TRUE(dir.WriteRankInfo(0, "{}\n").ok());
  EXPECT_EQ(ReadFile(temp / "p/t/0/.rank.json"), "{}\n");
}

TEST(ProfilingDir, WritesRankInfo) {
  TempDir temp;
  ProfilingDir dir(temp / "p/", "t");
  ASSERT_TRUE(dir.WriteRankInfo(0, "{}\n").ok());
  EXPECT_EQ(ReadFile(temp / "p/t/0/.rank.json"), "{}\n");
  EXPECT_THAT(MarkFiles(temp / "p/t/0"), IsEmpty());
}

}  // namespace
}  // namespace taskd::proxy
