// A rank table 2.0, whose levels name the switches. ReadTopology (formats.h) documents the checks before.
#pragma once

#include "absl/status/statusor.h"
#include "agent/route/topology.h"
#include "agent/route/topology_formats/reading.h"

namespace taskd::route {

absl::StatusOr<Topology> ReadRankTable2(const Json& root, InputBudget& budget);

}  // namespace taskd::route
