// The order of a job's nodes for its parallel groups instead of one ring over all nodes. Pure computation.
//
// Design:
// 1. Ranks are numbered as Megatron does: tensor parallel fastest, then expert, data and pipeline parallel; a node has
//    as many consecutive ranks as devices. Data parallel groups have D = W / (T * P) ranks; an expert parallel group is
//    E consecutive ones of them.
// 2. Every group is a ring over its ranks in their order, closed (for pipelines: the interleaved schedule). The cost of
//    an order is the sum over all steps of these rings, of the step's weight (GroupWeights) times the links between
//    switches that it takes. A step within a node or below one leaf switch costs nothing.
// 3. To find the cheapest order is NP-hard already for equal groups on one level of switches. So: blocks of nodes are
//    cut out of the tree as low as possible (what a switch has left over is paired at the next one above), tiles of the
//    layout (some stages times some of the nodes of a stage) are put on the blocks, for every shape of tile; then pairs
//    of nodes are swapped while that helps. Up to kMaxExactNodes nodes all orders are tried.
// 4. The bound: whatever the order, the ring of a group of m nodes enters and leaves each switch that has only a part
//    of it; on each level of the tree that is at least the number of switches, the fullest first, that hold m nodes.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "agent/route/job.h"
#include "agent/route/plan.h"
#include "agent/route/topology.h"

namespace taskd::route {

inline constexpr int32_t kMaxExactNodes = 8;

struct GroupSizes {
  int32_t tp = 1;
  int32_t pp = 1;
  int32_t ep = 1;
  int32_t dp = 0;  // 0: what is left of the ranks
};

// Of one ring step. Tensor and expert parallel groups communicate in every layer and micro-batch, the others once a
// step or with a layer's output only.
struct GroupWeights {
  static constexpr int64_t kTp = 8;
  static constexpr int64_t kEp = 4;
  static constexpr int64_t kDp = 1;
  static constexpr int64_t kPp = 1;
};

struct GroupReport {
  int64_t before = 0;
  int64_t after = 0;
  int64_t bound = 0;
  // The part of `after` that a better order could save at most, 0 to 1.
  double gap() const { return after == 0 ? 0 : static_cast<double>(after - bound) / static_cast<double>(after); }
};

// The sizes with dp. INVALID_ARGUMENT: nodes with different numbers of devices, or sizes that do not make up the ranks.
absl::StatusOr<GroupSizes> CheckGroups(absl::Span<const RouteNode> nodes, const GroupSizes& sizes);

// Puts the order for these groups (as CheckGroups gives them) into `plan`, which PlanRoutes made of the same nodes and
// topology. It is never worse than the given order nor than the depth-first one, old rank 0 stays 0, and a second run
// on its result changes nothing. The plan's ring costs may grow.
absl::StatusOr<GroupReport> PlanGroups(absl::Span<const RouteNode> nodes, const Topology& topology,
                                       const GroupSizes& sizes, RoutePlan& plan);

}  // namespace taskd::route
