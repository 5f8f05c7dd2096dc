// The nodes of a job as its rank table lists them. modes-routing §4, first paragraph.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/types/span.h"

namespace taskd::route {

// One server of a rank table 1.0 or 1.2; in 2.0 one run of SplitRuns, with server_id "node<k>".
struct RouteNode {
  std::string server_id;
  std::string pod_name;  // empty: not in the table; so the next two
  std::string host_ip;
  std::string container_ip;
  std::vector<int> device_ranks;  // rank_id of its devices, not empty, in any order
};

// Version 2.0: where the nodes end. `local_ids` are in the order of rank_id; a run ends where local_id does not grow.
// Returns the length of every run.
std::vector<size_t> SplitRuns(absl::Span<const int> local_ids);

// Indices into `nodes`, by old rank: by smallest rank_id.
std::vector<int32_t> ByOldRank(absl::Span<const RouteNode> nodes);

// By index into `nodes`: the number after the last '-' of pod_name if every node has one and all differ, else the old
// rank. `by_old_rank` as ByOldRank gives it.
std::vector<int64_t> PodIndices(absl::Span<const RouteNode> nodes, absl::Span<const int32_t> by_old_rank);

// The node with that server_id, else that pod_name, host_ip or container_ip; the one of lowest old rank if several
// have it.
std::optional<int32_t> FindNode(absl::Span<const RouteNode> nodes, absl::Span<const int32_t> by_old_rank,
                                std::string_view name);

}  // namespace taskd::route
