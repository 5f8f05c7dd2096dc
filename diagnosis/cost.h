// What a step would take if some ranks did what their peers do: a replay of the step by stages.
#pragma once

#include <vector>

#include "diagnosis/layout.h"
#include "diagnosis/own_time.h"

namespace taskd::diagnosis {

// A pipeline of stages that take t_s a microbatch needs sum(t_s) + (m - 1) * max(t_s): the slowest stage paces it, the
// others fill and drain it once. A stage is as slow as the slowest rank of its cell, and the job as its slowest
// pipeline.
class CostModel {
 public:
  // `microbatches` by rank; 0: not known, then 1.
  CostModel(const Layout& layout, const OwnTime& own, const std::vector<int>& microbatches);

  // Takes rank's own time to be `own_ns` from now on.
  void Set(int rank, double own_ns) { own_ns_[static_cast<size_t>(rank)] = own_ns; }
  double own_ns(int rank) const { return own_ns_[static_cast<size_t>(rank)]; }
  // ns of own time on the critical path of a step.
  double StepNs() const;

 private:
  const Layout& layout_;
  std::vector<double> own_ns_;
  std::vector<double> microbatches_;  // by pipeline
};

}  // namespace taskd::diagnosis
