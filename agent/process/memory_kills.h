// Whether it was the kernel that killed a process, for want of memory. A process cannot say so itself: it ends by a
// SIGKILL like any other. The memory cgroup that it was in counts such kills.
//
// cgroup v2 counts them in memory.events of the cgroup and of all above it, v1 in memory.oom_control of the cgroup itself
// alone. A container sees its own cgroup and at most some above it; where it sees none, nothing can be told.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace taskd::process {

class MemoryKills {
 public:
  // `root`: what stands before /proc and before the mount points; empty outside tests.
  explicit MemoryKills(std::string root = "") : root_(std::move(root)) {}

  // From now on, or from when another process of the same cgroup was watched first.
  void Watch(pid_t pid);

  // Of a process that was watched, by SIGKILL, for people; to be asked once, after its end. A kill that is counted is
  // that of one process.
  //   "killed by the kernel: out of memory (limit 300 MiB)"   without the limit where it is not this cgroup's, nor that
  //                                                           of a visible one above: the pod's, or the machine
  //   "SIGKILL from outside"                                  the counters are there, and have not changed
  //   "SIGKILL from outside, or out of memory"
  std::string Explain(pid_t pid);
  // Whether a kill has been counted that Explain() has not told of.
  bool HasKill(pid_t pid);

 private:
  struct Hierarchy {
    bool is_v2 = false;
    std::string mount_root;   // the cgroup that is mounted
    std::string mount_point;  // where
  };
  struct Counters {
    std::optional<uint64_t> kills;
    uint64_t at_limit = 0;  // how often the limit kept memory from being had
  };

  std::vector<Hierarchy> ReadHierarchies() const;
  std::vector<std::string> FoldersOf(pid_t pid, bool* is_v2) const;
  Counters ReadCounters(const std::string& folder, bool is_v2) const;
  std::optional<uint64_t> ReadLimit(const std::string& folder, bool is_v2) const;
  bool HasReached(const std::string& folder, bool is_v2, uint64_t limit) const;
  std::string ReadText(const std::string& path) const;

  struct Watched {
    bool is_v2 = false;
    std::vector<std::string> folders;  // its own cgroup, then those above it; only visible ones
  };
  // The folder whose counter tells of this process; nullptr: there is none.
  const std::string* Telling(const Watched& watched) const;

  std::string root_;
  std::map<pid_t, Watched> watched_;
  std::map<std::string, Counters> before_;  // by folder
};

}  // namespace taskd::process
