// MindCluster's basic-tor-node-cm. ReadTopology (formats.h) documents the checks before.
#pragma once

#include "absl/status/statusor.h"
#include "agent/route/topology.h"
#include "agent/route/topology_formats/reading.h"

namespace taskd::route {

absl::StatusOr<Topology> ReadTorNodeCm(const Json& root);

// tor_info of a tor-node-cm: the object itself, or what a ConfigMap holds as a string. Null: there is none.
absl::StatusOr<Json> TorInfo(const Json& root);

}  // namespace taskd::route
