#include "agent/route/attach.h"

#include <algorithm>
#include <string>

#include "fmt/format.h"

namespace taskd::route {
namespace {

bool SameLeaves(const Topology& topology, int32_t a, int32_t b) {
  const absl::Span<const int32_t> x = topology.LeavesOf(a);
  const absl::Span<const int32_t> y = topology.LeavesOf(b);
  return std::equal(x.begin(), x.end(), y.begin(), y.end());
}

}  // namespace

absl::StatusOr<Attachment> Attach(absl::Span<const RouteNode> nodes, absl::Span<const int32_t> by_old_rank,
                                  const Topology& topology) {
  Attachment result;
  result.node.assign(nodes.size(), -1);
  std::vector<bool> used(topology.nodes.size(), false);
  if (topology.by_old_rank) {
    for (size_t rank = 0; rank < std::min(nodes.size(), used.size()); ++rank) {
      result.node[rank] = static_cast<int32_t>(rank);
      used[rank] = true;
    }
  } else {
    // A name that matches a server_id is not looked up as a pod_name, and so on: the first field that has it wins.
    constexpr std::string RouteNode::*kFields[] = {&RouteNode::server_id, &RouteNode::pod_name, &RouteNode::host_ip,
                                                   &RouteNode::container_ip};
    struct Claim {
      int field = -1;
      int32_t rank = 0;
    };
    std::vector<Claim> claims(topology.nodes.size());
    for (int field = 0; field < 4; ++field) {
      for (size_t rank = 0; rank < nodes.size(); ++rank) {
        const RouteNode& server = nodes[by_old_rank[rank]];
        const std::string& name = server.*kFields[field];
        if (name.empty() || (field > 0 && name == server.server_id)) continue;
        const auto found = topology.node_by_name.find(name);
        if (found == topology.node_by_name.end()) continue;
        Claim& claim = claims[found->second];
        const bool taken = claim.field >= 0 && claim.field < field && claim.rank != static_cast<int32_t>(rank);
        if (taken) continue;
        if (claim.field < 0) claim = {field, static_cast<int32_t>(rank)};
        int32_t& node = result.node[rank];
        if (node >= 0 && !SameLeaves(topology, node, found->second)) {
          return absl::InvalidArgumentError(fmt::format("node {} comes twice with different switches, once as {}",
                                                        Quoted(server.server_id), Quoted(name)));
        }
        if (node < 0) node = found->second;
        used[found->second] = true;
      }
    }
  }
  result.ignored = std::count(used.begin(), used.end(), false);
  return result;
}

}  // namespace taskd::route
