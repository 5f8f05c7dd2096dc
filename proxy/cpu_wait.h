// How long a process was ready to run and did not, because other work had its CPUs or a limit (cpu.max) kept it from
// them: what the kernel counts in /proc/PID/task/*/schedstat (CONFIG_SCHED_INFO, which distributions set).
//
// Design: looks at those files again and again. Of each time between two looks what the thread waited that waited most
// counts, of those that do the work: that run at least half as long as the one that runs most. Where several share the
// work, all wait for that one. The looks are kept with their times, and what a step waited is read off the line between
// them: of a step that is shorter than the looks are apart it is an estimate, over many steps it is right.
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

// What such a file says: ns since the thread's start.
struct Schedstat {
  uint64_t ran_ns = 0;
  uint64_t waited_ns = 0;

  friend bool operator==(const Schedstat&, const Schedstat&) = default;
};
std::optional<Schedstat> ParseSchedstat(absl::string_view text);  // empty: it is none

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
  // A look takes 2 to 4 us a thread: this long for each of them until the next, and never more of them.
  static constexpr uint64_t kPerThreadNs = 25'000'000;
  // The same where a look is wanted because a step has ended: a look then says what that step waited.
  static constexpr uint64_t kPerThreadOfStepNs = 2'500'000;
  static constexpr size_t kMostThreads = 1024;

  bool IsDue(uint64_t now_ns) const { return now_ns >= next_look_ns_; }
  // For a step that ended then.
  bool IsDueFor(uint64_t end_ns, uint64_t now_ns) const { return end_ns > last_look_ns_ && now_ns >= next_of_step_ns_; }
  // `pid` is opened once: a later process of that number is not taken for it.
  void Look(pid_t pid, uint64_t now_ns);
  const CpuWaits& waits() const { return waits_; }

 private:
  struct Thread {
    Schedstat now;           // as of the last look
    double ran_of_late = 0;  // ns, the older the less
    uint64_t waited_ns = 0;  // between the last two looks
  };

  // Its threads as they are now; none: it has ended, or the kernel does not say.
  absl::flat_hash_map<int, Thread> ReadThreads() const;

  bool opened_ = false;
  UniqueFd tasks_;  // its folder of threads
  absl::flat_hash_map<int, Thread> threads_;
  uint64_t last_look_ns_ = 0;
  uint64_t next_look_ns_ = 0;
  uint64_t next_of_step_ns_ = 0;
  uint64_t waited_ns_ = 0;
  CpuWaits waits_;
};

}  // namespace taskd::proxy
