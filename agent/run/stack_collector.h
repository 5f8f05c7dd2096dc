// Where the ranks are: what each thread of each rank of this node does, without ptrace, and without ending, stopping or
// slowing anybody. For hangs; nothing here is called in a job that gets on.
//
// Three sources, each taken where it is to be had (worker_sdk/include/taskd/stack_dump.h):
//   /proc            state, wchan and system call of each thread; works for stopped and uninterruptible ones too
//   libtaskd.so      each thread's return addresses, which are named here from the ELF files of its modules
//   faulthandler     Python frames, where the package `taskd` is imported
// A process is sent a signal only if it says that it is armed and catches it; else the signal would end it.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace taskd {

struct ThreadStack {
  pid_t tid = 0;                    // 0: known to Python only
  std::string name;                 // comm
  std::string state;                // of /proc: "S", "D", "T", ...; empty: the thread ended meanwhile
  std::string wchan;                // where in the kernel it waits; empty: nowhere, or not readable
  std::string syscall;              // "futex", "poll", a number; "running"; empty: not readable
  std::vector<std::string> python;  // innermost first: "wait (threading.py:320)"
  std::vector<std::string> native;  // innermost first: "poll+0x4f (libc.so.6)", "0x1234 (libfoo.so)", "0x7f00001234"
  std::string note;                 // why there are no native frames, or not all
};

struct RankStacks {
  int rank = 0;
  int node = 0;
  pid_t pid = 0;                     // whose threads these are: the rank's process, or a child of it that is armed
  std::string command;               // comm of the process
  std::string note;                  // why there is less than one would expect; empty: nothing
  std::vector<ThreadStack> threads;  // the main thread first, then by tid; at most kMaxStackThreads
};

inline constexpr size_t kMaxStackThreads = 1024;
inline constexpr size_t kMaxLogStackBytes = size_t{64} * 1024;

// Collects from `pids` (rank -> pid), for at most `timeout_ns`, and returns as soon as all have answered. `folder` is
// what the ranks were given as TASKD_STACK_DIR: made by PrepareStackFolder. Blocks: call it in a thread of its own
// (StackCollection). Any number may run at a time.
std::vector<RankStacks> CollectStacks(const std::map<int, pid_t>& pids, int node, const std::string& folder,
                                      int64_t timeout_ns);

// Makes the folder, for this user only. The error names the folder and the system's reason.
absl::Status PrepareStackFolder(const std::string& folder);

// One collection in a thread of its own.
class StackCollection {
 public:
  // `done` is called in that thread: EventLoop::Post is what it wants to do.
  StackCollection(std::map<int, pid_t> pids, int node, std::string folder, int64_t timeout_ns,
                  std::function<void(std::vector<RankStacks>)> done);
  ~StackCollection();  // waits for it, at most `timeout_ns`
  StackCollection(const StackCollection&) = delete;
  StackCollection& operator=(const StackCollection&) = delete;

 private:
  std::thread thread_;
};

// JSON, on one line: what launchers send to each other. What is not UTF-8 is replaced. At most about `max_bytes`: above
// it outer frames are left out, then all threads but the main ones.
std::string EncodeStacks(const std::vector<RankStacks>& stacks, size_t max_bytes = size_t{4} << 20);
// INVALID_ARGUMENT: not such a text, or more than 65,536 ranks. Unknown fields are ignored.
absl::StatusOr<std::vector<RankStacks>> DecodeStacks(const std::string& json);

struct MergedStacks {
  std::string title;  // one line: how many groups, and who is alone
  std::string log;    // the title and the groups, rarest first, at most kMaxLogStackBytes
  std::string full;   // everything
};

// Over the ranks of all nodes. Ranks whose main threads have equal stacks (by the names of their functions, Python's
// where there are some) make a group; the rarest group comes first: in a hang, who is alone is who is waited for. After
// them the other threads, grouped alike.
MergedStacks MergeStacks(std::vector<RankStacks> stacks);

}  // namespace taskd
