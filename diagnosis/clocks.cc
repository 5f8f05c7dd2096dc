#include "diagnosis/clocks.h"

#include <algorithm>
#include <cmath>
#include <deque>

#include "common/median.h"

namespace taskd::diagnosis {
namespace {

constexpr int kSweeps = 40;

}  // namespace

void Clocks::Add(const Layout& layout, const std::vector<std::pair<int, StepFold>>& folds) {
  struct End {
    int node;
    int64_t ns;
  };
  // The first one heard of each operation; the others are compared with it.
  absl::flat_hash_map<uint64_t, End> first;
  first.reserve(operations_);
  for (const auto& [rank, fold] : folds) {
    const int node = layout.node(rank);
    if (node < 0) continue;
    for (const OpSample& sample : fold.samples) {
      const int group = layout.GroupOf(rank, sample.group);
      if (group < 0 || !EndsTogether(sample.op) || layout.group(group).nodes < 2) continue;
      const uint64_t key = static_cast<uint64_t>(group) << 36 | static_cast<uint64_t>(sample.op) << 32 | sample.number;
      const End end = {node, static_cast<int64_t>(sample.end_ns)};
      auto [found, added] = first.emplace(key, end);
      if (added || found->second.node == node) continue;
      End a = found->second;
      End b = end;
      if (a.node > b.node) std::swap(a, b);
      Pair& pair = pairs_[{a.node, b.node}];
      pair.ns[pair.count++ % kDifferences] = b.ns - a.ns;
    }
  }
  operations_ = first.size();
}

void Clocks::Solve() {
  struct Edge {
    size_t to;
    double ns;  // clock of `to` minus clock of this
  };
  // In the order of nodes: sums do not depend on how the pairs are kept.
  std::vector<std::pair<std::pair<int, int>, const Pair*>> pairs;
  std::vector<int> nodes;
  for (const auto& [ends, pair] : pairs_) {
    pairs.emplace_back(ends, &pair);
    nodes.insert(nodes.end(), {ends.first, ends.second});
  }
  std::sort(pairs.begin(), pairs.end());
  std::sort(nodes.begin(), nodes.end());
  nodes.erase(std::unique(nodes.begin(), nodes.end()), nodes.end());
  auto place_of = [&](int node) {
    return static_cast<size_t>(std::lower_bound(nodes.begin(), nodes.end(), node) - nodes.begin());
  };
  std::vector<std::vector<Edge>> edges(nodes.size());
  std::vector<int64_t> ns;
  for (const auto& [ends, pair] : pairs) {
    ns.assign(pair->ns.begin(), pair->ns.begin() + std::min<size_t>(pair->count, kDifferences));
    const auto middle = static_cast<double>(UpperMedian(ns));
    const size_t first = place_of(ends.first);
    const size_t second = place_of(ends.second);
    edges[first].push_back({second, middle});
    edges[second].push_back({first, -middle});
  }
  offsets_.clear();
  if (nodes.empty()) return;
  // A spanning tree from the reference node first, then sweeps that spread what does not fit over all pairs.
  std::vector<double> theta(nodes.size());
  std::vector<bool> reached(nodes.size());
  reached[0] = true;
  std::deque<size_t> queue = {0};
  while (!queue.empty()) {
    const size_t node = queue.front();
    queue.pop_front();
    for (const Edge& edge : edges[node]) {
      if (reached[edge.to]) continue;
      reached[edge.to] = true;
      theta[edge.to] = theta[node] + edge.ns;
      queue.push_back(edge.to);
    }
  }
  for (int sweep = 0; sweep < kSweeps; ++sweep) {
    for (size_t node = 1; node < nodes.size(); ++node) {
      if (!reached[node]) continue;
      double sum = 0;
      for (const Edge& edge : edges[node]) sum += theta[edge.to] - edge.ns;
      theta[node] = sum / static_cast<double>(edges[node].size());
    }
  }
  for (size_t node = 0; node < nodes.size(); ++node) {
    if (reached[node]) offsets_[nodes[node]] = std::llround(theta[node]);
  }
}

void Clocks::Forget() {
  pairs_.clear();
  offsets_.clear();
}

int64_t Clocks::OffsetNs(int node) const {
  auto found = offsets_.find(node);
  return found == offsets_.end() ? 0 : found->second;
}

}  // namespace taskd::diagnosis
