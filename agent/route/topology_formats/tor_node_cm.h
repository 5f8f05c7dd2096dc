// MindCluster's basic-tor-node-cm. ReadTopology (formats.h) documents the checks before.
#pragma once

#include "absl/status/statusor.h"
#include "agent/route/topology.h"
#include "agent/route/topology_formats/reading.h"

namespace taskd::route {

absl::StatusOr<Topology> ReadTorNodeCm(const Json& root, InputBudget& budget);

}  // namespace taskd::route
