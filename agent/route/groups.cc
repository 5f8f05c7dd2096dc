#include "agent/route/groups.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>
#include <vector>

#include "agent/route/attach.h"
#include "agent/route/group_blocks.h"
#include "agent/route/group_pattern.h"
#include "agent/route/job_tree.h"
#include "fmt/format.h"

namespace taskd::route {
namespace {

constexpr int kMaxRounds = 32;
constexpr int64_t kCandidateWork = 4'000'000;  // nodes times candidates
constexpr int32_t kMaxSwapAllNodes = 64;
constexpr size_t kMaxStarts = 6;             // candidates that are improved by swaps
constexpr int64_t kMaxSwapTrials = 400'000;  // of a job with more nodes than kMaxSwapAllNodes
constexpr int kSwapPartners = 8;

using Order = std::vector<int32_t>;  // nodes by position

struct Candidate {
  int64_t cost = 0;
  Order order;
};

class Search {
 public:
  Search(const JobTree& tree, const GroupPattern& pattern) : tree_(tree), pattern_(pattern) {}

  int64_t CostOf(const Order& order) const {
    int64_t cost = 0;
    for (int32_t position = 0; position < pattern_.positions(); ++position) {
      for (const GroupPattern::Edge& edge : pattern_.EdgesOf(position)) {
        if (edge.other > position) cost += edge.weight * tree_.Hops(order[position], order[edge.other]);
      }
    }
    return cost;
  }

  // The given order is 0, 1, 2, …; what comes back is no worse.
  Candidate Run() {
    Order given(static_cast<size_t>(pattern_.positions()));
    std::iota(given.begin(), given.end(), 0);
    Consider(std::move(given));
    if (starts_[0].cost > 0) {
      if (tree_.is_tree()) {
        Consider(tree_.DepthFirst());
        ConsiderTiles();
      }
      for (Candidate& start : starts_) Swap(start);
      std::stable_sort(starts_.begin(), starts_.end(),
                       [](const Candidate& a, const Candidate& b) { return a.cost < b.cost; });
    }
    Candidate best = std::move(starts_[0]);
    if (pattern_.positions() <= kMaxExactNodes) TryAll(best);
    return best;
  }

 private:
  // Keeps the cheapest ones, and the given order at the same cost before others.
  void Consider(Order order) {
    Candidate candidate = {CostOf(order), std::move(order)};
    const auto place = std::upper_bound(starts_.begin(), starts_.end(), candidate,
                                        [](const Candidate& a, const Candidate& b) { return a.cost < b.cost; });
    for (auto same = starts_.begin(); same != place; ++same) {
      if (same->order == candidate.order) return;
    }
    const size_t most = pattern_.positions() <= kMaxSwapAllNodes ? kMaxStarts : 1;
    starts_.insert(place, std::move(candidate));
    if (starts_.size() > most) starts_.pop_back();
  }

  void ConsiderTiles() {
    const int32_t stages = pattern_.stages();
    const int32_t width = pattern_.positions() / stages;
    struct Shape {
      int64_t left = 0;  // nodes that do not fill a block below their leaf switch
      int32_t stages = 0;
      int32_t width = 0;
    };
    const std::vector<int32_t> fills = LeafFills(tree_);
    std::vector<Shape> shapes;
    for (const int32_t tall : Divisors(stages)) {
      for (const int32_t wide : Divisors(width)) {
        Shape shape = {0, tall, wide};
        for (const int32_t fill : fills) shape.left += fill % (tall * wide);
        shapes.push_back(shape);
      }
    }
    std::stable_sort(shapes.begin(), shapes.end(), [](const Shape& a, const Shape& b) {
      return std::pair(a.left, -a.stages * a.width) < std::pair(b.left, -b.stages * b.width);
    });
    int64_t work = 0;
    std::map<int32_t, Order> blocks;  // by size
    for (const Shape& shape : shapes) {
      const int32_t size = shape.stages * shape.width;
      if (size == 1) continue;  // as DepthFirst
      if (work > 0 && work + 2 * pattern_.positions() > kCandidateWork) break;
      work += 2 * pattern_.positions();
      const auto [block, is_new] = blocks.try_emplace(size);
      if (is_new) block->second = BlockOrder(tree_, size);
      for (const bool stages_first : {false, true}) {
        Order order(block->second.size());
        const std::vector<int32_t> tiled = TilePositions(stages, width, shape.stages, shape.width, stages_first);
        for (size_t i = 0; i < order.size(); ++i) order[tiled[i]] = block->second[i];
        Consider(std::move(order));
      }
    }
  }

  // What changes if two positions swap their nodes.
  int64_t Delta(const Order& order, int32_t a, int32_t b) const {
    int64_t delta = 0;
    const auto add = [&](int32_t at, int32_t other) {
      for (const GroupPattern::Edge& edge : pattern_.EdgesOf(at)) {
        if (edge.other == other) continue;  // stays as far away
        delta += edge.weight * (tree_.Hops(order[other], order[edge.other]) - tree_.Hops(order[at], order[edge.other]));
      }
    };
    add(a, b);
    add(b, a);
    return delta;
  }

  bool TrySwap(Candidate& candidate, int32_t a, int32_t b) const {
    const int64_t delta = Delta(candidate.order, a, b);
    if (delta >= 0) return false;
    std::swap(candidate.order[a], candidate.order[b]);
    candidate.cost += delta;
    return true;
  }

  // Position 0 keeps its node.
  void Swap(Candidate& candidate) const {
    if (pattern_.positions() > kMaxSwapAllNodes) return SwapTowards(candidate);
    for (bool better = true; better;) {
      better = false;
      for (int32_t a = 1; a < pattern_.positions(); ++a) {
        for (int32_t b = a + 1; b < pattern_.positions(); ++b) better |= TrySwap(candidate, a, b);
      }
    }
  }

  // A position whose partner is elsewhere tries the places of nodes beside that partner.
  void SwapTowards(Candidate& candidate) const {
    std::vector<Order> members(static_cast<size_t>(tree_.switches()));  // of a leaf switch, the first rail's
    std::vector<int32_t> position(candidate.order.size());
    for (int32_t i = 0; i < pattern_.positions(); ++i) {
      members[tree_.Rails(i)[0]].push_back(i);
      position[candidate.order[i]] = i;
    }
    int64_t trials = 0;
    for (bool better = true; better;) {
      better = false;
      for (int32_t a = 1; a < pattern_.positions(); ++a) {
        for (const GroupPattern::Edge& edge : pattern_.EdgesOf(a)) {
          if (tree_.Hops(candidate.order[a], candidate.order[edge.other]) == 0) continue;
          const Order& beside = members[tree_.Rails(candidate.order[edge.other])[0]];
          bool swapped = false;
          for (size_t i = 0; i < std::min<size_t>(beside.size(), kSwapPartners) && !swapped; ++i) {
            const int32_t b = position[beside[(static_cast<size_t>(a) + i) % beside.size()]];
            if (b == 0 || b == edge.other || b == a) continue;
            if (++trials > kMaxSwapTrials) return;
            swapped = TrySwap(candidate, a, b);
            position[candidate.order[a]] = a;
            position[candidate.order[b]] = b;
          }
          better |= swapped;
        }
      }
    }
  }

  // Every order that begins with node 0, as long as it can still be cheaper than `best`.
  void TryAll(Candidate& best) const {
    Order order = {0};
    std::vector<bool> used(static_cast<size_t>(pattern_.positions()), false);
    used[0] = true;
    Extend(order, used, 0, best);
  }

  void Extend(Order& order, std::vector<bool>& used, int64_t cost, Candidate& best) const {
    if (cost >= best.cost) return;
    const int32_t position = static_cast<int32_t>(order.size());
    if (position == pattern_.positions()) {
      best = {cost, order};
      return;
    }
    for (int32_t node = 1; node < pattern_.positions(); ++node) {
      if (used[node]) continue;
      int64_t with = cost;
      for (const GroupPattern::Edge& edge : pattern_.EdgesOf(position)) {
        if (edge.other < position) with += edge.weight * tree_.Hops(node, order[edge.other]);
      }
      used[node] = true;
      order.push_back(node);
      Extend(order, used, with, best);
      order.pop_back();
      used[node] = false;
    }
  }

  const JobTree& tree_;
  const GroupPattern& pattern_;
  std::vector<Candidate> starts_;  // cheapest first
};

// See "Design" 4.
int64_t Bound(const JobTree& tree, const GroupPattern& pattern) {
  int64_t bound = 0;
  for (std::vector<int32_t>& fills : tree.Levels()) {
    std::sort(fills.begin(), fills.end(), std::greater<>());
    std::vector<int64_t> holds(fills.size() + 1);  // nodes in the fullest 0, 1, … and in no switch of this level
    holds[0] = tree.nodes() - std::accumulate(fills.begin(), fills.end(), int64_t{0});
    for (size_t i = 0; i < fills.size(); ++i) holds[i + 1] = holds[i] + fills[i];
    for (const auto& [size, weight] : pattern.weight_by_size()) {
      if (size <= fills[0]) continue;
      bound += 2 * weight * (std::lower_bound(holds.begin(), holds.end(), size) - holds.begin());
    }
  }
  return bound;
}

}  // namespace

absl::StatusOr<GroupSizes> CheckGroups(absl::Span<const RouteNode> nodes, const GroupSizes& sizes) {
  const size_t devices = nodes[0].device_ranks.size();
  for (const RouteNode& node : nodes) {
    if (node.device_ranks.size() != devices) {
      return absl::InvalidArgumentError(
          fmt::format("parallel groups need nodes with the same number of devices: node {} has {}, node {} has {}",
                      Quoted(nodes[0].server_id), devices, Quoted(node.server_id), node.device_ranks.size()));
    }
  }
  const int64_t ranks = static_cast<int64_t>(nodes.size() * devices);
  const int64_t model = int64_t{sizes.tp} * sizes.pp;
  if (ranks % model != 0) {
    return absl::InvalidArgumentError(fmt::format(
        "--tp {} --pp {}: their product does not divide the {} ranks of the rank table", sizes.tp, sizes.pp, ranks));
  }
  if (sizes.dp != 0 && sizes.dp != ranks / model) {
    return absl::InvalidArgumentError(
        fmt::format("--dp {}: with --tp {} --pp {} the {} ranks of the rank table give {}", sizes.dp, sizes.tp,
                    sizes.pp, ranks, ranks / model));
  }
  GroupSizes result = sizes;
  result.dp = static_cast<int32_t>(ranks / model);
  if (result.dp % result.ep != 0) {
    return absl::InvalidArgumentError(
        fmt::format("--ep {}: does not divide the {} data parallel ranks", result.ep, result.dp));
  }
  return result;
}

absl::StatusOr<GroupReport> PlanGroups(absl::Span<const RouteNode> nodes, const Topology& topology,
                                       const GroupSizes& sizes, RoutePlan& plan) {
  absl::StatusOr<Attachment> attachment = Attach(nodes, plan.by_old_rank, topology);
  if (!attachment.ok()) return attachment.status();
  const GroupPattern pattern(sizes, static_cast<int32_t>(nodes.size()),
                             static_cast<int32_t>(nodes[0].device_ranks.size()));
  const JobTree given(topology, attachment->node);
  Order order(nodes.size());
  std::iota(order.begin(), order.end(), 0);
  GroupReport report;
  report.before = report.after = Search(given, pattern).CostOf(order);
  report.bound = Bound(given, pattern);
  // Each round takes the last one's result as the given order, as a second run would.
  for (int round = 0; round < kMaxRounds && report.after > report.bound; ++round) {
    std::vector<int32_t> node(order.size());
    for (size_t i = 0; i < order.size(); ++i) node[i] = attachment->node[order[i]];
    const Candidate found = Search(JobTree(topology, node), pattern).Run();
    if (found.cost >= report.after) break;
    report.after = found.cost;
    Order next(order.size());
    for (size_t i = 0; i < order.size(); ++i) next[i] = order[found.order[i]];
    order = std::move(next);
  }
  plan.moved = 0;
  for (size_t rank = 0; rank < order.size(); ++rank) {
    plan.by_new_rank[rank] = plan.by_old_rank[order[rank]];
    if (order[rank] != static_cast<int32_t>(rank)) ++plan.moved;
  }
  plan.master_index = plan.pod_index[plan.by_new_rank[0]];
  plan.after = given.RingCost(order);
  plan.outcome = plan.moved > 0 ? RoutePlan::Outcome::kPlanned : RoutePlan::Outcome::kIdentity;
  if (plan.moved > 0) {
    plan.reason =
        fmt::format("weighted hops of the groups {} -> {} (at least {})", report.before, report.after, report.bound);
  } else if (report.after == report.bound) {
    plan.reason = plan.tors == 1 ? "one ToR: nothing to gain" : "the given order is optimal already for the groups";
  } else {
    plan.reason = "no better order was found for the groups";
  }
  return report;
}

}  // namespace taskd::route
