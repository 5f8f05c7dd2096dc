// Volcano's HyperNodes. ReadTopology (formats.h) documents the checks before.
#pragma once

#include "absl/status/statusor.h"
#include "agent/route/topology.h"
#include "agent/route/topology_formats/reading.h"

namespace taskd::route {

// `job_names`: the job's nodes, by all their names: patterns select of these, and of the Node objects that `root` has beside.
absl::StatusOr<Topology> ReadHypernode(const Json& root, absl::Span<const std::string> job_names, InputBudget& budget);

}  // namespace taskd::route
