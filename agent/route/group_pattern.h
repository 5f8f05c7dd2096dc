// Who talks to whom in a job with parallel groups, by the positions of nodes in the rank order. groups.h, "Design"
// 1, 2. Internal to agent/route.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "absl/types/span.h"
#include "agent/route/groups.h"

namespace taskd::route {

class GroupPattern {
 public:
  struct Edge {
    int32_t other = 0;
    int64_t weight = 0;  // of the ring steps between the two, in both directions
  };

  // `sizes` as CheckGroups gives them for `nodes` nodes of `devices` devices.
  GroupPattern(const GroupSizes& sizes, int32_t nodes, int32_t devices);

  int32_t positions() const { return static_cast<int32_t>(begin_.size()) - 1; }
  // Pipeline stages, each of as many whole nodes; 1 if they are not.
  int32_t stages() const { return stages_; }
  // Both ends have the edge.
  absl::Span<const Edge> EdgesOf(int32_t position) const {
    return absl::MakeConstSpan(edges_).subspan(begin_[position], begin_[position + 1] - begin_[position]);
  }
  // The weights of all groups on more than one node, by how many nodes they are on.
  const std::map<int32_t, int64_t>& weight_by_size() const { return weight_by_size_; }

 private:
  struct Step {
    int32_t from = 0;
    int32_t to = 0;
    int64_t weight = 0;
  };
  // The ring over ranks first, first + stride, …
  void AddRing(int64_t first, int64_t stride, int32_t count, int64_t weight, int32_t devices);
  void AddStep(int32_t from, int32_t to, int64_t weight);
  void MergeSteps();

  int32_t stages_ = 1;
  std::vector<size_t> begin_;
  std::vector<Edge> edges_;
  std::map<int32_t, int64_t> weight_by_size_;
  std::vector<Step> steps_;  // while it is made
  size_t merged_ = 0;        // of steps_
};

}  // namespace taskd::route
