// `taskd status`: nodes, ranks, switch state, marks written and lost, overhead.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "proto/channel.h"

namespace taskd {

struct StatusOptions {
  std::string manager;  // HOST:PORT; empty: the only job of this user here, or `job`
  std::string job;      // namespace/name; empty: whatever job the manager has
  bool json = false;
  bool watch = false;  // again each second until SIGINT or SIGTERM ends the process; with json one object a line
  Security security;
};

// Prints to stdout. INVALID_ARGUMENT: wrong usage; any other error: the manager did not answer.
absl::Status RunStatus(const StatusOptions& options);

}  // namespace taskd
