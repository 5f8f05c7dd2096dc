// How long a process's main thread was ready to run and did not, because other work had its CPUs: what the kernel counts
// in /proc/PID/schedstat (CONFIG_SCHED_INFO, which distributions set).
//
// Design: looks at that file again and again, kept with the time they were made at; what a step waited is read off the
// line between them. Of a step that is shorter than the looks are apart it is an estimate, over many steps it is exact.
//
// Not thread-safe.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

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
  // `pid` is opened once: a later process of that number is not taken for it.
  void Look(pid_t pid, uint64_t now_ns);
  const CpuWaits& waits() const { return waits_; }

 private:
  bool opened_ = false;
  UniqueFd file_;
  CpuWaits waits_;
};

}  // namespace taskd::proxy
