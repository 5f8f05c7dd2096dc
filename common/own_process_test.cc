#include "common/own_process.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace taskd {
namespace {

std::string ShownEnvironment() {
  std::ifstream file("/proc/self/environ");
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

// The exit code of this program with one test and this environment: /proc/PID/environ shows what a process began with.
int InProgram(const char* test, std::initializer_list<const char*> variables) {
  const std::string filter = std::string("--gtest_filter=") + test;
  std::vector<const char*> environment(variables);
  environment.insert(environment.end(), {"TASKD_IN_PROGRAM=1", nullptr});
  const pid_t child = fork();
  if (child == 0) {
    const char* argv[] = {"own_process_test", filter.c_str(), nullptr};
    execve("/proc/self/exe", const_cast<char**>(argv), const_cast<char**>(environment.data()));
    _exit(127);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128;
}

bool IsInProgram() { return getenv("TASKD_IN_PROGRAM") != nullptr; }

TEST(OwnProcessTest, WhatIsTakenIsGone) {
  if (!IsInProgram()) {
    EXPECT_EQ(InProgram("OwnProcessTest.WhatIsTakenIsGone",
                        {"A=1", "TASKD_TOKEN=very secret", "TASKD_TOKENS=2", "TASKD_TOKEN=very secret too", "B=3"}),
              0);
    return;
  }
  EXPECT_NE(ShownEnvironment().find("secret"), std::string::npos);
  EXPECT_EQ(TakeVariable("TASKD_TOKEN"), "very secret") << "as getenv has it";
  EXPECT_EQ(getenv("TASKD_TOKEN"), nullptr);
  EXPECT_EQ(TakeVariable("TASKD_TOKEN"), "");
  EXPECT_STREQ(getenv("A"), "1");
  EXPECT_STREQ(getenv("TASKD_TOKENS"), "2");
  EXPECT_STREQ(getenv("B"), "3");
  EXPECT_EQ(ShownEnvironment().find("secret"), std::string::npos);
  EXPECT_NE(ShownEnvironment().find("TASKD_TOKENS=2"), std::string::npos);
}

TEST(OwnProcessTest, ClosedIsClosed) {
  if (!IsInProgram()) {
    EXPECT_EQ(InProgram("OwnProcessTest.ClosedIsClosed", {"TASKD_TOKEN=very secret", "TASKD_SECRET=also secret"}), 0);
    return;
  }
  CloseProcess();
  EXPECT_EQ(prctl(PR_GET_DUMPABLE), 0);
  EXPECT_EQ(ShownEnvironment().find("secret"), std::string::npos);
  // What we read of ourselves is there still.
  EXPECT_EQ(access("/proc/self/exe", X_OK), 0);
  const int fd = open("/dev/null", O_RDWR);
  EXPECT_GE(open(("/proc/self/fd/" + std::to_string(fd)).c_str(), O_WRONLY), 0);
  EXPECT_TRUE(std::ifstream("/proc/self/mountinfo").is_open());
  EXPECT_TRUE(std::ifstream("/proc/self/uid_map").is_open());
  // exec opens it again.
  EXPECT_EQ(InProgram("OwnProcessTest.OpenAfterExec", {}), 0);
}

TEST(OwnProcessTest, OpenAfterExec) {
  if (!IsInProgram()) return;
  EXPECT_EQ(prctl(PR_GET_DUMPABLE), 1);
}

TEST(OwnProcessTest, WhatAGuardLooksForStaysOpen) {
  if (!IsInProgram()) {
    EXPECT_EQ(
        InProgram("OwnProcessTest.WhatAGuardLooksForStaysOpen", {"TASKD_TOKEN=very secret", "TASKD_RUN_COOKIE=cookie"}),
        0);
    return;
  }
  CloseProcess();
  EXPECT_EQ(prctl(PR_GET_DUMPABLE), 1);
  EXPECT_EQ(ShownEnvironment().find("secret"), std::string::npos);
  EXPECT_NE(ShownEnvironment().find("TASKD_RUN_COOKIE=cookie"), std::string::npos);
}

}  // namespace
}  // namespace taskd
