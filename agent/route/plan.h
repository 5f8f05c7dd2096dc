// The new rank order of a job's nodes. modes-routing §4, "The plan". Pure computation: no I/O, no time, no randomness.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "agent/route/job.h"
#include "agent/route/job_tree.h"
#include "agent/route/topology.h"

namespace taskd::route {

enum class UnknownNodes { kLast, kFail };

struct RoutePlan {
  enum class Outcome { kPlanned, kIdentity, kSkipped };
  Outcome outcome = Outcome::kIdentity;
  std::string reason;                // one line
  std::vector<int32_t> by_old_rank;  // indices into the job's nodes
  std::vector<int32_t> by_new_rank;  // the same, in the new order
  std::vector<int32_t> old_rank;     // by index into the job's nodes
  std::vector<int64_t> pod_index;    // by index into the job's nodes
  std::vector<int32_t> unknown;      // nodes that the topology lacks, by old rank
  int64_t ignored = 0;               // nodes of the topology that the job lacks
  int64_t tors = 0;                  // leaf switches with a job node; 0: no topology was used
  int64_t moved = 0;                 // nodes whose rank changes
  int64_t master_index = 0;          // pod index of the node with new rank 0
  Cost before;
  Cost after;
  Cost bound;
};

// `nodes`: not empty, every rank_id once. The result is the same for any order of `nodes` and of the topology's input.
// Errors: a node of the job comes twice in the topology with different switches.
absl::StatusOr<RoutePlan> PlanRoutes(absl::Span<const RouteNode> nodes, const Topology& topology, UnknownNodes unknown);

// The given order, outcome kSkipped.
RoutePlan SkippedPlan(absl::Span<const RouteNode> nodes, std::string reason);

// New rank_id by old rank_id: node by node in the new order, within a node by old rank.
std::vector<int32_t> NewDeviceRanks(absl::Span<const RouteNode> nodes, const RoutePlan& plan);

}  // namespace taskd::route
