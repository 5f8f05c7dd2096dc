#include "agent/process/worker_exit.h"

#include <signal.h>

#include "gtest/gtest.h"

namespace taskd::process {
namespace {

TEST(DescribeEndTest, CodesAndSignals) {
  WorkerExit exit;
  exit.code = 3;
  EXPECT_EQ(DescribeEnd(exit), "exit code 3");
  exit.code = 137;
  EXPECT_EQ(DescribeEnd(exit), "exit code 137");
  exit.signal = SIGKILL;
  EXPECT_EQ(DescribeEnd(exit), "SIGKILL (signal 9)");
  exit.killed_by = "SIGKILL from outside";
  EXPECT_EQ(DescribeEnd(exit), "SIGKILL from outside");
  exit.killed_by = "killed by the kernel: out of memory";
  exit.signal = 0;  // a shell's, for what it ran
  EXPECT_EQ(DescribeEnd(exit), "exit code 137, what it ran was killed by the kernel: out of memory");
  exit.signal = 40;
  EXPECT_EQ(DescribeEnd(exit), "signal 40");
}

// Torch's @record writes the first form, PyTorch before 1.9 and other tools the second.
TEST(MessageOfErrorFileTest, BothForms) {
  EXPECT_EQ(MessageOfErrorFile(R"({"message":{"message":"ValueError: no","extraInfo":{}}})"), "ValueError: no");
  EXPECT_EQ(MessageOfErrorFile(R"({"message":"text"})"), "text");
}

TEST(MessageOfErrorFileTest, ThereIsNone) {
  for (const char* text : {"", "no json", "[1]", "{}", R"({"message":5})", R"({"message":{"message":[]}})"}) {
    EXPECT_EQ(MessageOfErrorFile(text), "") << text;
  }
}

}  // namespace
}  // namespace taskd::process
