// ManagerOptions as the manager uses them.
#pragma once

#include "absl/status/statusor.h"
#include "manager/manager.h"

namespace taskd::manager {

// Fills in what was left empty (listen, state_dir, clusterd; environment variables are read here) and checks
// everything. INVALID_ARGUMENT names the flag, the value and the rule.
absl::StatusOr<ManagerOptions> ResolveManagerOptions(ManagerOptions options);

}  // namespace taskd::manager
