#include "common/log_file.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <regex>
#include <set>
#include <sstream>
#include <thread>

#include "common/testing/deadline.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace taskd {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;
using ::taskd::testing::WaitUntil;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::MatchesRegex;
using ::testing::SizeIs;

// 2026-01-02T03:04:05.678Z
const LogFile::Clock::time_point kNow{milliseconds(1767323045678)};

class LogFileTest : public ::testing::Test {
 protected:
  LogFileTest() {
    char name[] = "/tmp/log_file_test.XXXXXX";
    folder_ = mkdtemp(name);
  }
  ~LogFileTest() override { std::filesystem::remove_all(folder_); }

  std::set<std::string> Files(const std::string& in = "") const {
    std::set<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(folder_ + in)) names.insert(entry.path().filename());
    return names;
  }
  std::string Text(const std::string& name) const {
    std::ostringstream text;
    text << std::ifstream(folder_ + "/" + name).rdbuf();
    return text.str();
  }
  mode_t Mode(const std::string& name) const {
    struct stat status;
    return stat((folder_ + "/" + name).c_str(), &status) == 0 ? status.st_mode & 0777 : 0;
  }

  std::string folder_;
};

// contract: §1.6 and its implementation: the folder is made with 0750, the file with 0640.
TEST_F(LogFileTest, MakesFolderAndFile) {
  umask(0);
  LogFile file(folder_ + "/a/logs/", "manager.log");
  ASSERT_TRUE(file.Write("one\n").ok());
  LogFile again(folder_ + "/a/logs", "manager.log");
  ASSERT_TRUE(again.Write("two\n").ok());
  EXPECT_EQ(Text("a/logs/manager.log"), "one\ntwo\n");
  EXPECT_EQ(Mode("a/logs"), 0750u);
  EXPECT_EQ(Mode("a/logs/manager.log"), 0640u);
}

// contract: §1.6, "10 backups"; its implementation: named by the UTC time in ms, mode 0400.
TEST_F(LogFileTest, PutsAFullFileAside) {
  LogFile file(folder_, "manager.log", /*max_bytes=*/8);
  ASSERT_TRUE(file.Write("longer than the limit\n", kNow).ok()) << "a first line goes into it whatever its length";
  ASSERT_TRUE(file.Write("two\n", kNow).ok());
  ASSERT_TRUE(file.Write("3\n", kNow).ok());
  EXPECT_THAT(Files(), ElementsAre("manager-2026-01-02T03-04-05.678.log", "manager.log"));
  EXPECT_EQ(Text("manager.log"), "two\n3\n");
  EXPECT_EQ(Text("manager-2026-01-02T03-04-05.678.log"), "longer than the limit\n");
  EXPECT_EQ(Mode("manager-2026-01-02T03-04-05.678.log"), 0400u);
  for (int i = 1; i <= 20; ++i) ASSERT_TRUE(file.Write("12345678", kNow + milliseconds(i)).ok());
  EXPECT_THAT(Files(), SizeIs(1 + LogFile::kKept));
  EXPECT_EQ(*Files().begin(), "manager-2026-01-02T03-04-05.689.log") << "the oldest go";
}

// contract: §1.6, "7 days".
TEST_F(LogFileTest, RemovesOldOnesOfItsOwnAlone) {
  for (const char* other :
       {"manager-2020-01-01T00-00-00.000.txt", "manager-2020-01-01.log", "proxy-2020-01-01T00-00-00.000.log"}) {
    std::ofstream(folder_ + "/" + other) << "theirs";
  }
  LogFile file(folder_, "manager.log", /*max_bytes=*/4);
  for (int days : {0, 1, 7, 8}) ASSERT_TRUE(file.Write("1234", kNow + hours(24 * days)).ok());
  EXPECT_THAT(Files(),
              ElementsAre("manager-2020-01-01.log", "manager-2020-01-01T00-00-00.000.txt",
                          "manager-2026-01-03T03-04-05.678.log", "manager-2026-01-09T03-04-05.678.log",
                          "manager-2026-01-10T03-04-05.678.log", "manager.log", "proxy-2020-01-01T00-00-00.000.log"));
}

TEST_F(LogFileTest, TwoProcessesShareAFile) {
  LogFile one(folder_, "manager.log", /*max_bytes=*/8);
  LogFile other(folder_, "manager.log", /*max_bytes=*/8);
  ASSERT_TRUE(one.Write("1111111\n", kNow).ok());
  ASSERT_TRUE(one.Write("222\n", kNow).ok());
  ASSERT_TRUE(other.Write("333\n", kNow).ok());
  EXPECT_EQ(Text("manager.log"), "222\n333\n") << "it wrote to the one put aside, or put a fresh one aside";
}

TEST_F(LogFileTest, AFolderThatIsRemovedIsMadeAgain) {
  LogFile file(folder_ + "/logs", "manager.log");
  std::filesystem::remove_all(folder_ + "/logs");
  EXPECT_TRUE(file.Write("one\n").ok());
  EXPECT_EQ(Text("logs/manager.log"), "one\n");
}

// contract: §1.6; upstream refuses a link, too.
TEST_F(LogFileTest, WhatIsNoFileOfOurs) {
  std::filesystem::create_directory(folder_ + "/theirs");
  std::filesystem::create_directory_symlink(folder_ + "/theirs", folder_ + "/link");
  EXPECT_THAT(std::string(LogFile(folder_ + "/link/", "a.log").Write("mine\n").message()),
              HasSubstr(folder_ + "/link"));
  std::ofstream(folder_ + "/file") << "theirs";
  std::filesystem::create_symlink(folder_ + "/file", folder_ + "/a.log");
  EXPECT_FALSE(LogFile(folder_, "a.log").Write("mine\n").ok());
  ASSERT_EQ(mkfifo((folder_ + "/b.log").c_str(), 0600), 0);
  EXPECT_FALSE(LogFile(folder_, "b.log").Write("mine\n").ok()) << "nobody reads it";
  EXPECT_FALSE(LogFile(folder_ + "/file", "a.log").Write("mine\n").ok());
  EXPECT_FALSE(LogFile("/proc/nonexistent/logs", "a.log").Write("mine\n").ok());
  EXPECT_EQ(Text("file"), "theirs");
  EXPECT_THAT(Files("/theirs"), IsEmpty());
}

// contract: §1.6, names, defaults, and that a level is a name.
TEST(LogSettingsTest, Variables) {
  LogSettings none = ReadLogSettings({});
  EXPECT_EQ(none.stderr_level, std::nullopt);
  EXPECT_EQ(none.folder, "") << "no folder in whatever directory we are, unless somebody asks for one";
  EXPECT_EQ(none.file_level, spdlog::level::info);

  LogSettings some = ReadLogSettings({{"TASKD_LOG_PATH", "/var/log/taskd"},
                                      {"TASKD_STD_LOG_LEVEL", "ERROR"},
                                      {"TASKD_FILE_LOG_LEVEL", "debug"},
                                      {"TASKD_LOG_STDOUT", "True"}});
  EXPECT_EQ(some.stderr_level, spdlog::level::err);
  EXPECT_EQ(some.file_level, spdlog::level::debug);
  EXPECT_EQ(some.folder, "/var/log/taskd");
  EXPECT_THAT(some.problems, IsEmpty());

  EXPECT_EQ(ReadLogSettings({{"TASKD_FILE_LOG_LEVEL", "INFO"}}).folder, "taskd_log");
  EXPECT_EQ(ReadLogSettings({{"TASKD_LOG_STDOUT", "False"}, {"TASKD_STD_LOG_LEVEL", "DEBUG"}}).stderr_level,
            spdlog::level::off);
}

TEST(LogSettingsTest, WhatSaysNothingIsSaid) {
  LogSettings wrong =
      ReadLogSettings({{"TASKD_STD_LOG_LEVEL", "LOUD"}, {"TASKD_FILE_LOG_LEVEL", "2"}, {"TASKD_LOG_STDOUT", "no"}});
  EXPECT_EQ(wrong.stderr_level, std::nullopt);
  EXPECT_EQ(wrong.file_level, spdlog::level::info);
  EXPECT_THAT(wrong.problems,
              ElementsAre(HasSubstr("TASKD_STD_LOG_LEVEL is 'LOUD'"), HasSubstr("TASKD_LOG_STDOUT is 'no'"),
                          HasSubstr("TASKD_FILE_LOG_LEVEL is '2'")));
}

// What the default logger is for the length of a test.
class DefaultLog {
 public:
  DefaultLog(const std::string& role, const Environment& environment) {
    ::testing::internal::CaptureStderr();
    InitLog(role);
    TakeLogVariables(environment, "manager.log");
  }
  ~DefaultLog() { spdlog::set_default_logger(before_); }
  static std::string OnStderr() {
    FlushLines();
    return ::testing::internal::GetCapturedStderr();
  }

 private:
  const std::shared_ptr<spdlog::logger> before_ = spdlog::default_logger();
};

TEST_F(LogFileTest, EachTargetHasItsLevel) {
  std::string wanted;
  for (const char* on_stderr : {"True", "False"}) {
    DefaultLog log(on_stderr, {{"TASKD_LOG_PATH", folder_},
                               {"TASKD_FILE_LOG_LEVEL", "DEBUG"},
                               {"TASKD_STD_LOG_LEVEL", "ERROR"},
                               {"TASKD_LOG_STDOUT", on_stderr}});
    spdlog::debug("a detail");
    spdlog::error("a failure");
    wanted += fmt::format("20[^\n]* debug {0}: a detail\n20[^\n]* error {0}: a failure\n", on_stderr);
    WaitUntil([&] { return std::regex_match(Text("manager.log"), std::regex(wanted)); });
    EXPECT_THAT(Text("manager.log"), MatchesRegex(wanted));
    const std::string shown = log.OnStderr();
    EXPECT_EQ(shown.find("a detail"), std::string::npos) << shown;
    EXPECT_EQ(shown.find("a failure") == std::string::npos, std::string(on_stderr) == "False") << shown;
  }
}

TEST_F(LogFileTest, AFileThatCannotBeIsSaidOnceAndTheLinesAreCounted) {
  std::ofstream(folder_ + "/logs") << "theirs";
  DefaultLog log("manager", {{"TASKD_LOG_PATH", folder_ + "/logs"}});
  for (int i = 0; i < 3; ++i) spdlog::info("a line");
  std::string shown;
  WaitUntil([&] {
    shown += DefaultLog::OnStderr();
    ::testing::internal::CaptureStderr();
    return shown.find("no log file: " + folder_ + "/logs: Not a directory") != std::string::npos;
  });
  std::filesystem::remove(folder_ + "/logs");
  WaitUntil([&] {
    spdlog::info("is it there?");
    return Text("logs/manager.log").find("is it there?") != std::string::npos;
  });
  spdlog::info("the last");  // of those that the writer's thread still has
  WaitUntil([&] { return Text("logs/manager.log").find("the last") != std::string::npos; });
  EXPECT_THAT(Text("logs/manager.log"), HasSubstr(" lines could not be written here\n"));
  shown += log.OnStderr();
  EXPECT_EQ(shown.find("no log file"), shown.rfind("no log file")) << shown;
}

}  // namespace
}  // namespace taskd
