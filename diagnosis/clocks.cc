#include "diagnosis/clocks.h"

#include <algorithm>
#include <cmath>
#include <deque>

#include "absl/container/flat_hash_map.h"
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
}

void Clocks::Solve() {
  struct Edge {
    int to;
    double ns;  // clock of `to` minus clock of this
  };
  std::map<int, std::vector<Edge>> edges;
  for (auto& [nodes, pair] : pairs_) {
    std::vector<int64_t> ns(pair.ns.begin(), pair.ns.begin() + std::min<size_t>(pair.count, kDifferences));
    const auto middle = static_cast<double>(UpperMedian(ns));
    edges[nodes.first].push_back({nodes.second, middle});
    edges[nodes.second].push_back({nodes.first, -middle});
  }
  offsets_.clear();
  if (edges.empty()) return;
  // A spanning tree from the reference node first, then sweeps that spread what does not fit over all pairs.
  std::map<int, double> theta;
  const int reference = edges.begin()->first;
  theta[reference] = 0;
  std::deque<int> queue = {reference};
  while (!queue.empty()) {
    int node = queue.front();
    queue.pop_front();
    for (const Edge& edge : edges[node]) {
      if (theta.emplace(edge.to, theta[node] + edge.ns).second) queue.push_back(edge.to);
    }
  }
  for (int sweep = 0; sweep < kSweeps; ++sweep) {
    for (auto& [node, value] : theta) {
      if (node == reference) continue;
      double sum = 0;
      for (const Edge& edge : edges[node]) sum += theta[edge.to] - edge.ns;
      value = sum / static_cast<double>(edges[node].size());
    }
  }
  for (const auto& [node, value] : theta) offsets_[node] = std::llround(value);
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
