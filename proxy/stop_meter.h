// How long a process has not run although it lives: SIGSTOP, a debugger, a frozen cgroup, a suspended job, a container that
// was paused.
//
// Design: whoever runs looks at it again and again (LookAt). A process that is stopped at both ends of an interval did
// not run in it; of one in which it was stopped or went on, half. Where the looks themselves are far apart, the watcher
// did not run either, and that is the process's suspension too unless it used the CPU meanwhile.
//
// Pure but for what reads files. Not thread-safe.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace taskd::proxy {

struct ProcessLook {
  bool stopped = false;
  uint64_t cpu_ns = 0;         // of all its threads since its start; in steps of the kernel's clock tick
  uint64_t reaped_cpu_ns = 0;  // the same of children that have ended
  bool on_disk = false;        // its main thread waits for storage, or for a device

  friend bool operator==(const ProcessLook&, const ProcessLook&) = default;
};

// A line of /proc/PID/stat; empty: it is none.
std::optional<ProcessLook> ParseProcessStat(absl::string_view line);
// Empty: there is no such process.
std::optional<ProcessLook> ReadProcess(pid_t pid);

// Its /proc/PID/cgroup; empty: there is no such process.
std::string ReadCgroups(pid_t pid);
// Whether such a cgroup, or one above it, is frozen. Version 1 and 2, below `mounts`.
bool IsFrozen(absl::string_view cgroups, const std::string& mounts = "/sys/fs/cgroup");

class StopMeter {
 public:
  static constexpr uint64_t kLookEveryNs = 200'000'000;
  // Looks that are further apart say that the watcher did not run.
  static constexpr uint64_t kGapNs = 1'000'000'000;

  bool IsDue(uint64_t now_ns) const { return now_ns - looked_ns_ >= kLookEveryNs; }
  // It has not used the CPU since the last look.
  bool IsIdle(const ProcessLook& look) const { return looked_ns_ != 0 && look.cpu_ns == last_.cpu_ns; }
  // What of the time since the last look the process did not run, ns. `now_ns`: of a steady clock.
  uint64_t Look(const ProcessLook& look, uint64_t now_ns);

 private:
  bool SleptThrough(const ProcessLook& look, uint64_t gap_ns) const;

  uint64_t looked_ns_ = 0;  // 0: never
  ProcessLook last_;
  uint64_t last_cpu_ns_ = 0;  // used between the two looks before
};

}  // namespace taskd::proxy
