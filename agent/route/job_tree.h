// The part of a network that a job uses, and how many flows of a communication pattern cross each of its switches.
// modes-routing §4, "Costs". Nodes are called by their old rank here.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "agent/route/attach.h"
#include "agent/route/topology.h"

namespace taskd::route {

struct Cost {
  int64_t cross_tor_flows = 0;  // over leaf switches
  int64_t max_link_flows = 0;   // over all switches
  int64_t total_hops = 0;
  friend bool operator==(const Cost&, const Cost&) = default;
};

// Sender and receiver, by old rank.
using Flow = std::pair<int32_t, int32_t>;

class JobTree {
 public:
  // `node` as Attach gives it; a node that the topology lacks gets a leaf of its own below the root.
  JobTree(const Topology& topology, absl::Span<const int32_t> node);

  int32_t nodes() const { return static_cast<int32_t>(rail_begin_.size()) - 1; }
  int32_t switches() const { return static_cast<int32_t>(parent_.size()); }
  // Leaf switches with a job node.
  int64_t tors() const { return tors_; }
  bool Unknown(int32_t node) const { return unknown_[node]; }

  // False: nodes hang on several leaf switches, and these group the nodes differently. Then no order needs to reach
  // the bound, and DepthFirst means nothing.
  bool is_tree() const { return is_tree_; }
  // Children by the smallest old rank below them, what is unknown last (old rank 0 always first).
  std::vector<int32_t> DepthFirst() const;

  // One leaf switch a rail, in the order of rails.
  absl::Span<const int32_t> Rails(int32_t node) const {
    return absl::MakeConstSpan(rails_).subspan(rail_begin_[node], rail_begin_[node + 1] - rail_begin_[node]);
  }

  // Links between the leaf switches of two nodes: what a ring step from one to the other adds to total_hops.
  int64_t Hops(int32_t a, int32_t b) const;

  // Switches, each before those below it; the first is the root.
  absl::Span<const int32_t> Preorder() const { return preorder_; }
  // f(item) for what hangs below a switch, in the order of DepthFirst: a switch, or ~node. On a tree.
  template <typename F>
  void ForEachChild(int32_t at, F&& f) const {
    for (int32_t item = first_child_[at]; item != kNone; item = item >= 0 ? next_switch_[item] : next_node_[~item]) {
      f(item);
    }
  }

  // How many job nodes are below each switch, by groups of switches of which no node is below two, and which have no
  // switch in common: the levels of a tree, or its rails. Empty where there are no such groups.
  std::vector<std::vector<int32_t>> Levels() const;

  // Flows that leave the nodes below a switch, by switch. `weights` empty: every flow counts 1, else by flow.
  std::vector<int64_t> Crossings(absl::Span<const Flow> flows, absl::Span<const int64_t> weights = {}) const;
  Cost CostOf(absl::Span<const int64_t> crossings) const;
  // CostOf(Crossings(flows)).cross_tor_flows, but faster.
  int64_t CrossTorFlows(absl::Span<const Flow> flows) const;
  Cost RingCost(absl::Span<const int32_t> order) const;
  // What no ring can beat: a switch with nodes below it and nodes elsewhere is left once.
  Cost RingBound() const;

 private:
  int32_t AddSwitch(int32_t parent);
  void Append(int32_t parent, int32_t item);
  void AttachNode(int32_t node, int32_t leaf);
  void CheckRails();
  void Prepare();
  int32_t Meeting(int32_t a, int32_t b) const;

  // Switch 0 is the root. `unique_` is `rails_` of each node, sorted, without repetition.
  std::vector<int32_t> parent_;
  std::vector<bool> is_leaf_;
  std::vector<int32_t> below_;  // job nodes below a switch
  std::vector<uint32_t> rail_begin_ = {0};
  std::vector<int32_t> rails_;
  std::vector<uint32_t> unique_begin_ = {0};
  std::vector<int32_t> unique_;
  std::vector<bool> unknown_;
  int64_t tors_ = 0;
  bool is_tree_ = true;
  bool leaves_are_ends_ = true;  // every node has one leaf, and no leaf has switches below it

  // Children in order, as linked lists: item >= 0 is a switch, ~item a node.
  static constexpr int32_t kNone = INT32_MIN;
  std::vector<int32_t> first_child_;
  std::vector<int32_t> last_child_;
  std::vector<int32_t> next_switch_;
  std::vector<int32_t> next_node_;

  // For Meeting: heavy paths. A parent stands before its children in preorder_.
  std::vector<int32_t> preorder_;
  std::vector<int32_t> head_;
  std::vector<int32_t> depth_;
};

}  // namespace taskd::route
