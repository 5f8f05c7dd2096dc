// The network below a job, whatever file it came from: a forest of switches, and to which of them each node is
// attached. modes-routing §4.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/input_budget.h"

namespace taskd::route {

// A piece of a foreign file, fit for a one-line message: quoted, escaped, cut when long.
std::string Quoted(std::string_view text);

// Made by TopologyBuilder only, so it holds: no cycle, every index valid, at least one node. Node entries have no order
// of their own: nothing may depend on it, or on the numbers of switches.
struct Topology {
  struct Node {
    uint32_t first_leaf = 0;  // in `leaves`
    uint32_t rails = 0;       // how many leaves: 1, and only in a forest without inner switches more
  };

  std::vector<std::string> switch_name;
  std::vector<int32_t> switch_parent;  // -1: has none
  std::vector<Node> nodes;
  std::vector<int32_t> leaves;                             // switches; one a rail, a switch may come back
  absl::flat_hash_map<std::string, int32_t> node_by_name;  // several names may stand for one node
  bool by_old_rank = false;                                // nodes have no names: entry k is old rank k

  absl::Span<const int32_t> LeavesOf(int32_t node) const {
    return absl::MakeConstSpan(leaves).subspan(nodes[node].first_leaf, nodes[node].rails);
  }
};

// Collects what a reader finds, in any order. Every error is one line that names the node or the switch.
// RESOURCE_EXHAUSTED: `budget` does not suffice for what has been added.
class TopologyBuilder {
 public:
  explicit TopologyBuilder(InputBudget& budget) : budget_(budget) {}

  // The switch of that name on that level, made if it is new. Formats that name switches uniquely use one level.
  int32_t Switch(std::string_view name, int level = 0);
  // Records that the file describes the switch itself, not only mentions it. Refused the second time.
  absl::Status Define(int32_t id);
  // Refused: another parent than before.
  absl::Status SetParent(int32_t child, int32_t parent);
  // `leaves` is not empty. A node may come twice only with the same leaves. `other_name` (empty: none) is used where
  // nothing else has that name.
  absl::Status AddNode(std::string_view name, std::string_view other_name, absl::Span<const int32_t> leaves);
  // A node that has no name but its old rank; to be called for 0, 1, …, and never together with AddNode.
  void AddNextRank(int32_t leaf);

  // Refused: a switch that was only mentioned (if `all_defined`), a cycle, no node at all.
  absl::StatusOr<Topology> Finish(bool all_defined);

 private:
  absl::Status CheckCycles() const;

  InputBudget& budget_;
  Topology topology_;
  absl::flat_hash_map<std::string, int32_t> switch_by_key_;
  std::vector<bool> defined_;
  std::vector<std::pair<std::string, int32_t>> other_names_;
};

}  // namespace taskd::route
