// `taskd rdma env` and `taskd rdma check`: the variables of an RDMA network, and whether NCCL's log proves its use.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace taskd {

struct RdmaCheckOptions {
  std::string log;  // "-": stdin
  bool json = false;
};

// Prints the verdict on stdout; true: gdrdma or rdma. INVALID_ARGUMENT: the log cannot be read; nothing was printed.
absl::StatusOr<bool> RunRdmaCheck(const RdmaCheckOptions& options);

// Prints the 17 variables, NAME=value, for NODE_LIST and this machine. `mode`: auto, on or off. INVALID_ARGUMENT: wrong
// usage or NODE_LIST. FAILED_PRECONDITION: a condition is not met. Then nothing was printed.
absl::Status RunRdmaEnvironment(const std::string& mode);

}  // namespace taskd
