// The library as part of a process: load, fork, exec, destroy, two copies, no room.
#include <dlfcn.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "mstx_api.h"
#include "taskd/hello.h"
#include "taskd/taskd.h"
#include "testing/fresh_process.h"
#include "testing/segment_view.h"

namespace taskd::worker {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

using testing::Record;
using testing::RunForked;
using testing::SegmentDescriptors;
using testing::SegmentView;

std::string Output(const std::string& command) {
  FILE* pipe = popen(command.c_str(), "r");
  std::string output;
  std::array<char, 4096> buffer;
  while (size_t bytes = fread(buffer.data(), 1, buffer.size(), pipe)) output.append(buffer.data(), bytes);
  const int status = pclose(pipe);
  return status == 0 ? output : output + "\nexit status " + std::to_string(status);
}

std::vector<std::string> SegmentFiles() {
  std::vector<std::string> found;
  const char* socket_path = getenv("TASKD_SOCKET");
  if (socket_path == nullptr) return found;
  char prefix[96];
  snprintf(prefix, sizeof(prefix), "taskd-%u-%016llx-%d-", geteuid(),
           static_cast<unsigned long long>(hello::HashSocketPath(socket_path)), getpid());
  for (const auto& entry : std::filesystem::directory_iterator(hello::kSegmentFolder)) {
    if (entry.path().filename().string().starts_with(prefix)) found.push_back(entry.path().string());
  }
  return found;
}

TEST(SymbolsTest, OnlyTheInterfaceIsVisible) {
  std::istringstream symbols(Output("nm -D --defined-only " TASKD_SDK_PATH));
  std::string address;
  std::string type;
  std::string name;
  int count = 0;
  int nccl_count = 0;
  while (symbols >> address >> type >> name) {
    // In front of NCCL's, and not found by dlsym (libtaskd.map).
    if (name.starts_with("nccl") && name.ends_with("@TASKD_NCCL_CALLS") && !name.ends_with("@@TASKD_NCCL_CALLS")) {
      ++nccl_count;
      continue;
    }
    if (name == "TASKD_NCCL_CALLS" || name.starts_with("__odr_asan.")) continue;  // the version; a sanitizer's own
    ++count;
    bool allowed = name.starts_with("mstx") || name.starts_with("Init") || name.starts_with("taskd_");
    for (const char* legacy : {"StartMonitorClient", "DestroyTaskdWorker", "AtExitAction", "RegisterSwitchCallback",
                               "RegisterStressTestCallback", "RegisterBackendCallback", "StartTaskdManager",
                               "DestroyTaskdProxy", "CreateTaskdLog", "SyncSendMessage", "AsyncSendMessage",
                               "ReceiveMessageC", "FreeCMemory", "DestroyNetTool", "SendMessageToBackend"}) {
      allowed = allowed || name == legacy;
    }
    EXPECT_TRUE(allowed) << name;
  }
  EXPECT_EQ(count, 46);
  EXPECT_EQ(nccl_count, 22);
}

TEST(SymbolsTest, NeedsNothingButLibc) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer's runtime needs more";
  std::istringstream lines(Output("readelf -dW " TASKD_SDK_PATH));
  std::string line;
  std::set<std::string> needed;
  while (std::getline(lines, line)) {
    if (line.find("(NEEDED)") != std::string::npos) needed.insert(line.substr(line.find('[')));
    if (line.find("(SONAME)") != std::string::npos) {
      EXPECT_NE(line.find("[libtaskd.so]"), std::string::npos) << line;
    }
  }
  needed.erase("[ld-linux-aarch64.so.1]");  // the canary of arm64 lies there
  // Up to glibc 2.33 these three are libc.
  EXPECT_EQ(needed, (std::set<std::string>{"[libc.so.6]", "[libdl.so.2]", "[libpthread.so.0]"}));
}

FRESH_TEST(LoadTest, DoesNothingBeforeTheFirstMark) {
  taskd_domain_create("a domain");
  EXPECT_EQ(taskd_enabled_kinds(), ring::kGateAllKinds);
  taskd_range_end(17);
  taskd_worker_stats stats;
  EXPECT_EQ(taskd_worker_get_stats(&stats), 0);
  EXPECT_EQ(stats.rank, -1);
  EXPECT_EQ(stats.threads, 0u);
  EXPECT_TRUE(SegmentDescriptors().empty());
  EXPECT_TRUE(SegmentFiles().empty());
  if (!kSanitized) {
    EXPECT_EQ(testing::CountThreads(), 1);
  }
}

// The system calls of a preloaded program that makes no mark.
FRESH_TEST(LoadTest, PreloadedIntoAProgramWithoutMarks) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer's runtime must come first";
  EXPECT_EQ(Output("RANK=0 LD_PRELOAD=" TASKD_SDK_PATH " /bin/echo hello 2>&1"), "hello\n");
  const std::string trace = testing::FreshFolder() + "/trace";
  const std::string tried = Output("strace -f -o " + trace + " /bin/true 2>&1");
  if (!tried.empty()) GTEST_SKIP() << "strace does not work here: " << tried;
  EXPECT_EQ(Output("RANK=0 strace -f -E LD_PRELOAD=" TASKD_SDK_PATH " -o " + trace + " /bin/true 2>&1"), "");
  const std::string calls = Output("cat " + trace);
  const size_t loaded = calls.find("libtaskd.so");
  ASSERT_NE(loaded, std::string::npos);
  for (const char* call : {"clone", "socket", "connect", "memfd_create", "fallocate", "write(", "/dev/shm", "O_RDWR",
                           "O_WRONLY", "unlink", "MAP_SHARED", "clocksource"}) {
    EXPECT_EQ(calls.find(call, loaded), std::string::npos) << call;
  }
}

// AddressSanitizer starts a thread under locks that a child forked meanwhile finds locked for ever. Our thread has left
// them behind once it sleeps.
bool HelloThreadSleeps() {
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::ifstream stat(task.path() / "stat");
    const std::string text((std::istreambuf_iterator<char>(stat)), std::istreambuf_iterator<char>());
    if (text.find("(taskd-hello) S") != std::string::npos) return true;
  }
  return false;
}

FRESH_TEST(ForkTest, ChildRecordsNothing) {
  setenv("RANK", "0", 1);
  const uint64_t id = taskd_range_start("step 1");
  ASSERT_NE(id, 0u);
  while (!HelloThreadSleeps()) sched_yield();
  SegmentView segment;
  EXPECT_EQ(RunForked([&] {
              taskd_mark("child");
              taskd_range_end(id);
              taskd_domain_mark(taskd_domain_create("new in the child"), "child");
              if (taskd_range_start("child") != 0) return 1;
              if (taskd_enabled_kinds() != 0) return 2;
              if (!SegmentDescriptors().empty()) return 3;
              if (!SegmentFiles().empty()) return 4;
              if (taskd_worker_start() != -1) return 5;
              return 0;
            }),
            0);
  EXPECT_EQ(segment.Records().size(), 1u);
  taskd_mark("parent");
  EXPECT_EQ(segment.Last().name, "parent");
}

FRESH_TEST(ForkTest, ChildOfAProcessWithoutMarksRecordsNothing) {
  setenv("RANK", "0", 1);
  EXPECT_EQ(RunForked([] {
              if (taskd_enabled_kinds() != 0) return 1;
              taskd_mark("child");
              return SegmentDescriptors().empty() ? 0 : 2;
            }),
            0);
}

FRESH_TEST(ForkTest, ChildThatAsksGetsItsOwnSegment) {
  const uint64_t parent_id = taskd_range_start("step 1");
  SegmentView segment;
  auto child = [&] {
    if (taskd_worker_init(5, 1, 0) != 0) return 1;
    const uint64_t id = taskd_range_start("step 1");
    if (id == 0 || id == parent_id) return 2;
    taskd_range_end(id);
    SegmentView own;
    if (own.header().rank.load() != 5 || own.header().local_rank.load() != 1) return 3;
    if (own.header().pid != static_cast<uint32_t>(getpid())) return 4;
    if (own.Records().size() != 2) return 5;
    while (!HelloThreadSleeps()) sched_yield();
    // A grandchild may ask as well.
    return RunForked([] {
      taskd_mark("nothing");
      if (taskd_worker_init(6, -1, 0) != 0) return 6;
      taskd_mark("something");
      return SegmentView().Records().size() == 1 ? 0 : 7;
    });
  };
  EXPECT_EQ(RunForked(child), 0);
  EXPECT_EQ(segment.Records().size(), 1u);
  EXPECT_EQ(segment.header().rank.load(), -1);
}

FRESH_TEST(ForkTest, ForkWhileOthersMark) {
  taskd_mark("main");
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([&] {
      while (!stop.load()) {
        std::thread([] { taskd_mark("short-lived"); }).join();
        for (int mark = 0; mark < 100; ++mark) taskd_mark("step 1");
      }
    });
  }
  for (int i = 0; i < 50; ++i) {
    EXPECT_EQ(RunForked([] {
                taskd_mark("child");
                return taskd_enabled_kinds() == 0 ? 0 : 1;  // no allocation in this child, see above
              }),
              0);
  }
  stop = true;
  for (std::thread& thread : threads) thread.join();
  std::string problem;
  for (const Record& record : SegmentView().Records(&problem)) EXPECT_NE(record.name, "child");
  EXPECT_EQ(problem, "");
}

FRESH_TEST(ForkTest, DescriptorsDoNotPassExec) {
  // Whoever runs the test may have passed descriptors of its own.
  const std::string before = Output("ls /proc/self/fd | wc -l");
  ASSERT_EQ(taskd_worker_init(0, 0, 0), 0);
  taskd_mark("x");
  EXPECT_EQ(Output("ls /proc/self/fd | wc -l"), before);
  EXPECT_EQ(Output("ls -l /proc/self/fd | grep -c -e /dev/shm/taskd- -e memfd:taskd || true"), "0\n");
}

// A reader tells the living from the dead by it.
FRESH_TEST(ForkTest, OnlyTheWriterHoldsTheLock) {
  taskd_mark("x");
  const std::vector<std::string> files = SegmentFiles();
  ASSERT_EQ(files.size(), 1u);
  struct stat info;
  ASSERT_EQ(stat(files[0].c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 07777, 0600u);
  auto locked = [&] {
    const int fd = open(files[0].c_str(), O_RDWR | O_CLOEXEC);
    struct flock lock = {};
    lock.l_type = F_WRLCK;
    lock.l_whence = SEEK_SET;
    return fcntl(fd, F_GETLK, &lock) == 0 && lock.l_type == F_WRLCK && lock.l_pid == getppid() ? 0 : 1;
  };
  EXPECT_EQ(RunForked(locked), 0);
}

// What a process says of itself that is started with these variables: "rank local_rank".
std::string IdentityWith(const std::map<std::string, std::string>& variables) {
  int ends[2];
  EXPECT_EQ(pipe(ends), 0);
  const int code = RunForked([&] {
    dup2(ends[1], STDOUT_FILENO);
    for (const auto& [name, value] : variables) setenv(name.c_str(), value.c_str(), 1);
    const std::string program = std::filesystem::read_symlink("/proc/self/exe").string();
    execl(program.c_str(), program.c_str(), "--gtest_filter=LifeTest.DISABLED_SaysIdentity",
          "--gtest_also_run_disabled_tests", nullptr);
    return 1;
  });
  EXPECT_EQ(code, 0);
  close(ends[1]);
  std::string text;
  char buffer[4096];
  for (ssize_t n; (n = read(ends[0], buffer, sizeof(buffer))) > 0;) text.append(buffer, static_cast<size_t>(n));
  close(ends[0]);
  const size_t begin = text.find("identity:");
  return begin == std::string::npos ? text : text.substr(begin + 9, text.find(';', begin) - begin - 9);
}
TEST(LifeTest, DISABLED_SaysIdentity) {
  taskd_mark("x");
  SegmentView segment;
  printf("identity:%d %d;\n", segment.header().rank.load(), segment.header().local_rank.load());
}

FRESH_TEST(LifeTest, RankOfTheEnvironment) {
  for (const char* name : {"RANK", "OMPI_COMM_WORLD_RANK", "RANK_ID", "PMIX_RANK", "PMI_RANK"}) {
    EXPECT_EQ(IdentityWith({{name, "42"}}), "42 -1") << name;
  }
  for (const char* name : {"LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "PMIX_LOCAL_RANK"}) {
    EXPECT_EQ(IdentityWith({{"RANK", "1"}, {name, "2"}}), "1 2") << name;
  }
}

FRESH_TEST(LifeTest, TheFirstOfSeveralRanksIsTaken) {
  std::map<std::string, std::string> variables = {
      {"RANK", "1"},     {"OMPI_COMM_WORLD_RANK", "2"}, {"RANK_ID", "3"},       {"PMIX_RANK", "4"},
      {"PMI_RANK", "5"}, {"SLURM_PROCID", "6"},         {"SLURM_LOCALID", "7"}, {"SLURM_STEP_NUM_TASKS", "8"}};
  int expected = 1;
  for (const char* name : {"RANK", "OMPI_COMM_WORLD_RANK", "RANK_ID", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID"}) {
    EXPECT_EQ(IdentityWith(variables), std::to_string(expected++) + " 7");
    variables[name] = name[0] == 'P' ? "" : "-1";
  }
  EXPECT_EQ(IdentityWith(variables), "-1 7");
}

// Each task of such a step is a launcher, or there is none: a batch shell.
FRESH_TEST(LifeTest, SlurmsTaskIsARankOnlyWhereThereAreSeveral) {
  for (const char* tasks : {"", "1", "x", "-2"}) {
    EXPECT_EQ(IdentityWith({{"SLURM_PROCID", "0"}, {"SLURM_LOCALID", "0"}, {"SLURM_STEP_NUM_TASKS", tasks}}), "-1 -1")
        << tasks;
  }
  EXPECT_EQ(IdentityWith({{"SLURM_PROCID", "0"}, {"SLURM_LOCALID", "0"}, {"SLURM_NTASKS", "4"}}), "-1 -1");
  EXPECT_EQ(IdentityWith({{"SLURM_PROCID", "3"}, {"SLURM_LOCALID", "1"}, {"SLURM_STEP_NUM_TASKS", "4"}}), "3 1");
}

FRESH_TEST(LifeTest, MalformedRankIsNone) {
  setenv("RANK", "4x", 1);
  setenv("OMPI_COMM_WORLD_RANK", "-3", 1);
  setenv("RANK_ID", "99999999999", 1);
  setenv("PMI_RANK", "", 1);
  taskd_mark("x");
  EXPECT_EQ(SegmentView().header().rank.load(), -1);
}

FRESH_TEST(LifeTest, InitAfterMarksAndAgain) {
  taskd_mark("before init");
  SegmentView segment;
  EXPECT_EQ(taskd_worker_init(-1, 0, 0), -1);
  EXPECT_EQ(taskd_worker_init(0, -2, 0), -1);
  EXPECT_EQ(taskd_worker_init(0, 0, -1), -1);
  EXPECT_EQ(taskd_worker_start(), -1);
  EXPECT_EQ(taskd_worker_init(3, -1, 100), 0);
  EXPECT_EQ(taskd_worker_start(), 0);
  EXPECT_EQ(segment.header().rank.load(), 3);
  EXPECT_EQ(taskd_worker_init(4, 1, 100), 0);
  EXPECT_EQ(segment.header().rank.load(), 4);
  taskd_mark("after init");
  EXPECT_EQ(segment.Records().size(), 2u);
  EXPECT_EQ(SegmentDescriptors().size(), 1u);
}

FRESH_TEST(LifeTest, DestroyAndInitAgain) {
  ASSERT_EQ(taskd_worker_init(0, 0, 0), 0);
  const uint64_t id = taskd_range_start("one");
  SegmentView segment;
  EXPECT_EQ(taskd_worker_destroy(), 0);
  EXPECT_EQ(taskd_worker_destroy(), -1);
  EXPECT_EQ(taskd_enabled_kinds(), 0u);
  taskd_mark("off");
  taskd_range_end(id);
  EXPECT_EQ(segment.Records().size(), 1u);
  ASSERT_EQ(taskd_worker_init(1, 0, 0), 0);
  taskd_mark("two");
  EXPECT_EQ(segment.Last().name, "two");
  EXPECT_EQ(segment.Records().size(), 2u);
}

FRESH_TEST(LifeTest, DestroyBeforeTheFirstMark) {
  EXPECT_EQ(taskd_worker_destroy(), -1);
  taskd_mark("off");
  EXPECT_TRUE(SegmentDescriptors().empty());
}

// A proxy cannot send a mark astray through the gate.
FRESH_TEST(LifeTest, AnyGateValueIsHarmless) {
  taskd_mark("x");
  SegmentView segment;
  for (int bit = 0; bit < 32; ++bit) {
    segment.SetGate(1u << bit);
    taskd_range_end(taskd_range_start("step 1"));
    taskd_mark("other");
  }
  segment.SetGate(~0u);
  taskd_range_end(taskd_range_start("step 1"));
  std::string problem;
  segment.Records(&problem);
  EXPECT_EQ(problem, "");
}

FRESH_TEST(NoRoomTest, FileSizeLimit) {
  rlimit limit = {1 << 20, 1 << 20};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
  for (int i = 0; i < 3000; ++i) taskd_mark("x");  // SIGXFSZ would end the process
  taskd_worker_stats stats;
  ASSERT_EQ(taskd_worker_get_stats(&stats), 0);
  EXPECT_EQ(stats.records, 0u);
  EXPECT_EQ(stats.dropped, 3000u);
}

FRESH_TEST(NoRoomTest, NoDescriptors) {
  rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit limit = {3, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
  taskd_mark("x");
  EXPECT_EQ(taskd_range_start("x"), 0u);
  EXPECT_EQ(taskd_worker_init(0, 0, 0), -1);
  EXPECT_EQ(taskd_enabled_kinds(), 0u);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_EQ(taskd_worker_init(0, 0, 0), 0);
  taskd_mark("x");
  EXPECT_EQ(SegmentView().Last().name, "x");
}

bool MountSmallShm(const char* size) {
  return testing::OwnMounts() && mount("tmpfs", "/dev/shm", "tmpfs", 0, size) == 0;
}

FRESH_TEST(NoRoomTest, AShmThatTrainingNeedsItselfIsLeftAlone) {
  if (!MountSmallShm("size=64m")) GTEST_SKIP() << "no right to mount here";
  taskd_mark("x");
  EXPECT_TRUE(SegmentFiles().empty());
  EXPECT_EQ(SegmentView().Last().name, "x");
}

FRESH_TEST(NoRoomTest, RingsBeyondTheRoomAreDropped) {
  // The reserve of 256 MiB, the header and one large ring, but not a second one.
  if (!MountSmallShm("size=260m")) GTEST_SKIP() << "no right to mount here";
  taskd_mark("fits");
  std::thread([] {
    for (int i = 0; i < 5000; ++i) taskd_mark("does not fit");
  }).join();
  taskd_worker_stats stats;
  ASSERT_EQ(taskd_worker_get_stats(&stats), 0);
  EXPECT_EQ(stats.records, 1u);
  EXPECT_EQ(stats.dropped, 5000u);
  taskd_mark("goes on");
  EXPECT_EQ(SegmentView().Last().name, "goes on");
}

// Answers EPERM to one system call of this process, from now on; false where there are no filters (an emulator).
bool Refuse(uint32_t call) {
  sock_filter program[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog filter = {static_cast<unsigned short>(std::size(program)), program};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0;
}

FRESH_TEST(NoRoomTest, AFilterThatRefusesFallocateCostsNoMark) {
  if (!Refuse(SYS_fallocate)) GTEST_SKIP() << "no filters of system calls here";
  for (int i = 0; i < 5000; ++i) taskd_mark("x");
  taskd_worker_stats stats;
  ASSERT_EQ(taskd_worker_get_stats(&stats), 0);
  EXPECT_EQ(stats.records, 5000u);
  EXPECT_EQ(stats.dropped, 0u);
  EXPECT_EQ(SegmentView().Last().name, "x");
}

FRESH_TEST(NoRoomTest, ClosedStandardStreamsAreNotTaken) {
  const int kept = dup(STDERR_FILENO);
  close(STDERR_FILENO);
  taskd_mark("x");
  const std::vector<int> found = SegmentDescriptors();
  dup2(kept, STDERR_FILENO);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_GT(found[0], STDERR_FILENO);
}

// The program closed our descriptor and opened its own file under the number.
FRESH_TEST(NoRoomTest, AForeignFileIsNotTouched) {
  taskd_mark("x");
  const std::string path = testing::FreshFolder() + "/theirs";
  const int theirs = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  const int ours = SegmentDescriptors().at(0);
  ASSERT_EQ(dup2(theirs, ours), ours);
  std::thread([] { taskd_mark("needs a ring"); }).join();
  EXPECT_EQ(std::filesystem::file_size(path), 0u);
}

struct Copy {
  explicit Copy(const std::string& path) : handle(dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL)) {}
  template <typename Function>
  Function* Get(const char* name) const {
    return reinterpret_cast<Function*>(dlsym(handle, name));
  }
  void* handle;
};

FRESH_TEST(TwoCopiesTest, ActAsOne) {
  const std::string path = testing::FreshFolder() + "/libtaskd.so";
  std::filesystem::copy_file(TASKD_SDK_PATH, path);
  Copy copy(path);
  ASSERT_NE(copy.handle, nullptr) << dlerror();
  auto* copy_mark = copy.Get<void(const char*)>("taskd_mark");
  ASSERT_NE(copy_mark, &taskd_mark);
  auto* copy_start = copy.Get<uint64_t(const char*)>("taskd_range_start");
  auto* copy_end = copy.Get<void(uint64_t)>("taskd_range_end");
  auto* copy_domain = copy.Get<taskd_domain*(const char*)>("taskd_domain_create");
  auto* copy_domain_mark = copy.Get<void(taskd_domain*, const char*)>("taskd_domain_mark");
  copy_mark("from the copy");
  SegmentView segment;
  EXPECT_EQ(segment.Last().name, "from the copy");
  taskd_mark("from the first");
  EXPECT_EQ(segment.Last().name, "from the first");
  const uint64_t id = copy_start("step 1");
  EXPECT_EQ(segment.Last().id, id);
  taskd_range_end(id);
  EXPECT_EQ(segment.Last().type, ring::kRecordRangeEnd);
  copy_end(taskd_range_start("step 2"));
  EXPECT_EQ(segment.Last().type, ring::kRecordRangeEnd);
  taskd_domain* domain = copy_domain("shared");
  EXPECT_EQ(taskd_domain_create("shared"), domain);
  copy_domain_mark(domain, "in it");
  EXPECT_STREQ(segment.header().domain_names[segment.Last().domain], "shared");
  EXPECT_EQ(copy.Get<int(int, int, int)>("taskd_worker_init")(9, 1, 0), 0);
  EXPECT_EQ(taskd_worker_start(), 0);
  EXPECT_EQ(segment.header().rank.load(), 9);
  segment.SetGate(ring::kGateStep);
  EXPECT_EQ(copy.Get<uint32_t()>("taskd_enabled_kinds")(), ring::kGateStep);
  EXPECT_EQ(copy_start("forward"), 0u);
  taskd_worker_stats stats;
  EXPECT_EQ(copy.Get<int(taskd_worker_stats*)>("taskd_worker_get_stats")(&stats), 0);
  EXPECT_EQ(stats.records, 7u);
  EXPECT_EQ(copy.Get<int()>("taskd_worker_destroy")(), 0);
  EXPECT_EQ(taskd_range_start("step 3"), 0u);
  EXPECT_EQ(SegmentDescriptors().size(), 1u);
}

// The copy is asked first: an end, the kinds, and a fork.
FRESH_TEST(TwoCopiesTest, CopyBeforeAnyMark) {
  const std::string path = testing::FreshFolder() + "/libtaskd.so";
  std::filesystem::copy_file(TASKD_SDK_PATH, path);
  Copy copy(path);
  ASSERT_NE(copy.handle, nullptr) << dlerror();
  EXPECT_EQ(copy.Get<uint32_t()>("taskd_enabled_kinds")(), ring::kGateAllKinds);
  copy.Get<void(uint64_t)>("taskd_range_end")(5);
  EXPECT_TRUE(SegmentDescriptors().empty());
  const uint64_t id = taskd_range_start("x");
  copy.Get<void(uint64_t)>("taskd_range_end")(id);
  SegmentView segment;
  EXPECT_EQ(segment.Last().id, id);
  EXPECT_EQ(segment.Last().type, ring::kRecordRangeEnd);
  copy.Get<void(const char*)>("taskd_mark")("y");
  EXPECT_EQ(RunForked([&] {
              copy.Get<void(const char*)>("taskd_mark")("child");
              return SegmentDescriptors().empty() ? 0 : 1;
            }),
            0);
  EXPECT_EQ(segment.Last().name, "y");
}

}  // namespace
}  // namespace taskd::worker
