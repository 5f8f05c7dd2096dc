#include "agent/route/topology.h"

#include <algorithm>
#include <utility>

#include "absl/strings/escaping.h"
#include "fmt/format.h"

namespace taskd::route {
namespace {

// What the model keeps, with the room that its tables leave free and the allocator's own.
constexpr size_t kSwitchBytes = 192;
constexpr size_t kNodeBytes = 128;
constexpr size_t kOtherNameBytes = 64;

}  // namespace

std::string Quoted(std::string_view text) {
  constexpr size_t kShown = 80;
  const std::string escaped = absl::CHexEscape(std::string(text.substr(0, kShown)));
  return fmt::format("\"{}{}\"", escaped, text.size() > kShown ? "…" : "");
}

int32_t TopologyBuilder::Switch(std::string_view name, int level) {
  const std::string key = fmt::format("{}/{}", level, name);
  const auto [place, is_new] = switch_by_key_.try_emplace(key, static_cast<int32_t>(topology_.switch_name.size()));
  if (is_new) {
    budget_.Take(kSwitchBytes + 2 * name.size());
    topology_.switch_name.emplace_back(name);
    topology_.switch_parent.push_back(-1);
    defined_.push_back(false);
  }
  return place->second;
}

absl::Status TopologyBuilder::Define(int32_t id) {
  if (defined_[id]) {
    return absl::InvalidArgumentError(fmt::format("switch {} is defined twice", Quoted(topology_.switch_name[id])));
  }
  defined_[id] = true;
  return budget_.status();
}

absl::Status TopologyBuilder::SetParent(int32_t child, int32_t parent) {
  const int32_t before = topology_.switch_parent[child];
  if (before >= 0 && before != parent) {
    return absl::InvalidArgumentError(
        fmt::format("switch {} is below two switches, {} and {}", Quoted(topology_.switch_name[child]),
                    Quoted(topology_.switch_name[before]), Quoted(topology_.switch_name[parent])));
  }
  topology_.switch_parent[child] = parent;
  return budget_.status();
}

absl::Status TopologyBuilder::AddNode(std::string_view name, std::string_view other_name,
                                      absl::Span<const int32_t> leaves) {
  const auto [place, is_new] =
      topology_.node_by_name.try_emplace(std::string(name), static_cast<int32_t>(topology_.nodes.size()));
  if (!is_new) {
    const absl::Span<const int32_t> before = topology_.LeavesOf(place->second);
    const auto difference = std::mismatch(before.begin(), before.end(), leaves.begin(), leaves.end());
    if (difference.first != before.end() || difference.second != leaves.end()) {
      const auto shown = [&](auto at, auto end) {
        return at == end ? "none" : Quoted(topology_.switch_name[static_cast<size_t>(*at)]);
      };
      return absl::InvalidArgumentError(fmt::format("node {} comes twice with different switches, {} and {}",
                                                    Quoted(name), shown(difference.first, before.end()),
                                                    shown(difference.second, leaves.end())));
    }
  } else {
    budget_.Take(kNodeBytes + name.size() + 2 * sizeof(int32_t) * leaves.size());
    topology_.nodes.push_back({static_cast<uint32_t>(topology_.leaves.size()), static_cast<uint32_t>(leaves.size())});
    topology_.leaves.insert(topology_.leaves.end(), leaves.begin(), leaves.end());
  }
  if (!other_name.empty() && other_name != name) {
    budget_.Take(kOtherNameBytes + 2 * other_name.size());
    other_names_.emplace_back(other_name, place->second);
  }
  return budget_.status();
}

void TopologyBuilder::AddNextRank(int32_t leaf) {
  budget_.Take(2 * (sizeof(Topology::Node) + sizeof(int32_t)));
  topology_.by_old_rank = true;
  topology_.nodes.push_back({static_cast<uint32_t>(topology_.leaves.size()), 1});
  topology_.leaves.push_back(leaf);
}

absl::Status TopologyBuilder::CheckCycles() const {
  // Every switch is walked once: 1, 2, … is the walk that met it. A walk that meets itself has found a cycle.
  const std::vector<int32_t>& parent = topology_.switch_parent;
  std::vector<int32_t> walk(parent.size(), 0);
  for (size_t start = 0; start < parent.size(); ++start) {
    const int32_t number = static_cast<int32_t>(start) + 1;
    int32_t at = static_cast<int32_t>(start);
    while (at >= 0 && walk[at] == 0) {
      walk[at] = number;
      at = parent[at];
    }
    if (at >= 0 && walk[at] == number) {
      return absl::InvalidArgumentError(
          fmt::format("switch {} is below itself: the switches are not a tree", Quoted(topology_.switch_name[at])));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<Topology> TopologyBuilder::Finish(bool all_defined) {
  if (absl::Status status = budget_.status(); !status.ok()) return status;
  if (all_defined) {
    const auto missing = std::find(defined_.begin(), defined_.end(), false);
    if (missing != defined_.end()) {
      return absl::InvalidArgumentError(
          fmt::format("switch {} is named as a child, but not defined",
                      Quoted(topology_.switch_name[static_cast<size_t>(missing - defined_.begin())])));
    }
  }
  if (absl::Status status = CheckCycles(); !status.ok()) return status;
  if (topology_.nodes.empty()) return absl::InvalidArgumentError("the topology has no node");
  for (auto& [name, node] : other_names_) topology_.node_by_name.try_emplace(std::move(name), node);
  other_names_.clear();
  switch_by_key_.clear();
  return std::move(topology_);
}

}  // namespace taskd::route
