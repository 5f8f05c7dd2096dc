// Lines of node,level1,level2,…. ReadTopology (formats.h) documents the checks before.
#pragma once

#include <string_view>

#include "absl/status/statusor.h"
#include "agent/route/topology.h"

namespace taskd::route {

absl::StatusOr<Topology> ReadCsv(std::string_view text, InputBudget& budget);

}  // namespace taskd::route
