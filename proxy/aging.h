// Keeps the profiling directory below its limit (TaskD contract §4.7 as the documentation has it): above it the oldest
// fifth of the mark files goes, by modification time; only files named by digits in a rank's folder, never one that is
// open, and nobody else's files.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

namespace taskd {

struct AgingResult {
  int64_t bytes = 0;  // in the directory afterwards
  int removed = 0;    // files
  bool over = false;  // still above the limit: the rest is open, or not ours
};

// Looks once and removes as often as needed to be under the limit. `limit_bytes` <= 0: no limit, nothing is looked at.
// Blocks on the file system, which may be slow; gives up soon after `stop` is set, having removed nothing that it
// should not.
AgingResult AgeProfilingDir(const std::string& path, int64_t limit_bytes, const std::atomic<bool>& stop);

}  // namespace taskd
