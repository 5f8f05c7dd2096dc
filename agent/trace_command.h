// `taskd trace`: mark files as a timeline that Perfetto and chrome://tracing open.
#pragma once

#include <string>

#include "absl/status/status.h"

namespace taskd {

struct TraceOptions {
  std::string from;       // a task's folder of mark files
  std::string ranks;      // "0-7,12"; empty: all
  std::string steps;      // "10-20"; empty: all
  bool suspects = false;  // the ranks that a verdict accuses and who they are compared with, around the onset
  std::string output;     // "-": stdout
};

// INVALID_ARGUMENT: wrong usage, a folder without marks, or nothing in it is asked for; any other error: FILE could not
// be written, and is as it was.
absl::Status RunTrace(const TraceOptions& options);

}  // namespace taskd
