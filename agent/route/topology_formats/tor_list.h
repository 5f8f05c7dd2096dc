// CCE's ranktable_tor.json. ReadTopology (formats.h) documents the checks before.
#pragma once

#include "absl/status/statusor.h"
#include "agent/route/topology.h"
#include "agent/route/topology_formats/reading.h"

namespace taskd::route {

absl::StatusOr<Topology> ReadTorList(const Json& root, InputBudget& budget);

}  // namespace taskd::route
