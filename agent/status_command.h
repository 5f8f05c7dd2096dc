// `taskd status`: nodes, ranks, switch state, marks written and lost, overhead.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "proto/channel.h"

namespace taskd {

struct StatusOptions {
  std::string manager = "127.0.0.1:9601";
  bool json = false;
  bool watch = false;  // again each second until SIGINT or SIGTERM ends the process; with json one object a line
  Security security;
};

// Prints to stdout. INVALID_ARGUMENT: wrong usage; any other error: the manager did not answer.
absl::Status RunStatus(const StatusOptions& options);

}  // namespace taskd
