#include "agent/route/rails.h"

#include <algorithm>
#include <numeric>
#include <tuple>
#include <utility>

#include "absl/container/flat_hash_map.h"

namespace taskd::route {
namespace {

constexpr size_t kMaxFirstRails = 8;     // rails that are tried as the one to serve first
constexpr int32_t kMaxWalkNodes = 2048;  // the walk is quadratic
constexpr int kMaxRounds = 64;

using Order = std::vector<int32_t>;

int32_t LeafOf(const JobTree& tree, int32_t node, size_t rail) {
  const absl::Span<const int32_t> rails = tree.Rails(node);
  return rail < rails.size() ? rails[rail] : -1;
}

// Groups by the first rail of `rails`, within a group by the next, …; groups by who comes first in `order`.
Order Grouped(const JobTree& tree, const Order& order, const std::vector<size_t>& rails) {
  Order result = order;
  std::vector<int32_t> group(order.size(), 0);  // by node
  size_t groups = 1;
  for (const size_t rail : rails) {
    if (groups == order.size()) break;
    absl::flat_hash_map<std::pair<int32_t, int32_t>, int32_t> ids;
    std::vector<size_t> end;  // of every new group, first as sizes
    for (const int32_t node : result) {
      const auto [place, is_new] =
          ids.try_emplace({group[node], LeafOf(tree, node, rail)}, static_cast<int32_t>(end.size()));
      if (is_new) end.push_back(0);
      group[node] = place->second;
      ++end[place->second];
    }
    groups = end.size();
    std::exclusive_scan(end.begin(), end.end(), end.begin(), size_t{0});
    Order next(result.size());
    for (const int32_t node : result) next[end[group[node]]++] = node;
    result = std::move(next);
  }
  return result;
}

// From each node on to the one that shares most leaves with it, the first in `order` of several.
Order Walk(const JobTree& tree, const Order& order) {
  std::vector<std::vector<int32_t>> leaves(order.size());
  for (const int32_t node : order) {
    leaves[node].assign(tree.Rails(node).begin(), tree.Rails(node).end());
    std::sort(leaves[node].begin(), leaves[node].end());
    leaves[node].erase(std::unique(leaves[node].begin(), leaves[node].end()), leaves[node].end());
  }
  Order rest(order.begin() + 1, order.end());
  Order result = {order[0]};
  std::vector<bool> here(static_cast<size_t>(tree.switches()), false);
  while (!rest.empty()) {
    for (const int32_t leaf : leaves[result.back()]) here[leaf] = true;
    size_t best = 0;
    int64_t best_shared = -1;
    for (size_t i = 0; i < rest.size(); ++i) {
      const int64_t shared =
          std::count_if(leaves[rest[i]].begin(), leaves[rest[i]].end(), [&](int32_t leaf) { return here[leaf]; });
      if (shared > best_shared) std::tie(best, best_shared) = std::pair(i, shared);
    }
    for (const int32_t leaf : leaves[result.back()]) here[leaf] = false;
    result.push_back(rest[best]);
    rest.erase(rest.begin() + static_cast<ptrdiff_t>(best));
  }
  return result;
}

// Unknown nodes last, as on a tree.
void PutUnknownLast(const JobTree& tree, Order& order) {
  std::stable_partition(order.begin() + 1, order.end(), [&](int32_t node) { return !tree.Unknown(node); });
}

}  // namespace

std::vector<int32_t> ImproveRails(const JobTree& tree) {
  Order order(static_cast<size_t>(tree.nodes()));
  std::iota(order.begin(), order.end(), 0);
  size_t rail_count = 0;
  for (const int32_t node : order) rail_count = std::max(rail_count, tree.Rails(node).size());
  std::vector<size_t> rails(rail_count);
  std::iota(rails.begin(), rails.end(), size_t{0});
  std::vector<int64_t> groups(rail_count, 0);
  {
    absl::flat_hash_map<std::pair<int32_t, size_t>, bool> seen;
    for (const int32_t node : order) {
      for (size_t rail = 0; rail < tree.Rails(node).size(); ++rail) {
        if (seen.try_emplace({tree.Rails(node)[rail], rail}, true).second) ++groups[rail];
      }
    }
  }
  // Coarse rails first: if the finer ones divide their groups, all are served.
  std::stable_sort(rails.begin(), rails.end(), [&](size_t a, size_t b) { return groups[a] < groups[b]; });

  Cost cost = tree.RingCost(order);
  for (int round = 0; round < kMaxRounds; ++round) {
    Order best;
    Cost best_cost = cost;
    const auto consider = [&](Order candidate) {
      PutUnknownLast(tree, candidate);
      const Cost found = tree.RingCost(candidate);
      if (found.cross_tor_flows > cost.cross_tor_flows || found.max_link_flows > cost.max_link_flows) return;
      if (std::tie(found.cross_tor_flows, found.max_link_flows) <
          std::tie(best_cost.cross_tor_flows, best_cost.max_link_flows)) {
        best = std::move(candidate);
        best_cost = found;
      }
    };
    for (size_t first = 0; first < std::min(rails.size(), kMaxFirstRails); ++first) {
      std::vector<size_t> sequence = rails;
      std::rotate(sequence.begin(), sequence.begin() + static_cast<ptrdiff_t>(first),
                  sequence.begin() + static_cast<ptrdiff_t>(first) + 1);
      consider(Grouped(tree, order, sequence));
    }
    if (tree.nodes() <= kMaxWalkNodes) consider(Walk(tree, order));
    if (best.empty()) break;
    order = std::move(best);
    cost = best_cost;
  }
  return order;
}

}  // namespace taskd::route
