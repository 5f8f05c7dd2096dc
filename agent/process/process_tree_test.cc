#include "agent/process/process_tree.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>

#include "gtest/gtest.h"

namespace taskd::process {
namespace {

TEST(ProcessTreeTest, ReadsALineOfStat) {
  std::optional<ProcessInfo> process = ParseProcessStat("12 (sh) S 7 11 10 0 -1 4194304 120\n");
  ASSERT_TRUE(process.has_value());
  EXPECT_EQ(process->pid, 12);
  EXPECT_EQ(process->state, 'S');
  EXPECT_EQ(process->parent, 7);
  EXPECT_EQ(process->group, 11);
  process = ParseProcessStat("13 (a) R 1 (b) ) Z 8 12 12");
  ASSERT_TRUE(process.has_value());
  EXPECT_EQ(process->parent, 8);
  EXPECT_EQ(process->state, 'Z');
  for (const char* none :
       {"", "12", "12 (sh", "12 (sh)", "12 (sh) S", "12 (sh) S 1", "x (sh) S 1 2", ")(", "12 (sh) S a b"}) {
    EXPECT_FALSE(ParseProcessStat(none).has_value()) << none;
  }
}

TEST(ProcessTreeTest, FindsChildrenOfChildrenWithoutTheExcepted) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const pid_t child = fork();
  if (child == 0) {
    const pid_t grandchild = fork();
    if (grandchild == 0) {
      pause();
      _exit(0);
    }
    if (write(ends[1], &grandchild, sizeof(grandchild)) < 0) _exit(1);
    pause();
    _exit(0);
  }
  pid_t grandchild = 0;
  ASSERT_EQ(read(ends[0], &grandchild, sizeof(grandchild)), static_cast<ssize_t>(sizeof(grandchild)));
  auto pids = [](const std::set<pid_t>& except) {
    std::set<pid_t> found;
    for (const ProcessInfo& process : Descendants(getpid(), except)) found.insert(process.pid);
    return found;
  };
  EXPECT_EQ(pids({}), (std::set<pid_t>{child, grandchild}));
  EXPECT_EQ(pids({grandchild}), (std::set<pid_t>{child}));
  EXPECT_EQ(pids({child}), (std::set<pid_t>{}));
  kill(grandchild, SIGKILL);
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  close(ends[0]);
  close(ends[1]);
}

}  // namespace
}  // namespace taskd::process
