// The manager on the node of rank 0: entry point of `taskd manager`.
#pragma once

#include "absl/status/status.h"
#include "manager/options.h"

namespace taskd::manager {

// Runs until SIGTERM or SIGINT (which the caller must not handle), then returns OK.
// INVALID_ARGUMENT: the options are wrong and nothing was started. Any other error: it could not start.
absl::Status RunManager(const ManagerOptions& options);

}  // namespace taskd::manager
