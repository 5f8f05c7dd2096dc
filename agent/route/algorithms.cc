#include "agent/route/algorithms.h"

#include <numeric>

#include "agent/route/attach.h"

namespace taskd::route {
namespace {

TreeCost DoubleTree(const JobTree& tree, absl::Span<const int32_t> order) {
  const int32_t ranks = static_cast<int32_t>(order.size());
  std::vector<Flow> flows;
  flows.reserve(order.size() * 4);
  for (int32_t rank = 0; rank < ranks; ++rank) {
    for (const int32_t parent : {FirstTreeParent(ranks, rank), SecondTreeParent(ranks, rank)}) {
      if (parent < 0) continue;
      flows.emplace_back(order[rank], order[parent]);  // reduce
      flows.emplace_back(order[parent], order[rank]);  // broadcast
    }
  }
  const Cost cost = tree.CostOf(tree.Crossings(flows));
  return {cost.cross_tor_flows / 2, cost.max_link_flows};
}

double HalvingDoubling(const JobTree& tree, absl::Span<const int32_t> order) {
  size_t active_count = 1;
  while (active_count * 2 <= order.size()) active_count *= 2;
  const size_t folded = order.size() - active_count;
  std::vector<int32_t> active;
  active.reserve(active_count);
  std::vector<Flow> flows;
  double volume = 0;
  const auto add = [&](double part) {
    volume += part * static_cast<double>(tree.CrossTorFlows(flows));
    flows.clear();
  };
  // What is above a power of two gives its whole buffer to a neighbour, and gets the result from it.
  for (size_t rank = 0; rank < order.size(); ++rank) {
    if (rank < 2 * folded && rank % 2 == 1) {
      flows.emplace_back(order[rank], order[rank - 1]);
      flows.emplace_back(order[rank - 1], order[rank]);
    } else {
      active.push_back(order[rank]);
    }
  }
  add(1);
  double part = 0.5;
  for (size_t distance = 1; distance < active.size(); distance *= 2, part /= 2) {
    for (size_t i = 0; i < active.size(); ++i) flows.emplace_back(active[i], active[i ^ distance]);
    add(2 * part);  // reduce-scatter, and the same again in all-gather
  }
  return volume;
}

}  // namespace

int32_t FirstTreeParent(int32_t ranks, int32_t rank) {
  if (rank == 0) return -1;
  const int32_t bit = rank & -rank;
  const int32_t up = (rank ^ bit) | (bit << 1);
  return up < ranks ? up : rank ^ bit;
}

int32_t SecondTreeParent(int32_t ranks, int32_t rank) {
  if (ranks % 2 == 1) {  // shifted by one
    const int32_t up = FirstTreeParent(ranks, (rank - 1 + ranks) % ranks);
    return up < 0 ? -1 : (up + 1) % ranks;
  }
  const int32_t up = FirstTreeParent(ranks, ranks - 1 - rank);  // mirrored
  return up < 0 ? -1 : ranks - 1 - up;
}

AlgorithmCosts CostsOf(const JobTree& tree, absl::Span<const int32_t> order) {
  return {DoubleTree(tree, order), HalvingDoubling(tree, order)};
}

absl::StatusOr<AlgorithmReport> CompareAlgorithms(absl::Span<const RouteNode> nodes, const Topology& topology,
                                                  const RoutePlan& plan) {
  absl::StatusOr<Attachment> attachment = Attach(nodes, plan.by_old_rank, topology);
  if (!attachment.ok()) return attachment.status();
  const JobTree tree(topology, attachment->node);
  std::vector<int32_t> order(nodes.size());
  std::iota(order.begin(), order.end(), 0);
  AlgorithmReport report;
  report.before = CostsOf(tree, order);
  for (size_t rank = 0; rank < nodes.size(); ++rank) order[rank] = plan.old_rank[plan.by_new_rank[rank]];
  report.after = CostsOf(tree, order);
  report.double_tree_bound = tree.is_tree() && plan.tors > 0 ? 2 * (plan.tors - 1) : 0;
  return report;
}

}  // namespace taskd::route
