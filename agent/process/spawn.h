// Starts one process.
#pragma once

#include <sys/types.h>

#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace taskd::process {

struct SpawnOptions {
  // Descriptors that become 0, 1 and 2 of the process; -1: the caller's own.
  int in = -1;
  int out = -1;
  int err = -1;
  bool outlives_caller = false;  // else it is killed when the calling thread ends
  std::set<int> cpus = {};       // that it may run on; empty: the caller's. Where that cannot be, its stderr says so
};

// `name` as it is if it has a slash, else the program of that name in PATH of `environment`. NOT_FOUND names it and PATH.
absl::StatusOr<std::string> FindProgram(const std::string& name, const std::map<std::string, std::string>& environment);

// In its own session and process group, with every signal unblocked and at its default, with no descriptors but 0, 1
// and 2, and the limit of descriptors that this process began with. argv[0] is looked up in PATH of `environment`
// unless it has a slash. The caller waits for the process. NOT_FOUND: not in PATH. UNAVAILABLE: cannot be executed;
// both name the program and the reason.
absl::StatusOr<pid_t> Spawn(const std::vector<std::string>& argv, const std::map<std::string, std::string>& environment,
                            const SpawnOptions& options = {});

}  // namespace taskd::process
