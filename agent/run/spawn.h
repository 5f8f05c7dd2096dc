// Starts one process of a worker group.
#pragma once

#include <sys/types.h>

#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace taskd {

// In its own session and process group, killed when the calling thread ends, with every signal unblocked and at its
// default, with no descriptors but 0, 1 and 2, and the limit of descriptors that this process began with. `out`, `err`,
// `in`: become 1, 2 and 0; -1: the caller's own. argv[0] is looked up in PATH of `environment` unless it has a slash.
// The caller waits for the process. NOT_FOUND: not in PATH. UNAVAILABLE: cannot be executed; both name the program and
// the reason.
absl::StatusOr<pid_t> Spawn(const std::vector<std::string>& argv, const std::map<std::string, std::string>& environment,
                            int out, int err, int in = -1);

}  // namespace taskd
