// What an order of nodes costs the two collectives that are no ring: NCCL's double binary tree, and halving-doubling
// (recursive halving and doubling, as Rabenseifner's all-reduce). The plan is made for the ring; these numbers show
// what it does to the others. One process a node: what happens inside a node crosses no switch.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "agent/route/job_tree.h"
#include "agent/route/plan.h"

namespace taskd::route {

struct TreeCost {
  int64_t cross_tor_flows = 0;  // edges of the two trees between different leaf switches
  int64_t max_link_flows = 0;   // most edges over the uplink of one switch
};

struct AlgorithmCosts {
  TreeCost double_tree;
  // Data that leaves leaf switches during one all-reduce, in sizes of the reduced buffer.
  double halving_doubling_volume = 0;
};

struct AlgorithmReport {
  AlgorithmCosts before;
  AlgorithmCosts after;
  int64_t double_tree_bound = 0;  // cross_tor_flows: each tree has to connect all ToRs
};

// The parent of `rank` (0..ranks-1) in NCCL's two trees, -1 for the root.
int32_t FirstTreeParent(int32_t ranks, int32_t rank);
int32_t SecondTreeParent(int32_t ranks, int32_t rank);

// `order`: old ranks by new rank.
AlgorithmCosts CostsOf(const JobTree& tree, absl::Span<const int32_t> order);

// `plan` was made of the same nodes and topology.
absl::StatusOr<AlgorithmReport> CompareAlgorithms(absl::Span<const RouteNode> nodes, const Topology& topology,
                                                  const RoutePlan& plan);

}  // namespace taskd::route
