// Which node of the topology each node of the job is.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "agent/route/job.h"
#include "agent/route/topology.h"

namespace taskd::route {

struct Attachment {
  std::vector<int32_t> node;  // by old rank: index into topology.nodes; -1: the topology lacks it
  int64_t ignored = 0;        // nodes of the topology that are not in the job
};

// A name stands for the server that has it as server_id; else as pod_name, host_ip, container_ip. Pods that share a
// host share its place. Refused: two names of one server that lie below different switches.
absl::StatusOr<Attachment> Attach(absl::Span<const RouteNode> nodes, absl::Span<const int32_t> by_old_rank,
                                  const Topology& topology);

}  // namespace taskd::route
