#include "agent/run/termination_log.h"

#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace taskd::run {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

RankFailure Failure() {
  RankFailure failure;
  failure.exit.local_rank = 3;
  failure.exit.rank = 11;
  failure.exit.code = 17;
  failure.exit.error_message = "ValueError: no such thing\nand more";
  failure.exit.last_lines = {"one", "two"};
  failure.host = "node-b";
  failure.group_rank = 1;
  return failure;
}

TEST(TerminationMessageTest, TheReasonComesFirst) {
  RankFailure other = Failure();
  other.exit.rank = 12;
  other.exit.signal = SIGSEGV;
  other.exit.code = 139;
  EXPECT_EQ(TerminationMessage("no restart is left", {Failure(), other}),
            "First failure: rank 11 (local rank 3) on node-b (node 1): exit code 17\n"
            "ValueError: no such thing\nand more\n"
            "Its last lines on stderr:\n| one\n| two\n"
            "Other failures:\nrank 12 (local rank 3) on node-b (node 1): SIGSEGV (signal 11)\n"
            "no restart is left\n");
}

TEST(TerminationMessageTest, EqualFailuresAreOneLine) {
  std::vector<RankFailure> failures(12, Failure());
  for (int i = 0; i < 12; ++i) failures[static_cast<size_t>(i)].exit.rank = i;
  failures.push_back(Failure());
  failures.back().exit.code = 1;
  EXPECT_THAT(TerminationMessage("", failures),
              HasSubstr("Other failures:\nranks 1-11 on node-b (node 1): exit code 17\n"
                        "rank 11 (local rank 3) on node-b (node 1): exit code 1\n"));
}

TEST(TerminationMessageTest, WithoutAFailureTheLineAlone) {
  EXPECT_EQ(TerminationMessage("node 1 (b) is lost", {}), "node 1 (b) is lost\n");
  EXPECT_EQ(TerminationMessage("", {}), "");
}

// Kubelet cuts the rest away: of many lines the newest stay.
TEST(TerminationMessageTest, WhatIsLongKeepsItsReasonAndItsNewestLines) {
  RankFailure failure = Failure();
  failure.exit.error_message = std::string(100000, 'm');
  failure.exit.last_lines.assign(20, std::string(1000, 'l'));
  failure.exit.last_lines.back() = "the newest";
  std::vector<RankFailure> failures(1000, failure);
  for (size_t i = 0; i < failures.size(); ++i) failures[i].exit.code = static_cast<int>(i);
  const std::string text = TerminationMessage("the end", failures);
  EXPECT_LE(text.size(), kMaxTerminationLogBytes);
  EXPECT_THAT(text,
              AllOf(StartsWith("First failure: rank 11"), HasSubstr("| the newest\n"), HasSubstr("and 991 more")));
  EXPECT_TRUE(text.ends_with("the end\n"));
}

TEST(TerminationMessageTest, HostileTextIsHarmless) {
  RankFailure failure = Failure();
  failure.host = "n\x1b[2J\nforged";
  failure.exit.error_message = std::string("\x1b[2J\r\0x\nFirst failure: rank 0", 28);
  failure.exit.last_lines = {"\x1b]0;title\a", "a\nb"};
  const std::string text = TerminationMessage("x\x07y", {failure});
  for (char c : text) EXPECT_TRUE(c == '\n' || static_cast<unsigned char>(c) >= 0x20);
}

class TerminationLogTest : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/taskd-termination-log-XXXXXX";
    ASSERT_NE(mkdtemp(name), nullptr);
    folder_ = name;
    path_ = folder_ + "/termination-log";
  }
  void TearDown() override { fs::remove_all(folder_); }
  std::string Read() const {
    std::ifstream file(path_, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }

  std::string folder_;
  std::string path_;
};

TEST_F(TerminationLogTest, ReplacesWhatIsThere) {
  std::ofstream(path_) << std::string(9000, 'x');
  WriteTerminationLog("short\n", path_);
  EXPECT_EQ(Read(), "short\n");
}

TEST_F(TerminationLogTest, IsCutAtAWholeCharacter) {
  std::ofstream(path_) << "";
  WriteTerminationLog(std::string(kMaxTerminationLogBytes - 2, 'x') + "\xE2\x82\xAC more", path_);
  EXPECT_EQ(Read(), std::string(kMaxTerminationLogBytes - 2, 'x'));
  WriteTerminationLog(std::string(kMaxTerminationLogBytes - 3, 'x') + "\xE2\x82\xAC more", path_);
  EXPECT_EQ(Read(), std::string(kMaxTerminationLogBytes - 3, 'x') + "\xE2\x82\xAC");
}

TEST_F(TerminationLogTest, NothingIsMadeWhereThereIsNone) {
  WriteTerminationLog("text", path_);
  EXPECT_FALSE(fs::exists(path_));
}

// Each of these would wait, or write where nobody asked for it.
TEST_F(TerminationLogTest, OnlyARegularFileIsWritten) {
  ASSERT_EQ(::mkfifo(path_.c_str(), 0600), 0);
  WriteTerminationLog("text", path_);
  fs::remove(path_);
  std::ofstream(folder_ + "/other") << "mine";
  fs::create_symlink(folder_ + "/other", path_);
  WriteTerminationLog("text", path_);
  EXPECT_EQ(Read(), "mine");
  fs::remove(path_);
  fs::create_directory(path_);
  WriteTerminationLog("text", path_);
}

}  // namespace
}  // namespace taskd::run
