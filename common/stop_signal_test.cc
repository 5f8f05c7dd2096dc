#include "common/stop_signal.h"

#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/testing/deadline.h"
#include "gtest/gtest.h"

namespace taskd {
namespace {

// A daemon whose ranks or clients have taken all of its descriptors.
TEST(StopSignalTest, EndsAProcessThatHasNoDescriptorLeft) {
  const pid_t child = fork();
  if (child == 0) {
    StopSignal stop(false);
    const rlimit taken = {3, 3};  // by stdin, stdout and stderr
    if (setrlimit(RLIMIT_NOFILE, &taken) != 0) _exit(1);
    kill(getpid(), SIGTERM);
    _exit(stop.Wait() == "SIGTERM" ? 0 : 2);
  }
  ASSERT_GT(child, 0);
  int status = -1;
  EXPECT_TRUE(testing::WaitUntil([&] { return waitpid(child, &status, WNOHANG) == child; }));
  if (status == -1) {
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
  }
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace taskd
