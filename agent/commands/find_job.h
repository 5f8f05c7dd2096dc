// The job file that a tool means.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "common/job_file.h"

namespace taskd::commands {

// This user's on this machine: the manager's at `manager` (HOST:PORT), or where that is empty the only one, or `job`'s.
// NOT_FOUND: there is none. INVALID_ARGUMENT: wrong usage, or there are several.
absl::StatusOr<JobFile> FindJob(const std::string& manager, const std::string& job);

}  // namespace taskd::commands
