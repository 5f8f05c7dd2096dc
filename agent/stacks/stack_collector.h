// Where the ranks are: what each thread of each rank of this node does, without ptrace, and without ending, stopping or
// slowing anybody. For hangs; nothing here is called in a job that gets on.
//
// Three sources, each taken where it is to be had (worker_sdk/include/taskd/stack_dump.h):
//   /proc            state, wchan and system call of each thread; works for stopped and uninterruptible ones too
//   libtaskd.so      each thread's return addresses, which are named here from the ELF files of its modules
//   faulthandler     Python frames, where the package `taskd` is imported
// A process is sent the signal only if it has announced itself as armed and catches it; else the signal would kill it.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "agent/stacks/rank_stacks.h"

namespace taskd::stacks {

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

}  // namespace taskd::stacks
