#include "agent/run/failure_report.h"

#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "common/log.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace taskd::run {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

RankFailure Failure() {
  RankFailure failure;
  failure.exit.local_rank = 3;
  failure.exit.rank = 11;
  failure.exit.pid = 4711;
  failure.exit.code = 17;
  failure.exit.time_ns = 1'700'000'000'123'000'000;
  failure.exit.error_message = "ValueError: no such thing\nand more";
  failure.exit.error_json = R"({"message":{"message":"ValueError: no","extraInfo":{"py_callstack":"x"}}})";
  failure.exit.last_lines = {"one", "two"};
  failure.host = "node-b";
  failure.group_rank = 1;
  failure.log_folder = "/logs/none_x/attempt_0/3";
  return failure;
}

TEST(FailureReportTest, NamesTheFirstFailure) {
  RankFailure other = Failure();
  other.exit.rank = 12;
  other.exit.local_rank = 4;
  other.exit.signal = SIGSEGV;
  other.exit.code = 139;
  const std::string report = FailureReport("train.py", {Failure(), other});
  EXPECT_THAT(report,
              AllOf(HasSubstr("train.py FAILED"), HasSubstr("rank:        11 (local rank 3)"),
                    HasSubstr("node:        node-b (node 1)"), HasSubstr("pid:         4711"),
                    HasSubstr("end:         exit code 17"), HasSubstr("error:       ValueError: no such thing\n"),
                    HasSubstr("\n               and more\n"), HasSubstr("  | one\n  | two\n")));
  EXPECT_THAT(report, HasSubstr("logs:        /logs/none_x/attempt_0/3"));
  EXPECT_THAT(report, HasSubstr("rank 12 (local rank 4) on node-b (node 1), pid 4711: SIGSEGV (signal 11)"));
  EXPECT_LT(report.find("rank:        11"), report.find("rank 12"));
  EXPECT_TRUE(report.ends_with('\n'));
  EXPECT_THAT(FailureReport("x", {Failure()}), Not(HasSubstr("Other failures")));
}

TEST(FailureReportTest, EqualFailuresOfANodeAreOneLine) {
  std::vector<RankFailure> failures;
  for (int rank : {0, 1, 2, 3, 5, 9, 4}) {
    failures.push_back(Failure());
    RankFailure& one = failures.back();
    one.exit.rank = rank;
    one.exit.pid = 100 + rank;
    one.exit.time_ns += rank * 1'000'000;
    one.exit.error_message = "RuntimeError: CUDA error\nat 0x" + std::to_string(rank);
    if (rank == 9) one.host = "node-c";
    if (rank == 4) one.exit.error_message = "KeyError";
  }
  const std::string report = FailureReport("x", failures);
  EXPECT_THAT(report, HasSubstr("rank:        0 (local rank 3)\n"));
  EXPECT_THAT(report, ContainsRegex("\n  ranks 1-3, 5 on node-b \\(node 1\\), pids 101-103, 105: exit code 17, "
                                    "[^ ]*:20\\.124[^ ]* to [^ ]*:20\\.128[^ ]*, RuntimeError: CUDA error\n"
                                    "  rank 9 \\(local rank 3\\) on node-c \\(node 1\\), pid 109: exit code 17, [^ ]*, "
                                    "RuntimeError: CUDA error\n"
                                    "  rank 4 \\(local rank 3\\) on node-b \\(node 1\\), pid 104: exit code 17, [^ ]*, "
                                    "KeyError\n"));
}

TEST(FailureReportTest, StderrThatWasNotRead) {
  EXPECT_THAT(FailureReport("x", {Failure()}), Not(HasSubstr("  stderr:")));
  RankFailure failure = Failure();
  failure.exit.last_lines.clear();
  failure.exit.stderr_unread = true;
  EXPECT_THAT(FailureReport("x", {failure}), HasSubstr("  stderr:      went past the launcher; with --tee 2 or "
                                                       "--redirects 2 its last lines stand here\n"));
}

TEST(FailureReportTest, NamesWhoKilledARank) {
  RankFailure failure = Failure();
  failure.exit.signal = SIGKILL;
  failure.exit.code = 137;
  failure.exit.killed_by = "killed by the kernel: out of memory (limit 300 MiB)";
  EXPECT_THAT(FailureReport("x", {failure, failure}),
              AllOf(HasSubstr("end:         killed by the kernel: out of memory (limit 300 MiB)\n"),
                    HasSubstr("pid 4711: killed by the kernel: out of memory (limit 300 MiB), ")));
}

TEST(FailureReportTest, WithoutErrorFileAndLines) {
  RankFailure failure = Failure();
  failure.exit.error_message.clear();
  failure.exit.error_json.clear();
  failure.exit.last_lines.clear();
  failure.log_folder.clear();
  const std::string report = FailureReport("x", {failure});
  EXPECT_THAT(report,
              AllOf(HasSubstr("none was written"), HasSubstr("logs:        none"), Not(HasSubstr("last lines"))));
}

TEST(FailureReportTest, HostileTextIsHarmless) {
  RankFailure failure = Failure();
  failure.exit.error_message = std::string("\x1b[2J\r\0x", 7) + std::string(100000, 'm');
  failure.exit.last_lines = {"\x1b]0;title\a", std::string(100000, 'l')};
  const std::string report = FailureReport("x", {failure});
  for (char c : report) EXPECT_TRUE(c == '\n' || static_cast<unsigned char>(c) >= 0x20);
  EXPECT_LT(report.size(), 10000u);
}

class ErrorFileTest : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/taskd-error-file-XXXXXX";
    ASSERT_NE(mkdtemp(name), nullptr);
    folder_ = name;
    path_ = folder_ + "/error.json";
  }
  void TearDown() override { fs::remove_all(folder_); }
  nlohmann::json Written(const RankFailure& failure) {
    absl::Status status = WriteErrorFile(path_, failure);
    EXPECT_TRUE(status.ok()) << status;
    std::ifstream file(path_);
    return nlohmann::json::parse(file, nullptr, false);
  }

  std::string folder_;
  std::string path_;
};

TEST_F(ErrorFileTest, CopiesAndFillsIn) {
  std::ofstream(path_) << std::string(5000, 'x');
  nlohmann::json error = Written(Failure());
  EXPECT_EQ(error["message"]["message"], "ValueError: no");
  EXPECT_EQ(error["message"]["extraInfo"]["py_callstack"], "x");
  EXPECT_EQ(error["message"]["errorCode"], 17);
  RankFailure plain = Failure();
  plain.exit.error_json = R"({"message":"text","other":1})";
  error = Written(plain);
  EXPECT_EQ(error["message"]["message"], "text");
  EXPECT_EQ(error["message"]["errorCode"], 17);
  EXPECT_EQ(error["other"], 1);
}

TEST_F(ErrorFileTest, MakesOneUp) {
  for (const char* text : {"", "no json", "[1]", "{}", "{\"message\""}) {
    RankFailure failure = Failure();
    failure.exit.error_json = text;
    failure.exit.error_message.clear();
    failure.exit.signal = SIGKILL;
    failure.exit.code = 137;
    nlohmann::json error = Written(failure);
    EXPECT_THAT(error["message"]["message"].get<std::string>(),
                AllOf(HasSubstr("rank 11"), HasSubstr("node-b"), HasSubstr("SIGKILL")));
    EXPECT_EQ(error["message"]["errorCode"], 137);
    EXPECT_EQ(error["message"]["extraInfo"]["timestamp"], "1700000000");
  }
}

TEST_F(ErrorFileTest, DeepAndBrokenTextIsNoDanger) {
  RankFailure failure = Failure();
  const std::string deep = std::string(400000, '[') + std::string(400000, ']');
  failure.exit.error_json = "{\"message\":\"m\\u0000\xff\",\"deep\":" + deep + "}";
  nlohmann::json error = Written(failure);
  EXPECT_EQ(error["message"]["errorCode"], 17);
}

TEST_F(ErrorFileTest, WhereItCannotBeWritten) {
  absl::Status status = WriteErrorFile("/no/such/folder/error.json", Failure());
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("/no/such/folder/error.json"), HasSubstr("No such file")));
}

// Opening the pipe would wait for its reader.
TEST_F(ErrorFileTest, IsNoPipe) {
  ASSERT_EQ(mkfifo(path_.c_str(), 0600), 0);
  EXPECT_THAT(std::string(WriteErrorFile(path_, Failure()).message()), HasSubstr("is not a regular file"));
}

TEST_F(ErrorFileTest, MayHaveSeveralNames) {
  std::ofstream(folder_ + "/shared") << "old";
  fs::create_symlink("shared", path_);
  EXPECT_EQ(Written(Failure())["message"]["errorCode"], 17);
  fs::remove(path_);
  fs::create_hard_link(folder_ + "/shared", path_);
  EXPECT_EQ(Written(Failure())["message"]["errorCode"], 17);
}

TEST_F(ErrorFileTest, MayBeStderr) {
  ::testing::internal::CaptureStderr();
  EXPECT_TRUE(WriteErrorFile("/dev/stderr", Failure()).ok());
  FlushLines();
  EXPECT_EQ(nlohmann::json::parse(::testing::internal::GetCapturedStderr(), nullptr, false)["message"]["errorCode"],
            17);
}

TEST(ExitJsonTest, ThereAndBack) {
  process::WorkerExit exit = Failure().exit;
  exit.signal = 11;
  exit.code = 139;
  exit.killed_by = "SIGKILL from outside";
  absl::StatusOr<process::WorkerExit> back = DecodeExit(EncodeExit(exit));
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(back->killed_by, exit.killed_by);
  EXPECT_EQ(back->local_rank, 3);
  EXPECT_EQ(back->rank, 11);
  EXPECT_EQ(back->pid, 4711);
  EXPECT_EQ(back->code, 139);
  EXPECT_EQ(back->signal, 11);
  EXPECT_EQ(back->time_ns, exit.time_ns);
  EXPECT_EQ(back->error_message, exit.error_message);
  EXPECT_EQ(back->error_json, exit.error_json);
  EXPECT_EQ(back->last_lines, exit.last_lines);
  EXPECT_FALSE(back->stderr_unread);
  exit.stderr_unread = true;
  EXPECT_TRUE(DecodeExit(EncodeExit(exit))->stderr_unread);
}

TEST(ExitJsonTest, IsBounded) {
  for (char c : {'a', '\x01', '\xff', '"'}) {
    process::WorkerExit exit = Failure().exit;
    exit.error_message = std::string(1 << 20, c);
    exit.error_json = std::string(1 << 20, c);
    exit.last_lines = std::vector<std::string>(20, std::string(4096, c));
    const std::string text = EncodeExit(exit);
    EXPECT_LE(text.size(), kMaxEncodedExit);
    EXPECT_TRUE(DecodeExit(text).ok());
  }
  process::WorkerExit exit = Failure().exit;
  exit.last_lines = std::vector<std::string>(20, "x");
  exit.last_lines.back() = "newest";
  EXPECT_EQ(DecodeExit(EncodeExit(exit))->last_lines.back(), "newest");
}

TEST(ExitJsonTest, RefusesWhatIsNone) {
  const nlohmann::json good = nlohmann::json::parse(EncodeExit(Failure().exit));
  for (const nlohmann::json& killed_by : {nlohmann::json(5), nlohmann::json(std::string(1000, 'x'))}) {
    nlohmann::json bad = good;
    bad["killed_by"] = killed_by;
    EXPECT_THAT(std::string(DecodeExit(bad.dump()).status().message()), HasSubstr("killed_by"));
  }
  EXPECT_TRUE(DecodeExit(good.dump()).ok());
  nlohmann::json unread = good;
  unread["stderr_unread"] = "yes";
  EXPECT_THAT(std::string(DecodeExit(unread.dump()).status().message()), HasSubstr("stderr_unread"));
  for (const char* text : {"", "null", "[]", "{}", "{", "5"}) {
    EXPECT_EQ(DecodeExit(text).status().code(), absl::StatusCode::kInvalidArgument) << text;
  }
  for (auto& [key, value] : good.items()) {
    nlohmann::json bad = good;
    bad[key] = nlohmann::json::object();
    EXPECT_THAT(std::string(DecodeExit(bad.dump()).status().message()), HasSubstr(key));
    bad.erase(key);
    EXPECT_FALSE(DecodeExit(bad.dump()).ok()) << key;
  }
  for (const char* key : {"local_rank", "rank", "pid", "code", "signal", "time_ns"}) {
    nlohmann::json bad = good;
    bad[key] = -1;
    EXPECT_FALSE(DecodeExit(bad.dump()).ok()) << key;
    bad[key] = 1.5;
    EXPECT_FALSE(DecodeExit(bad.dump()).ok()) << key;
  }
  nlohmann::json more = good;
  more["later"] = 1;
  EXPECT_TRUE(DecodeExit(more.dump()).ok());
}

}  // namespace
}  // namespace taskd::run
