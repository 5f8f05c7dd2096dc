// What MindCluster's TaskD does when a job has a fault, and TaskD does not (docs/install.md): no process recovery, no
// elastic training, no MindIO. A user who asks for it (TaskD contract §1.6) is told at once, not by the fault.
#pragma once

#include <string>
#include <vector>

#include "common/environment.h"

namespace taskd {

// "process-level recovery (PROCESS_RECOVER=on)", one a variable that asks; empty: none does.
std::vector<std::string> UnsupportedRequests(const Environment& environment);

// For a log, where it is not empty: what was asked for, and what happens instead.
std::string UnsupportedLine(const std::vector<std::string>& requests);

}  // namespace taskd
