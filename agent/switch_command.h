// `taskd switch`: asks the manager to record kinds of marks or not, and prints what each rank answered.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/channel.h"

namespace taskd {

struct SwitchOptions {
  std::string manager;                   // HOST:PORT; empty: the only job of this user here, or `job`
  std::string job;                       // namespace/name; empty: whatever job the manager has
  std::vector<std::string> assignments;  // "step=on", "all=off", ...
  double timeout_s = 10;                 // for the ranks' answers; above 0, at most 600
  bool json = false;
  Security security;
};

// Prints to stdout. Returns whether all ranks applied it. INVALID_ARGUMENT: wrong usage, nothing was asked for.
absl::StatusOr<bool> RunSwitch(const SwitchOptions& options);

}  // namespace taskd
