#include "agent/route/job_tree.h"

#include <algorithm>

namespace taskd::route {

// A switch gets its number when the first node below it is met, in the order of old ranks. So children stand in the
// order of the smallest old rank below them without any sorting, and nothing depends on the order of the input.
JobTree::JobTree(const Topology& topology, absl::Span<const int32_t> node) {
  const auto roots = std::count(topology.switch_parent.begin(), topology.switch_parent.end(), -1);
  std::vector<int32_t> number(topology.switch_parent.size(), -1);  // here, of a switch of the topology
  AddSwitch(-1);
  if (roots == 1) {
    const auto root = std::find(topology.switch_parent.begin(), topology.switch_parent.end(), -1);
    number[static_cast<size_t>(root - topology.switch_parent.begin())] = 0;
  }
  const size_t count = node.size();
  unknown_.assign(count, false);
  next_node_.assign(count, kNone);
  rail_begin_.reserve(count + 1);
  unique_begin_.reserve(count + 1);

  std::vector<int32_t> path;
  const auto visit = [&](int32_t leaf) {
    path.clear();
    int32_t at = leaf;
    while (at >= 0 && number[at] < 0) {
      path.push_back(at);
      at = topology.switch_parent[at];
    }
    int32_t parent = at < 0 ? 0 : number[at];
    for (; !path.empty(); path.pop_back()) {
      const int32_t id = AddSwitch(parent);
      number[path.back()] = id;
      Append(parent, id);
      parent = id;
    }
    return number[leaf];
  };
  std::vector<int32_t> later;  // unknown nodes and their leaves: the root's last children
  for (size_t v = 0; v < count; ++v) {
    const int32_t old_rank = static_cast<int32_t>(v);
    if (node[v] < 0) {
      unknown_[v] = true;
      const int32_t id = AddSwitch(0);
      rails_.push_back(id);
      if (v == 0) {
        Append(0, id);
      } else {
        later.push_back(id);
      }
    } else {
      for (const int32_t leaf : topology.LeavesOf(node[v])) rails_.push_back(visit(leaf));
    }
    rail_begin_.push_back(static_cast<uint32_t>(rails_.size()));
    unique_.insert(unique_.end(), rails_.begin() + rail_begin_[v], rails_.end());
    const auto begin = unique_.begin() + unique_begin_[v];
    std::sort(begin, unique_.end());
    unique_.erase(std::unique(begin, unique_.end()), unique_.end());
    unique_begin_.push_back(static_cast<uint32_t>(unique_.size()));
    AttachNode(old_rank, unique_[unique_begin_[v]]);
  }
  for (const int32_t id : later) Append(0, id);
  CheckRails();
  Prepare();
}

int32_t JobTree::AddSwitch(int32_t parent) {
  parent_.push_back(parent);
  is_leaf_.push_back(false);
  first_child_.push_back(kNone);
  last_child_.push_back(kNone);
  next_switch_.push_back(kNone);
  return static_cast<int32_t>(parent_.size()) - 1;
}

void JobTree::Append(int32_t parent, int32_t item) {
  const int32_t last = last_child_[parent];
  if (last == kNone) {
    first_child_[parent] = item;
  } else if (last >= 0) {
    next_switch_[last] = item;
  } else {
    next_node_[~last] = item;
  }
  last_child_[parent] = item;
}

void JobTree::AttachNode(int32_t node, int32_t leaf) { Append(leaf, ~node); }

// Several leaves a node, but every leaf has nodes of one kind only: such a bundle of leaves is like one switch.
void JobTree::CheckRails() {
  const auto unique_of = [&](int32_t node) {
    return absl::MakeConstSpan(unique_).subspan(unique_begin_[node], unique_begin_[node + 1] - unique_begin_[node]);
  };
  below_.assign(parent_.size(), 0);
  std::vector<int32_t> first_node(parent_.size(), -1);
  for (int32_t node = 0; node < nodes(); ++node) {
    const absl::Span<const int32_t> leaves = unique_of(node);
    const int32_t like = first_node[leaves[0]] < 0 ? node : first_node[leaves[0]];
    for (const int32_t leaf : leaves) {
      if (first_node[leaf] < 0) first_node[leaf] = like;
      if (first_node[leaf] != like) is_tree_ = false;
      is_leaf_[leaf] = true;
      ++below_[leaf];
    }
    if (is_tree_ && like != node) {
      const absl::Span<const int32_t> other = unique_of(like);
      is_tree_ = std::equal(leaves.begin(), leaves.end(), other.begin(), other.end());
    }
  }
  tors_ = std::count(is_leaf_.begin(), is_leaf_.end(), true);
  leaves_are_ends_ = unique_.size() == static_cast<size_t>(nodes());
  for (const int32_t parent : parent_) leaves_are_ends_ = leaves_are_ends_ && (parent < 0 || !is_leaf_[parent]);
}

void JobTree::Prepare() {
  const size_t count = parent_.size();
  depth_.assign(count, 0);
  preorder_.reserve(count);
  // The switches of a forest in preorder; every switch has been appended to its parent.
  std::vector<int32_t> stack = {0};
  while (!stack.empty()) {
    const int32_t at = stack.back();
    stack.pop_back();
    preorder_.push_back(at);
    for (int32_t item = first_child_[at]; item != kNone; item = item >= 0 ? next_switch_[item] : next_node_[~item]) {
      if (item < 0) continue;
      depth_[item] = depth_[at] + 1;
      stack.push_back(item);
    }
  }
  std::vector<int32_t> size(count, 1);
  std::vector<int32_t> heavy(count, -1);
  for (size_t i = count; i-- > 1;) {
    const int32_t at = preorder_[i];
    const int32_t up = parent_[at];
    size[up] += size[at];
    if (heavy[up] < 0 || size[at] > size[heavy[up]]) heavy[up] = at;
    if (up != 0) below_[up] += below_[at];  // with rails there are no inner switches but the root
  }
  below_[0] = nodes();
  head_.assign(count, 0);
  for (const int32_t at : preorder_) {
    head_[at] = at != 0 && heavy[parent_[at]] == at ? head_[parent_[at]] : at;
  }
}

int32_t JobTree::Meeting(int32_t a, int32_t b) const {
  while (head_[a] != head_[b]) {
    int32_t& deeper = depth_[head_[a]] >= depth_[head_[b]] ? a : b;
    deeper = parent_[head_[deeper]];
  }
  return depth_[a] <= depth_[b] ? a : b;
}

std::vector<int32_t> JobTree::DepthFirst() const {
  std::vector<int32_t> order;
  order.reserve(nodes());
  int32_t at = 0;
  int32_t item = first_child_[0];
  while (true) {
    if (item == kNone) {
      if (at == 0) return order;
      item = next_switch_[at];
      at = parent_[at];
    } else if (item < 0) {
      order.push_back(~item);
      item = next_node_[~item];
    } else {
      at = item;
      item = first_child_[at];
    }
  }
}

int64_t JobTree::Hops(int32_t a, int32_t b) const {
  if (unique_.size() == static_cast<size_t>(nodes())) {
    if (unique_[a] == unique_[b]) return 0;
    return depth_[unique_[a]] + depth_[unique_[b]] - 2 * depth_[Meeting(unique_[a], unique_[b])];
  }
  int64_t hops = 0;
  uint32_t i = unique_begin_[a];
  uint32_t k = unique_begin_[b];
  while (i < unique_begin_[a + 1] || k < unique_begin_[b + 1]) {
    const int32_t x = i < unique_begin_[a + 1] ? unique_[i] : INT32_MAX;
    const int32_t y = k < unique_begin_[b + 1] ? unique_[k] : INT32_MAX;
    if (x != y) ++hops;
    if (x <= y) ++i;
    if (y <= x) ++k;
  }
  return hops;
}

std::vector<std::vector<int32_t>> JobTree::Levels() const {
  std::vector<std::vector<int32_t>> levels;
  std::vector<int32_t> level(parent_.size(), -1);
  if (unique_.size() == static_cast<size_t>(nodes())) {
    for (const int32_t at : preorder_) level[at] = depth_[at] - 1;
  } else {
    for (int32_t node = 0; node < nodes(); ++node) {
      const absl::Span<const int32_t> rails = Rails(node);
      for (size_t rail = 0; rail < rails.size(); ++rail) {
        int32_t& known = level[rails[rail]];
        if (known >= 0 && known != static_cast<int32_t>(rail)) return {};
        known = static_cast<int32_t>(rail);
      }
    }
  }
  for (size_t at = 0; at < level.size(); ++at) {
    if (level[at] < 0 || below_[at] == 0) continue;
    if (levels.size() <= static_cast<size_t>(level[at])) levels.resize(static_cast<size_t>(level[at]) + 1);
    levels[static_cast<size_t>(level[at])].push_back(below_[at]);
  }
  return levels;
}

std::vector<int64_t> JobTree::Crossings(absl::Span<const Flow> flows, absl::Span<const int64_t> weights) const {
  std::vector<int64_t> crossings(parent_.size(), 0);
  const bool one_leaf = unique_.size() == static_cast<size_t>(nodes());
  for (size_t i = 0; i < flows.size(); ++i) {
    const auto [from, to] = flows[i];
    const int64_t weight = weights.empty() ? 1 : weights[i];
    if (one_leaf) {
      if (unique_[from] == unique_[to]) continue;
      crossings[unique_[from]] += weight;
      crossings[Meeting(unique_[from], unique_[to])] -= weight;
    } else {
      uint32_t other = unique_begin_[to];
      for (uint32_t leaf = unique_begin_[from]; leaf < unique_begin_[from + 1]; ++leaf) {
        while (other < unique_begin_[to + 1] && unique_[other] < unique_[leaf]) ++other;
        if (other == unique_begin_[to + 1] || unique_[other] != unique_[leaf]) crossings[unique_[leaf]] += weight;
      }
    }
  }
  if (one_leaf) {
    for (size_t i = preorder_.size(); i-- > 1;) crossings[parent_[preorder_[i]]] += crossings[preorder_[i]];
  }
  return crossings;
}

Cost JobTree::CostOf(absl::Span<const int64_t> crossings) const {
  Cost cost;
  for (size_t i = 0; i < crossings.size(); ++i) {
    if (is_leaf_[i]) cost.cross_tor_flows += crossings[i];
    cost.max_link_flows = std::max(cost.max_link_flows, crossings[i]);
    cost.total_hops += 2 * crossings[i];
  }
  return cost;
}

int64_t JobTree::CrossTorFlows(absl::Span<const Flow> flows) const {
  if (!leaves_are_ends_) return CostOf(Crossings(flows)).cross_tor_flows;
  return std::count_if(flows.begin(), flows.end(),
                       [&](const Flow& flow) { return unique_[flow.first] != unique_[flow.second]; });
}

Cost JobTree::RingCost(absl::Span<const int32_t> order) const {
  std::vector<Flow> ring(order.size());
  for (size_t i = 0; i < order.size(); ++i) ring[i] = {order[i], order[i + 1 == order.size() ? 0 : i + 1]};
  return CostOf(Crossings(ring));
}

Cost JobTree::RingBound() const {
  std::vector<int64_t> crossings(parent_.size(), 0);
  for (size_t i = 0; i < parent_.size(); ++i) crossings[i] = below_[i] > 0 && below_[i] < nodes() ? 1 : 0;
  return CostOf(crossings);
}

}  // namespace taskd::route
