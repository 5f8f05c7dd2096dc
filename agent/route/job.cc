#include "agent/route/job.h"

#include <algorithm>
#include <charconv>
#include <numeric>

namespace taskd::route {
namespace {

// What stands after the last '-', if that is a decimal number.
std::optional<int64_t> PodNumber(std::string_view pod_name) {
  const size_t dash = pod_name.rfind('-');
  if (dash == std::string_view::npos || dash + 1 == pod_name.size()) return std::nullopt;
  const std::string_view digits = pod_name.substr(dash + 1);
  int64_t number = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  if (error != std::errc() || end != digits.data() + digits.size()) return std::nullopt;
  return number >= 0 ? std::optional(number) : std::nullopt;
}

}  // namespace

std::vector<size_t> SplitRuns(absl::Span<const int> local_ids) {
  std::vector<size_t> lengths;
  for (size_t i = 0; i < local_ids.size(); ++i) {
    if (i == 0 || local_ids[i] <= local_ids[i - 1]) lengths.push_back(0);
    ++lengths.back();
  }
  return lengths;
}

std::vector<int32_t> ByOldRank(absl::Span<const RouteNode> nodes) {
  std::vector<int> smallest(nodes.size(), 0);
  for (size_t i = 0; i < nodes.size(); ++i) {
    const std::vector<int>& ranks = nodes[i].device_ranks;
    if (!ranks.empty()) smallest[i] = *std::min_element(ranks.begin(), ranks.end());
  }
  std::vector<int32_t> order(nodes.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return smallest[a] < smallest[b]; });
  return order;
}

std::vector<int64_t> PodIndices(absl::Span<const RouteNode> nodes, absl::Span<const int32_t> by_old_rank) {
  std::vector<int64_t> indices;
  indices.reserve(nodes.size());
  for (const RouteNode& node : nodes) {
    const std::optional<int64_t> number = PodNumber(node.pod_name);
    if (!number) break;
    indices.push_back(*number);
  }
  std::vector<int64_t> sorted = indices;
  std::sort(sorted.begin(), sorted.end());
  if (indices.size() == nodes.size() && std::adjacent_find(sorted.begin(), sorted.end()) == sorted.end()) {
    return indices;
  }
  indices.assign(nodes.size(), 0);
  for (size_t rank = 0; rank < by_old_rank.size(); ++rank) indices[by_old_rank[rank]] = static_cast<int64_t>(rank);
  return indices;
}

std::optional<int32_t> FindNode(absl::Span<const RouteNode> nodes, absl::Span<const int32_t> by_old_rank,
                                std::string_view name) {
  if (name.empty()) return std::nullopt;
  for (const auto field :
       {&RouteNode::server_id, &RouteNode::pod_name, &RouteNode::host_ip, &RouteNode::container_ip}) {
    for (const int32_t index : by_old_rank) {
      if (nodes[index].*field == name) return index;
    }
  }
  return std::nullopt;
}

}  // namespace taskd::route
