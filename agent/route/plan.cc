#include "agent/route/plan.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "agent/route/attach.h"
#include "agent/route/rails.h"
#include "fmt/format.h"

namespace taskd::route {
namespace {

RoutePlan GivenOrder(absl::Span<const RouteNode> nodes) {
  RoutePlan plan;
  plan.by_old_rank = ByOldRank(nodes);
  plan.by_new_rank = plan.by_old_rank;
  plan.old_rank.assign(nodes.size(), 0);
  for (size_t rank = 0; rank < nodes.size(); ++rank) plan.old_rank[plan.by_old_rank[rank]] = static_cast<int32_t>(rank);
  plan.pod_index = PodIndices(nodes, plan.by_old_rank);
  if (!nodes.empty()) plan.master_index = plan.pod_index[plan.by_old_rank[0]];
  return plan;
}

}  // namespace

absl::StatusOr<RoutePlan> PlanRoutes(absl::Span<const RouteNode> nodes, const Topology& topology,
                                     UnknownNodes unknown) {
  RoutePlan plan = GivenOrder(nodes);
  absl::StatusOr<Attachment> attachment = Attach(nodes, plan.by_old_rank, topology);
  if (!attachment.ok()) return attachment.status();
  plan.ignored = attachment->ignored;
  for (size_t rank = 0; rank < nodes.size(); ++rank) {
    if (attachment->node[rank] < 0) plan.unknown.push_back(plan.by_old_rank[rank]);
  }
  const JobTree tree(topology, attachment->node);
  std::vector<int32_t> order(nodes.size());
  std::iota(order.begin(), order.end(), 0);
  plan.tors = tree.tors();
  plan.before = plan.after = tree.RingCost(order);
  plan.bound = tree.RingBound();

  const auto skipped = [&](std::string reason) {
    plan.outcome = RoutePlan::Outcome::kSkipped;
    plan.reason = std::move(reason);
    return plan;
  };
  if (nodes.size() < 3) return skipped(fmt::format("nodes<3: the job has {}", nodes.size()));
  if (unknown == UnknownNodes::kFail && !plan.unknown.empty()) {
    return skipped(fmt::format("the topology lacks node {} ({} in all)", Quoted(nodes[plan.unknown[0]].server_id),
                               plan.unknown.size()));
  }
  if (plan.before == plan.bound) {
    plan.reason = plan.tors == 1 ? "one ToR: nothing to gain" : "the given order is optimal already";
    return plan;
  }
  order = tree.is_tree() ? tree.DepthFirst() : ImproveRails(tree);
  plan.after = tree.RingCost(order);
  for (size_t rank = 0; rank < order.size(); ++rank) {
    plan.by_new_rank[rank] = plan.by_old_rank[order[rank]];
    if (order[rank] != static_cast<int32_t>(rank)) ++plan.moved;
  }
  plan.master_index = plan.pod_index[plan.by_new_rank[0]];
  if (plan.moved == 0) {
    plan.reason = "no better order was found for rails that group the nodes differently";
    return plan;
  }
  plan.outcome = RoutePlan::Outcome::kPlanned;
  plan.reason = fmt::format("flows between ToRs {} -> {} (at least {})", plan.before.cross_tor_flows,
                            plan.after.cross_tor_flows, plan.bound.cross_tor_flows);
  return plan;
}

RoutePlan SkippedPlan(absl::Span<const RouteNode> nodes, std::string reason) {
  RoutePlan plan = GivenOrder(nodes);
  plan.outcome = RoutePlan::Outcome::kSkipped;
  plan.reason = std::move(reason);
  return plan;
}

std::vector<int32_t> NewDeviceRanks(absl::Span<const RouteNode> nodes, const RoutePlan& plan) {
  size_t devices = 0;
  for (const RouteNode& node : nodes) devices += node.device_ranks.size();
  std::vector<int32_t> new_rank(devices, -1);
  int32_t next = 0;
  std::vector<int> ranks;
  for (const int32_t index : plan.by_new_rank) {
    ranks = nodes[index].device_ranks;
    std::sort(ranks.begin(), ranks.end());
    for (const int rank : ranks) {
      if (rank >= 0 && static_cast<size_t>(rank) < devices) new_rank[rank] = next;
      ++next;
    }
  }
  return new_rank;
}

}  // namespace taskd::route
