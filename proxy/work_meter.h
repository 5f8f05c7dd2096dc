// Whether a process that makes no marks is at work all the same: it, or a process that descends from it, uses the CPU,
// reads or writes. It saves with a writer that nobody marks, evaluates, or merges files.
//
// Pure but for what reads /proc. Not thread-safe.
#pragma once

#include <sys/types.h>

#include <cstdint>

#include "absl/strings/string_view.h"

namespace taskd::proxy {

// Of a process and all that descend from it, those that have ended too.
struct ProcessWork {
  uint64_t cpu_ns = 0;
  uint64_t io_bytes = 0;  // read and written, by its calls and by the kernel for it
  bool on_disk = false;   // one of them waits for storage: a call that writes gigabytes counts when it returns
};
// What cannot be read is left out; at most kMaxProcesses.
ProcessWork ReadWork(pid_t pid);
// Of a /proc/PID/io.
uint64_t ParseIoBytes(absl::string_view text);

class WorkMeter {
 public:
  static constexpr uint64_t kLookEveryNs = 1'000'000'000;
  static constexpr size_t kMaxProcesses = 256;
  // Less is no work: what polls, logs, or measures the others.
  static constexpr double kCpuShare = 0.1;
  static constexpr double kBytesPerS = 16 * 1024;

  // Of the time since the last look.
  struct Busy {
    uint64_t cpu_ns = 0;
    uint64_t io_ns = 0;
  };

  bool IsDue(uint64_t now_ns) const { return now_ns - looked_ns_ >= kLookEveryNs; }
  Busy Look(const ProcessWork& work, uint64_t now_ns);
  // The next look is the first one.
  void Forget() { looked_ns_ = 0; }

 private:
  uint64_t looked_ns_ = 0;  // 0: never
  ProcessWork last_;
};

}  // namespace taskd::proxy
