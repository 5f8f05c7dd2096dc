// How long a process was ready to run and did not, because other work had its CPUs or a limit (cpu.max) kept it from
// them: what the kernel counts in /proc/PID/task/*/schedstat (CONFIG_SCHED_INFO, which distributions set).
//
// Design: looks at those files again and again; of each time between two looks what the thread waited that waited most
// counts, for all others wait for that one where they work together. The looks are kept with their times, and what a step
// waited is read off the line between them: of a step that is shorter than the looks are apart it is an estimate, over
// many steps it is right.
//
// Not thread-safe.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"
#include "common/unique_fd.h"

namespace taskd::proxy {

// The second number of such a file: ns since the thread's start. Empty: it is none.
std::optional<uint64_t> ParseSchedstat(absl::string_view text);

// What was waited until some times.
class CpuWaits {
 public:
  static constexpr size_t kMostLooks = 128;

  // Times in order, ns; what does not go on from the last look is left out.
  void Add(uint64_t now_ns, uint64_t waited_ns);
  // Between two times, ns. Empty: nobody looked before the one, or after the other.
  std::optional<uint64_t> Between(uint64_t begin_ns, uint64_t end_ns) const;

 private:
  struct Look {
    uint64_t at_ns;
    uint64_t waited_ns;
  };

  // Until then; at_ns of the first look <= time <= of the last.
  double Until(uint64_t time_ns) const;

  std::vector<Look> looks_;  // by time; the older, the further apart
};

// Of one process.
class CpuWaitMeter {
 public:
  static constexpr uint64_t kLookEveryNs = 200'000'000;
  // A look takes some microseconds a thread: this long for each of them until the next, and never more of them.
  static constexpr uint64_t kPerThreadNs = 10'000'000;
  static constexpr size_t kMostThreads = 1024;

  bool IsDue(uint64_t now_ns) const { return now_ns >= next_look_ns_; }
  // `pid` is opened once: a later process of that number is not taken for it.
  void Look(pid_t pid, uint64_t now_ns);
  const CpuWaits& waits() const { return waits_; }

 private:
  bool opened_ = false;
  UniqueFd tasks_;                              // its folder of threads
  absl::flat_hash_map<int, uint64_t> threads_;  // as of the last look
  uint64_t next_look_ns_ = 0;
  uint64_t waited_ns_ = 0;
  CpuWaits waits_;
};

}  // namespace taskd::proxy
