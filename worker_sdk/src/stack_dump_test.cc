// The answer to a launcher that asks where the threads are: in processes of their own with libtaskd.so preloaded.
#include "taskd/stack_dump.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <csignal>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <mutex>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "taskd/taskd.h"
#include "testing/fresh_process.h"

namespace taskd::worker {
namespace {

using testing::RunForked;
using testing::WaitUntil;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

constexpr uint64_t kCollection = 0xabc123;

// The folder that TASKD_STACK_DIR names in the processes below.
std::string Folder() {
  const char* folder = getenv("TASKD_STACK_DIR");
  return folder == nullptr ? "" : folder;
}

int Queue(pid_t pid, pid_t tid, int signal, uint64_t value) {
  siginfo_t info = {};
  info.si_code = SI_QUEUE;
  info.si_pid = getpid();
  info.si_uid = getuid();
  info.si_value.sival_ptr = reinterpret_cast<void*>(value);
  return static_cast<int>(syscall(SYS_rt_tgsigqueueinfo, pid, tid, signal, &info));
}

std::vector<std::string> Lines(const std::string& path) {
  std::ifstream file(path);
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  return lines;
}

std::string FileOf(uint64_t collection, pid_t tid) {
  char text[64];
  snprintf(text, sizeof text, "/%lx/%d.%d", static_cast<unsigned long>(collection), getpid(), tid);
  return Folder() + text;
}

// Asks one thread of this process and waits for its answer.
std::vector<std::string> Ask(pid_t tid, uint64_t collection = kCollection) {
  std::filesystem::create_directory(Folder() + [&] {
    std::ostringstream name;
    name << '/' << std::hex << collection;
    return name.str();
  }());
  EXPECT_EQ(Queue(getpid(), tid, StackSignal(), collection), 0);
  std::vector<std::string> lines;
  WaitUntil([&] {
    lines = Lines(FileOf(collection, tid));
    return !lines.empty() && lines.back() == "end";
  });
  return lines;
}

int Count(const std::vector<std::string>& lines, const std::string& prefix) {
  return static_cast<int>(
      std::count_if(lines.begin(), lines.end(), [&](const auto& line) { return line.starts_with(prefix); }));
}

struct sigaction Installed(int signal) {
  struct sigaction action = {};
  sigaction(signal, nullptr, &action);
  return action;
}

// libtaskd.so reads the variable when it is loaded, so these run in a second life of the process: with the folder set.
#define ARMED_TEST(test)                      \
  static void StackDumpTest_##test##_Armed(); \
  FRESH_TEST(StackDumpTest, test) {           \
    if (Folder().empty()) {                   \
      RunArmed(#test, 0700);                  \
    } else {                                  \
      StackDumpTest_##test##_Armed();         \
    }                                         \
  }                                           \
  static void StackDumpTest_##test##_Armed()

void RunArmed(const std::string& test, mode_t mode) {
  const std::string folder = testing::FreshFolder() + "/stacks";
  ASSERT_EQ(mkdir(folder.c_str(), 0700), 0);
  ASSERT_EQ(chmod(folder.c_str(), mode), 0);
  std::vector<std::string> command = testing::OwnCommand();
  command.push_back("--gtest_filter=StackDumpTest." + test);
  std::vector<char*> arguments;
  for (std::string& argument : command) arguments.push_back(argument.data());
  arguments.push_back(nullptr);
  const pid_t child = fork();
  if (child == 0) {
    setenv("TASKD_STACK_DIR", folder.c_str(), 1);
    execvp(arguments[0], arguments.data());
    _exit(99);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

class Blocked {
 public:
  explicit Blocked(std::function<void(Blocked&)> body)
      : thread_([this, body = std::move(body)] {
          tid.store(static_cast<pid_t>(syscall(SYS_gettid)));
          body(*this);
        }) {
    WaitUntil([&] { return tid.load() != 0; });
  }
  ~Blocked() {
    {
      std::lock_guard lock(mutex);
      done = true;
    }
    wake.notify_all();
    thread_.join();
  }
  std::atomic<pid_t> tid{0};
  std::mutex mutex;
  std::condition_variable wake;
  bool done = false;

 private:
  std::thread thread_;
};

void WaitInFutex(Blocked& blocked) {
  std::unique_lock lock(blocked.mutex);
  blocked.wake.wait(lock, [&] { return blocked.done; });
}

ARMED_TEST(SaysThatItIsArmed) {
  EXPECT_NE(taskd_enabled_kinds(), 0u);  // the library is there
  EXPECT_NE(Installed(StackSignal()).sa_handler, SIG_DFL);
  EXPECT_TRUE(std::filesystem::exists(Folder() + "/" + std::to_string(getpid()) + ".armed"));
}

FRESH_TEST(StackDumpTest, LeavesTheSignalAloneWhenNobodyAsks) {
  EXPECT_EQ(Installed(StackSignal()).sa_handler, SIG_DFL);
}

// What others can write may not be trusted.
FRESH_TEST(StackDumpTest, LeavesTheSignalAloneInAFolderOfOthers) {
  if (Folder().empty()) {
    RunArmed("LeavesTheSignalAloneInAFolderOfOthers", 0777);
  } else {
    EXPECT_EQ(Installed(StackSignal()).sa_handler, SIG_DFL);
    EXPECT_TRUE(std::filesystem::is_empty(Folder()));
  }
}

ARMED_TEST(SeveralThreads) {
  std::vector<std::unique_ptr<Blocked>> threads;
  for (int i = 0; i < 8; ++i) threads.push_back(std::make_unique<Blocked>(WaitInFutex));
  for (const auto& thread : threads) {
    std::vector<std::string> lines = Ask(thread->tid.load());
    ASSERT_FALSE(lines.empty());
    EXPECT_TRUE(lines[0].starts_with("self ")) << lines[0];
    EXPECT_EQ(Count(lines, "at "), 1);
    EXPECT_GE(Count(lines, "from "), 3);  // the wait, the body, the thread's start
    EXPECT_EQ(lines.back(), "end");
  }
}

ARMED_TEST(ThreadInPoll) {
  int pipe_fds[2];
  ASSERT_EQ(pipe(pipe_fds), 0);
  Blocked thread([&](Blocked&) {
    pollfd fd{pipe_fds[0], POLLIN, 0};
    while (poll(&fd, 1, -1) < 0 && errno == EINTR) {
    }
  });
  EXPECT_GE(Count(Ask(thread.tid.load()), "from "), 2);
  ASSERT_EQ(write(pipe_fds[1], "x", 1), 1);
}

__attribute__((noinline)) void Recurse(int depth, const std::function<void()>& at_the_end) {
  if (depth == 0) return at_the_end();
  Recurse(depth - 1, at_the_end);
  asm volatile("");  // no tail call
}

ARMED_TEST(DeepRecursionIsCut) {
  Blocked thread([](Blocked& self) { Recurse(2000, [&] { WaitInFutex(self); }); });
  std::vector<std::string> lines = Ask(thread.tid.load());
  EXPECT_LE(Count(lines, "from "), kMaxStackFrames + 8);
  EXPECT_GE(Count(lines, "from "), kMaxStackFrames - 8);
  EXPECT_EQ(Count(lines, "more"), 1);
}

ARMED_TEST(KeepsErrno) {
  const pid_t self = static_cast<pid_t>(syscall(SYS_gettid));
  errno = 4242;
  Queue(getpid(), self, StackSignal(), 0x77);  // no such folder: every call in the handler fails
  const int after = errno;
  EXPECT_EQ(after, 4242);
  EXPECT_GE(Count(Ask(self), "from "), 1);
}

// An answer that comes after the collection leaves nothing behind, and a stray kill does nothing.
ARMED_TEST(NoCollectionNoFile) {
  const pid_t self = static_cast<pid_t>(syscall(SYS_gettid));
  Queue(getpid(), self, StackSignal(), 0x77);
  raise(StackSignal());
  EXPECT_FALSE(std::filesystem::exists(Folder() + "/77"));
  EXPECT_FALSE(std::filesystem::exists(Folder() + "/0"));
}

ARMED_TEST(TwiceIsRefused) {
  const pid_t self = static_cast<pid_t>(syscall(SYS_gettid));
  std::vector<std::string> first = Ask(self);
  EXPECT_EQ(Ask(self), first);
}

// The handler interrupts malloc and dlopen's users at any instruction.
ARMED_TEST(WhileAllocating) {
  std::atomic<bool> stop{false};
  std::atomic<uint64_t> rounds{0};
  std::vector<std::unique_ptr<Blocked>> threads;
  for (int i = 0; i < 2; ++i) {
    threads.push_back(std::make_unique<Blocked>([&](Blocked&) {
      while (!stop) {
        for (size_t bytes : {24, 4000, 200000}) {
          void* volatile memory = malloc(bytes);
          free(memory);
        }
        ++rounds;
      }
    }));
  }
  const uint64_t asked = kSanitized ? 50 : 150;
  for (uint64_t i = 1; i <= asked; ++i) {
    std::vector<std::string> lines = Ask(threads[i % 2]->tid.load(), i);
    ASSERT_FALSE(lines.empty());
    ASSERT_EQ(lines.back(), "end") << i;
  }
  const uint64_t before = rounds;
  EXPECT_TRUE(WaitUntil([&] { return rounds > before; })) << "the threads go on";
  stop = true;
}

// What the kernel puts on a signal stack of this thread. _SC_MINSIGSTKSZ is the most that it ever may, with registers
// that few threads use.
size_t SignalFrameBytes() {
  static std::atomic<uintptr_t> reached;
  std::vector<char> memory(64 * 1024);
  stack_t stack = {}, stack_before = {};
  stack.ss_sp = memory.data();
  stack.ss_size = memory.size();
  struct sigaction action = {}, action_before = {};
  action.sa_flags = SA_ONSTACK;
  action.sa_handler = [](int) { reached = reinterpret_cast<uintptr_t>(__builtin_frame_address(0)); };
  sigaltstack(&stack, &stack_before);
  sigaction(SIGURG, &action, &action_before);
  raise(SIGURG);
  sigaction(SIGURG, &action_before, nullptr);
  sigaltstack(&stack_before, nullptr);
  return reinterpret_cast<uintptr_t>(memory.data() + memory.size()) - reached;
}

// Some runtimes give their threads signal stacks that are too small to unwind on.
ARMED_TEST(SmallSignalStack) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer takes every signal stack for its own";
  const size_t small = SignalFrameBytes() + 3072;
  std::vector<char> memory(small);
  std::vector<char> large(64 * 1024);
  for (bool is_small : {true, false}) {
    std::atomic<bool> has_stack = false;
    Blocked thread([&](Blocked& self) {
      stack_t stack = {};
      stack.ss_sp = is_small ? memory.data() : large.data();
      stack.ss_size = is_small ? small : large.size();
      sigaltstack(&stack, nullptr);
      has_stack = true;
      WaitInFutex(self);
    });
    ASSERT_TRUE(WaitUntil([&] { return has_stack.load(); }));
    std::vector<std::string> lines = Ask(thread.tid.load(), is_small ? 1 : 2);
    EXPECT_EQ(Count(lines, "short"), is_small ? 1 : 0);
    EXPECT_EQ(Count(lines, "from ") > 0, !is_small);
    EXPECT_EQ(Count(lines, "at "), 1);
  }
}

ARMED_TEST(UnwindingStaysWithinItsRoom) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer's frames are larger";
    // The least that is unwound on: what the kernel needs for the signal's frame, and what the handler asks for.
#if defined(__aarch64__)
  constexpr size_t kHandlerBytes = 12 * 1024;
#else
  constexpr size_t kHandlerBytes = 8 * 1024;
#endif
  std::vector<char> memory(static_cast<size_t>(sysconf(_SC_MINSIGSTKSZ)) + kHandlerBytes + 2048, 0x5a);
  Blocked thread([&](Blocked& self) {
    stack_t stack = {};
    stack.ss_sp = memory.data();
    stack.ss_size = memory.size();
    sigaltstack(&stack, nullptr);
    WaitInFutex(self);
  });
  EXPECT_GT(Count(Ask(thread.tid.load()), "from "), 0);
  const auto untouched = std::find_if(memory.begin(), memory.end(), [](char c) { return c != 0x5a; }) - memory.begin();
  EXPECT_GT(untouched, 2048 + 1024) << "of " << memory.size();
}

ARMED_TEST(ForkedChildAnswersForItself) {
  EXPECT_EQ(RunForked([] { return Count(Ask(getpid()), "from ") > 0 ? 0 : 1; }), 0);
}

}  // namespace
}  // namespace taskd::worker
