#include "agent/stacks/stack_collector.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <mutex>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "agent/stacks/elf_symbols.h"
#include "agent/stacks/proc_facts.h"
#include "common/testing/deadline.h"

namespace taskd::stacks {
namespace {

using ::taskd::testing::WaitUntil;
using ::testing::AnyOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;
using ::testing::StartsWith;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

constexpr int64_t kHangLimitNs = std::chrono::nanoseconds(taskd::testing::kHangLimit).count();

// A child that is killed at the end, and the stack folder that it was given.
class StackCollectorTest : public ::testing::Test {
 protected:
  void SetUp() override {
    char base[] = "/tmp/taskd-stacks-test-XXXXXX";
    ASSERT_NE(mkdtemp(base), nullptr);
    base_ = base;
    folder_ = base_ + "/stacks";
    ASSERT_TRUE(PrepareStackFolder(folder_).ok());
  }
  void TearDown() override {
    for (pid_t child : children_) {
      kill(child, SIGKILL);
      waitpid(child, nullptr, 0);
    }
    std::filesystem::remove_all(base_);
  }

  // With libtaskd.so, unless `preload` is false. Returns when the program runs: before, the child is a copy of this
  // one, which may have a sanitizer's thread that sleeps.
  pid_t Start(const std::vector<std::string>& argv, bool preload = true) {
    int until_exec[2];
    EXPECT_EQ(pipe2(until_exec, O_CLOEXEC), 0);
    pid_t child = fork();
    if (child == 0) {
      setenv("TASKD_STACK_DIR", folder_.c_str(), 1);
      setenv("PYTHONPATH", TASKD_PYTHON_SOURCE, 1);
      setenv("PYTHONDONTWRITEBYTECODE", "1", 1);
      if (preload) setenv("LD_PRELOAD", TASKD_SDK_PATH, 1);
      std::vector<char*> pointers;
      for (const std::string& argument : argv) pointers.push_back(const_cast<char*>(argument.c_str()));
      pointers.push_back(nullptr);
      execvp(pointers[0], pointers.data());
      _exit(127);
    }
    close(until_exec[1]);
    char none;
    EXPECT_EQ(read(until_exec[0], &none, 1), 0);
    close(until_exec[0]);
    children_.push_back(child);
    return child;
  }
  pid_t StartPython(const std::string& script, bool preload = true) {
    return Start({"/usr/bin/python3", "-c", script}, preload);
  }
  // Until some thread of it waits in one of these calls.
  void WaitInCall(pid_t pid, const std::vector<std::string>& calls, size_t threads = 1) {
    ASSERT_TRUE(WaitUntil([&] {
      size_t found = 0;
      for (const ThreadStack& thread : ReadThreads(pid, 100)) {
        for (const std::string& call : calls) found += thread.syscall == call ? 1 : 0;
      }
      return found >= threads;
    })) << "pid "
        << pid;
  }
  RankStacks Collect(pid_t pid, int64_t timeout_ns = kHangLimitNs) {
    std::vector<RankStacks> stacks = CollectStacks({{3, pid}}, 1, folder_, timeout_ns);
    EXPECT_THAT(stacks, SizeIs(1));
    return stacks.empty() ? RankStacks{} : stacks[0];
  }
  // What a collection leaves: the files that say who is armed, nothing else.
  void ExpectClean() {
    for (const auto& entry : std::filesystem::directory_iterator(folder_)) {
      EXPECT_TRUE(entry.is_regular_file()) << entry.path();
    }
  }

  std::string base_;
  std::string folder_;
  std::vector<pid_t> children_;
};

TEST_F(StackCollectorTest, ProgramInPoll) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer's library cannot be preloaded";
  const pid_t pid = Start({TASKD_STACK_CHILD, "poll", "4"});
  WaitInCall(pid, {"poll", "ppoll"});
  WaitInCall(pid, {"futex"}, 4);
  RankStacks rank = Collect(pid);
  EXPECT_EQ(rank.rank, 3);
  EXPECT_EQ(rank.node, 1);
  EXPECT_EQ(rank.pid, pid);
  EXPECT_EQ(rank.note, "");
  ASSERT_THAT(rank.threads, SizeIs(5));
  EXPECT_EQ(rank.threads[0].tid, pid);
  EXPECT_EQ(rank.threads[0].state, "S");
  EXPECT_THAT(rank.threads[0].syscall, AnyOf("poll", "ppoll"));
  EXPECT_THAT(rank.threads[0].native, Contains(StartsWith("poll+0x")));
  EXPECT_THAT(rank.threads[0].native, Contains(StartsWith("WaitForTheOthers(")));
  EXPECT_THAT(rank.threads[0].native, Contains(StartsWith("main+0x")));
  EXPECT_THAT(rank.threads[4].native, Contains(StartsWith("HoldTheLock(")));
  for (const ThreadStack& thread : rank.threads) EXPECT_EQ(thread.note, "") << thread.tid;
  ExpectClean();
}

TEST_F(StackCollectorTest, AgainAndAgain) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer's library cannot be preloaded";
  const pid_t pid = Start({TASKD_STACK_CHILD, "poll", "2"});
  WaitInCall(pid, {"futex"}, 2);
  WaitInCall(pid, {"poll", "ppoll"});
  for (int i = 0; i < 20; ++i) {
    RankStacks rank = Collect(pid);
    ASSERT_THAT(rank.threads, SizeIs(3));
    ASSERT_THAT(rank.threads[0].native, Contains(StartsWith("main+0x")));
  }
  EXPECT_EQ(kill(pid, 0), 0);
}

TEST_F(StackCollectorTest, PythonInALock) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer's library cannot be preloaded";
  const pid_t pid = StartPython(
      "import taskd, threading\n"
      "lock = threading.Lock()\n"
      "def wait_for_peer():\n"
      "    lock.acquire()\n"
      "def helper():\n"
      "    wait_for_peer()\n"
      "lock.acquire()\n"
      "threading.Thread(target=helper, daemon=True).start()\n"
      "wait_for_peer()\n");
  WaitInCall(pid, {"futex"}, 2);
  RankStacks rank = Collect(pid);
  ASSERT_THAT(rank.threads, SizeIs(2));
  EXPECT_THAT(rank.threads[0].python, Contains("wait_for_peer (<string>:4)"));
  EXPECT_THAT(rank.threads[0].python, Contains("<module> (<string>:9)"));
  EXPECT_THAT(rank.threads[0].native, Not(IsEmpty()));
  EXPECT_THAT(rank.threads[1].python, Contains("helper (<string>:6)")) << "of the right thread";
  // The next one does not show what this one left in the file.
  RankStacks again = Collect(pid);
  ASSERT_THAT(again.threads, SizeIs(2));
  EXPECT_EQ(again.threads[0].python, rank.threads[0].python);
  ExpectClean();
}

// A rank can put anything in the place of its file.
TEST_F(StackCollectorTest, APipeInPlaceOfPythonsFileHoldsNobody) {
  const pid_t pid = StartPython("import taskd, time\ntime.sleep(1000)\n", false);
  WaitInCall(pid, {"clock_nanosleep", "select", "pselect6"});
  const std::string path = absl::StrCat(folder_, "/", pid, ".py");
  ASSERT_EQ(unlink(path.c_str()), 0);
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  RankStacks rank = Collect(pid);
  ASSERT_THAT(rank.threads, SizeIs(1));
  EXPECT_THAT(rank.threads[0].python, IsEmpty());
}

TEST_F(StackCollectorTest, PythonWithoutTheLibrary) {
  const pid_t pid = StartPython("import taskd, time\ndef snooze():\n    time.sleep(1000)\nsnooze()\n", false);
  WaitInCall(pid, {"clock_nanosleep", "select", "pselect6"});
  RankStacks rank = Collect(pid);
  ASSERT_THAT(rank.threads, SizeIs(1));
  EXPECT_THAT(rank.threads[0].python, Contains("snooze (<string>:3)"));
  EXPECT_THAT(rank.threads[0].native, IsEmpty());
  EXPECT_THAT(rank.note, HasSubstr("libtaskd.so"));
}

// A program that knows nothing of us must not be sent a signal: it would end.
TEST_F(StackCollectorTest, ProgramWithoutTheLibraryIsLeftAlone) {
  const pid_t pid = Start({"/bin/sleep", "1000"}, false);
  WaitInCall(pid, {"clock_nanosleep", "nanosleep"});
  RankStacks rank = Collect(pid);
  ASSERT_THAT(rank.threads, SizeIs(1));
  EXPECT_EQ(rank.threads[0].name, "sleep");
  EXPECT_THAT(rank.threads[0].native, IsEmpty());
  EXPECT_THAT(rank.note, HasSubstr("libtaskd.so"));
  // Also where an earlier program with this pid was armed.
  std::ofstream(absl::StrCat(folder_, "/", pid, ".armed")) << "";
  std::ofstream(absl::StrCat(folder_, "/", pid, ".py")) << "";
  rank = Collect(pid);
  EXPECT_EQ(kill(pid, 0), 0);
  EXPECT_EQ(waitpid(pid, nullptr, WNOHANG), 0) << "it lives";
}

TEST_F(StackCollectorTest, StoppedRankHasItsFacts) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer's library cannot be preloaded";
  const pid_t pid = Start({TASKD_STACK_CHILD, "poll", "1"});
  WaitInCall(pid, {"futex"});
  WaitInCall(pid, {"poll", "ppoll"});
  kill(pid, SIGSTOP);
  ASSERT_TRUE(WaitUntil([&] { return ReadStatus(pid, pid).state == "T"; }));
  RankStacks rank = Collect(pid);
  EXPECT_THAT(rank.note, HasSubstr("stopped"));
  ASSERT_THAT(rank.threads, SizeIs(2));
  EXPECT_EQ(rank.threads[0].state, "T");
  EXPECT_EQ(rank.threads[0].note, "stopped");
  kill(pid, SIGCONT);
  ASSERT_TRUE(WaitUntil([&] { return ReadStatus(pid, pid).state == "S"; }));
  EXPECT_THAT(Collect(pid).threads[0].native, Not(IsEmpty()));
}

TEST_F(StackCollectorTest, ThreadThatBlocksTheSignal) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer's library cannot be preloaded";
  const pid_t pid = Start({TASKD_STACK_CHILD, "blocked", "1"});
  WaitInCall(pid, {"futex"});
  WaitInCall(pid, {"poll", "ppoll"});
  RankStacks rank = Collect(pid);
  ASSERT_THAT(rank.threads, SizeIs(2));
  EXPECT_EQ(rank.threads[0].note, "blocks the signal");
  EXPECT_THAT(rank.threads[1].native, Not(IsEmpty()));
}

TEST_F(StackCollectorTest, ShellThatStartsTheTraining) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer's library cannot be preloaded";
  const pid_t pid = Start({"/bin/sh", "-c", absl::StrCat(TASKD_STACK_CHILD, " poll 1; true")});
  std::vector<pid_t> children;
  ASSERT_TRUE(WaitUntil([&] { return !(children = ReadChildren(pid)).empty(); }));
  WaitInCall(children[0], {"futex"});
  WaitInCall(children[0], {"poll", "ppoll"});
  RankStacks rank = Collect(pid);
  EXPECT_EQ(rank.pid, children[0]);
  EXPECT_THAT(rank.threads[0].native, Contains(StartsWith("main+0x")));
  kill(children[0], SIGKILL);
}

TEST_F(StackCollectorTest, GoneRank) {
  const pid_t pid = Start({"/bin/true"}, false);
  waitpid(pid, nullptr, 0);
  children_.clear();
  RankStacks rank = Collect(pid);
  EXPECT_THAT(rank.threads, IsEmpty());
  EXPECT_EQ(rank.note, "its process has ended");
}

TEST_F(StackCollectorTest, ZombieRank) {
  const pid_t pid = Start({"/bin/true"}, false);
  ASSERT_TRUE(WaitUntil([&] { return ReadStatus(pid, pid).state == "Z"; }));
  EXPECT_EQ(Collect(pid).note, "its process has ended");
}

TEST_F(StackCollectorTest, InAThreadOfItsOwn) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer's library cannot be preloaded";
  const pid_t pid = Start({TASKD_STACK_CHILD, "poll", "1"});
  WaitInCall(pid, {"poll", "ppoll"});
  std::mutex mutex;
  std::vector<RankStacks> stacks;
  {
    StackCollection collection({{0, pid}}, 0, folder_, kHangLimitNs, [&](std::vector<RankStacks> result) {
      std::lock_guard lock(mutex);
      stacks = std::move(result);
    });
  }
  ASSERT_THAT(stacks, SizeIs(1));
  EXPECT_THAT(stacks[0].threads[0].native, Contains(StartsWith("main+0x")));
}

TEST_F(StackCollectorTest, FolderIsOnlyOurs) {
  EXPECT_TRUE(PrepareStackFolder(folder_).ok()) << "a second time";
  std::filesystem::permissions(folder_, std::filesystem::perms::all);
  EXPECT_EQ(PrepareStackFolder(folder_).code(), absl::StatusCode::kFailedPrecondition);
  std::filesystem::create_symlink(base_, base_ + "/link");
  EXPECT_FALSE(PrepareStackFolder(base_ + "/link").ok());
}

TEST(ElfSymbolsTest, NamesOwnFunctions) {
  AddressNamer namer(getpid());
  const auto here = reinterpret_cast<uint64_t>(&PrepareStackFolder);
  std::map<uint64_t, std::string> names = namer.Name({{here, false}, {here + 1, true}, {16, false}});
  EXPECT_THAT(names[here], StartsWith("taskd::stacks::PrepareStackFolder("));
  EXPECT_THAT(names[here], HasSubstr("+0x0 ("));
  EXPECT_THAT(names[here + 1], HasSubstr("+0x1 ("));
  EXPECT_EQ(names[16], "0x10");
}

TEST(SyscallNameTest, Names) {
  EXPECT_EQ(SyscallName(-7), "system call -7");
  EXPECT_EQ(SyscallName(100000), "system call 100000");
}

}  // namespace
}  // namespace taskd::stacks
