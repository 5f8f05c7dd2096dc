#include "common/log.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <sstream>
#include <thread>
#include <vector>

#include "common/log_level.h"
#include "common/printable.h"
#include "common/unique_fd.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "spdlog/sinks/ostream_sink.h"

namespace taskd {
namespace {

using ::testing::MatchesRegex;

std::string Logged(const std::string& text) {
  std::ostringstream out;
  spdlog::logger logger("proxy", std::make_shared<spdlog::sinks::ostream_sink_st>(out));
  logger.set_formatter(LogFormatter());
  logger.warn("host {}", text);
  return out.str();
}

TEST(LogTest, HasTimeLevelAndRole) {
  EXPECT_THAT(Logged("node-0"), MatchesRegex("20..-..-..T..:..:...... warning proxy: host node-0\n"));
}

TEST(LogTest, AMessageIsOneLineAndHarmless) {
  EXPECT_THAT(Logged("a\n2026-01-01T00:00:00.000 info manager: false\x1b[2J\u009b1m\u202e"),
              MatchesRegex("[^\n]*host a\\\\n2026[^\n]*false\\\\x1b\\[2J\\\\u009b1m\\\\u202e\n"));
}

// ---- A program of its own, whose log goes to a pipe. It is this one with one test, which begins with InProgram().

bool InProgram() {
  if (getenv("TASKD_IN_PROGRAM") == nullptr) return false;
  InitLog("proxy");
  return true;
}

class Program {
 public:
  // `before`: bytes that are in its stderr already, unread.
  explicit Program(const char* test, size_t before = 0) {
    int ends[2];
    EXPECT_EQ(pipe2(ends, O_CLOEXEC), 0);
    stderr_.reset(ends[0]);
    const UniqueFd write_end(ends[1]);
    if (before > 0) {
      before_bytes_ = static_cast<size_t>(fcntl(ends[1], F_GETPIPE_SZ));
      const std::string text(before_bytes_, 'f');
      EXPECT_EQ(write(ends[1], text.data(), text.size()), static_cast<ssize_t>(text.size()));
    }
    pid_ = fork();
    if (pid_ != 0) return;
    dup2(ends[1], STDERR_FILENO);
    setenv("TASKD_IN_PROGRAM", "1", 1);
    setenv("ASAN_OPTIONS", "detect_leaks=0", 1);  // it, and children of its, end in the middle of a test
    execl("/proc/self/exe", "log_test", (std::string("--gtest_filter=") + test).c_str(), nullptr);
    _exit(127);
  }
  ~Program() {
    if (pid_ > 0) Wait();
  }

  std::string ReadLine() {
    std::string line;
    char c = 0;
    while (c != '\n' && read(stderr_.get(), &c, 1) == 1) line += c;
    return line;
  }
  // What was in the pipe before it.
  void Empty() {
    char c;
    for (size_t i = 0; i < before_bytes_; ++i) ASSERT_EQ(read(stderr_.get(), &c, 1), 1);
  }
  int Wait() {
    int status = 0;
    waitpid(std::exchange(pid_, 0), &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128;
  }

 private:
  UniqueFd stderr_;
  size_t before_bytes_ = 0;
  pid_t pid_ = 0;
};

TEST(LogTest, TheLastLinesComeOut) {
  if (InProgram()) {
    spdlog::info("one");
    WriteToStderr("taskd proxy: two\n");
    spdlog::error("three");
    exit(5);
  }
  Program program("LogTest.TheLastLinesComeOut");
  EXPECT_THAT(program.ReadLine(), MatchesRegex("20.*info proxy: one\n"));
  EXPECT_EQ(program.ReadLine(), "taskd proxy: two\n");
  EXPECT_THAT(program.ReadLine(), MatchesRegex("20.*error proxy: three\n"));
  EXPECT_EQ(program.ReadLine(), "");
  EXPECT_EQ(program.Wait(), 5);
}

TEST(LogTest, AndAtUnderscoreExit) {
  if (InProgram()) {
    spdlog::info("last");
    FlushLines();
    _exit(5);
  }
  Program program("LogTest.AndAtUnderscoreExit");
  EXPECT_THAT(program.ReadLine(), MatchesRegex("20.*info proxy: last\n"));
  EXPECT_EQ(program.Wait(), 5);
}

TEST(LogTest, NobodyReads) {
  if (InProgram()) {
    for (int i = 0; i < 30000; ++i) spdlog::info("line {}", i);
    std::vector<std::thread> threads;
    for (int thread = 0; thread < 4; ++thread) {
      threads.emplace_back([] { spdlog::info("from a thread"); });
    }
    for (std::thread& thread : threads) thread.join();
    exit(5);
  }
  Program program("LogTest.NobodyReads", 1);
  EXPECT_EQ(program.Wait(), 5);
}

TEST(LogTest, WhatWasDroppedIsSaid) {
  if (InProgram()) {
    for (int i = 0; i < 30000; ++i) spdlog::info("line {}", i);
    char ignored;
    exit(read(STDIN_FILENO, &ignored, 1) == 0 ? 5 : 6);
  }
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  const UniqueFd stdin_before(fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 3));
  dup2(ends[0], STDIN_FILENO);
  Program program("LogTest.WhatWasDroppedIsSaid", 1);
  dup2(stdin_before.get(), STDIN_FILENO);
  close(ends[0]);
  program.Empty();
  std::string line;
  int said = 0;
  while (line.find("line 29999\n") == std::string::npos) {
    line = program.ReadLine();
    ASSERT_NE(line, "");
    if (line.find("not written") == std::string::npos) continue;
    EXPECT_THAT(line, MatchesRegex("20.* warning proxy: [0-9]+ lines were not written: nobody reads\n"));
    ++said;
  }
  EXPECT_LE(said, 3);
  close(ends[1]);
  EXPECT_EQ(program.Wait(), 5);
}

TEST(LogTest, TheChildOfAFork) {
  if (InProgram()) {
    // Threads that are in the middle of a line all the time.
    std::atomic<bool> ends = false;
    std::vector<std::thread> threads;
    for (int thread = 0; thread < 2; ++thread) {
      threads.emplace_back([&] {
        while (!ends) spdlog::info("of the parent");
      });
    }
    int failed = 0;
    for (int i = 0; i < 20; ++i) {
      const pid_t child = fork();
      if (child == 0) {
        spdlog::info("of child {}", i);
        WriteToStderr("its last\n");
        i % 2 == 0 ? exit(0) : _exit(0);
      }
      int status = 0;
      failed += waitpid(child, &status, 0) == child && status == 0 ? 0 : 1;
    }
    ends = true;
    for (std::thread& thread : threads) thread.join();
    exit(failed == 0 ? 5 : 6);
  }
  Program program("LogTest.TheChildOfAFork");
  int children = 0;
  for (std::string line; !(line = program.ReadLine()).empty();) {
    children += line == "its last\n" ? 1 : 0;
    EXPECT_TRUE(line == "its last\n" || line.find(" info proxy: of ") != std::string::npos ||
                line.find("not written") != std::string::npos)
        << line;
  }
  EXPECT_GT(children, 0);  // one whose pipe is full just then has nobody who comes back to it
  EXPECT_EQ(program.Wait(), 5);
}

TEST(LogTest, ALongMessageIsCut) { EXPECT_LT(Logged(std::string(4 << 20, 'x')).size(), kShownLineBytes + 100); }

TEST(LogTest, LevelsByTheirNames) {
  for (const char* name : {"warning", "WARNING", "warn", "Warn"}) {
    EXPECT_EQ(ParseLogLevel(name), spdlog::level::warn) << name;
  }
  EXPECT_EQ(ParseLogLevel("ERROR"), spdlog::level::err);
  EXPECT_EQ(ParseLogLevel("FATAL"), spdlog::level::critical);
  EXPECT_EQ(ParseLogLevel("off"), spdlog::level::off);
  for (const char* name : {"", "INFORMATION", "20", "-1"}) EXPECT_EQ(ParseLogLevel(name), std::nullopt) << name;
}

}  // namespace
}  // namespace taskd
