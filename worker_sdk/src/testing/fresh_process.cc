#include "testing/fresh_process.h"

#include <sched.h>
#include <spawn.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "taskd/hello.h"

namespace taskd::testing {
namespace {

constexpr char kChildVariable[] = "TASKD_TEST_FRESH_PROCESS";

std::string SegmentPrefix(const std::string& socket) {
  char prefix[96];
  snprintf(prefix, sizeof(prefix), "taskd-%u-%016" PRIx64 "-", geteuid(), hello::HashSocketPath(socket.c_str()));
  return prefix;
}

void RemoveSegments(const std::string& socket) {
  const std::string prefix = SegmentPrefix(socket);
  std::error_code error;
  std::vector<std::filesystem::path> found;
  for (const auto& entry : std::filesystem::directory_iterator(hello::kSegmentFolder, error)) {
    if (entry.path().filename().string().starts_with(prefix)) found.push_back(entry.path());
  }
  for (const auto& path : found) std::filesystem::remove(path, error);
}

// Of a sanitizer; the others do not look.
void AddOption(std::vector<std::string>& variables, const std::string& name, const std::string& option) {
  for (std::string& variable : variables) {
    if (variable.starts_with(name)) {
      variable += ":" + option;
      return;
    }
  }
  variables.push_back(name + option);
}

// Other threads than the main one and the one that talks to a proxy, which stays.
[[maybe_unused]] bool HasEndingThread() {
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task", error)) {
    std::string name;
    std::getline(std::ifstream(entry.path() / "comm"), name);
    if (entry.path().filename() != std::to_string(getpid()) && name != "taskd-hello") return true;
  }
  return false;
}

// LeakSanitizer fails where it meets a thread on its way out: MSPTI's, which ends at exit, or one that was joined a
// moment ago, which the system has not cleared away yet. Runs after the handler that ends MSPTI's, and before the check
// for leaks.
void WaitForEndingThreads() {
#if defined(__SANITIZE_ADDRESS__)
  const Deadline deadline(std::chrono::seconds(1));
  while (HasEndingThread() && !deadline.IsOver()) std::this_thread::yield();
#endif
}

}  // namespace

bool InFreshProcess() {
  if (getenv(kChildVariable) == nullptr) return false;
  [[maybe_unused]] static const int registered = atexit(WaitForEndingThreads);
  return true;
}

std::vector<std::string> OwnCommand() {
  const char* emulator = getenv("TASKD_TEST_EMULATOR");
  if (emulator == nullptr) return {"/proc/self/exe"};
  std::istringstream words(emulator);
  std::vector<std::string> command{std::istream_iterator<std::string>(words), {}};
  command.push_back(std::filesystem::read_symlink("/proc/self/exe").string());
  return command;
}

std::string FreshFolder() {
  const char* folder = getenv(kChildVariable);
  return folder == nullptr ? "" : folder;
}

void RunInFreshProcess() {
  char folder[] = "/tmp/taskd-sdk-test-XXXXXX";
  ASSERT_NE(mkdtemp(folder), nullptr);
  const std::string socket = std::string(folder) + "/proxy.sock";
  std::vector<std::string> variables = {std::string(kChildVariable) + "=" + folder, "TASKD_SOCKET=" + socket};
  for (char** variable = environ; *variable != nullptr; ++variable) {
    bool kept = true;
    for (const char* name :
         {"TASKD_SOCKET=", "RANK=", "LOCAL_RANK=", "RANK_ID=", "OMPI_COMM_WORLD_RANK=", "OMPI_COMM_WORLD_LOCAL_RANK=",
          "PMIX_RANK=", "PMIX_LOCAL_RANK=", "PMI_RANK=", "MPI_LOCALRANKID=", "SLURM_PROCID=", "SLURM_LOCALID=",
          "SLURM_STEP_NUM_TASKS=", "MINDX_TASK_ID=", "GTEST_OUTPUT=", "LD_PRELOAD=", "NVTX_INJECTION64_PATH=",
          "TASKD_NVTX_CHAIN=", "TASKD_MARK_NAMES="}) {
      kept = kept && strncmp(*variable, name, strlen(name)) != 0;
    }
    if (kept) variables.push_back(*variable);
  }
  // Two copies of the library have the same globals twice, and forked children may ask for a thread.
  AddOption(variables, "ASAN_OPTIONS=", "detect_odr_violation=0");
  AddOption(variables, "TSAN_OPTIONS=", "die_after_fork=0");
  const auto* info = ::testing::UnitTest::GetInstance()->current_test_info();
  std::vector<std::string> arguments = OwnCommand();
  arguments.push_back(std::string("--gtest_filter=") + info->test_suite_name() + "." + info->name());
  arguments.push_back("--gtest_also_run_disabled_tests");
  std::vector<char*> environment_pointers;
  for (std::string& variable : variables) environment_pointers.push_back(variable.data());
  environment_pointers.push_back(nullptr);
  std::vector<char*> argument_pointers;
  for (std::string& argument : arguments) argument_pointers.push_back(argument.data());
  argument_pointers.push_back(nullptr);
  pid_t child = 0;
  ASSERT_EQ(posix_spawnp(&child, argument_pointers[0], nullptr, nullptr, argument_pointers.data(),
                         environment_pointers.data()),
            0);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  RemoveSegments(socket);
  std::error_code error;
  std::filesystem::remove_all(folder, error);
  EXPECT_TRUE(WIFEXITED(status)) << "ended by signal " << WTERMSIG(status);
  if (WIFEXITED(status)) {
    EXPECT_EQ(WEXITSTATUS(status), 0) << "see the output of the fresh process above";
  }
}

int CountThreads() {
  const std::filesystem::directory_iterator threads("/proc/self/task");
  return static_cast<int>(std::distance(begin(threads), end(threads)));
}

bool OwnMounts() {
  if (unshare(CLONE_NEWNS) != 0) {
    const uid_t uid = geteuid();
    const gid_t gid = getegid();
    if (unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) return false;
    // Whoever is nobody in there can make no file, and the recorder would take other memory.
    std::ofstream("/proc/self/uid_map") << uid << " " << uid << " 1";
    std::ofstream("/proc/self/setgroups") << "deny";
    std::ofstream("/proc/self/gid_map") << gid << " " << gid << " 1";
  }
  return mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0;
}

int RunForked(const std::function<int()>& body) {
  const pid_t child = fork();
  if (child == 0) _exit(body());
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

}  // namespace taskd::testing
