// Slurm's topology.conf of the tree and block plugins, and its topology.yaml (25.05 and later). ReadTopology (formats.h)
// documents the checks before.
#pragma once

#include <string_view>

#include "absl/status/statusor.h"
#include "agent/route/topology.h"

namespace taskd::route {

absl::StatusOr<Topology> ReadSlurm(std::string_view text, InputBudget& budget);
// `documents` as ParseYaml gives them. Of several topologies that with `cluster_default: true`, else the first tree or block.
absl::StatusOr<Topology> ReadSlurmYaml(const Json& documents, InputBudget& budget);

}  // namespace taskd::route
