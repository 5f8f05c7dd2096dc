// What a step would take if some ranks did what their peers do: a replay of the step by stages.
#pragma once

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "diagnosis/layout.h"
#include "diagnosis/verdict.h"

namespace taskd::diagnosis {

// A pipeline of stages that take t_s a microbatch needs sum(t_s) + (m - 1) * max(t_s): the slowest stage paces it, the
// others fill and drain it once. A stage is as slow as the slowest rank of its cell, and the job as its slowest
// pipeline.
class CostModel {
 public:
  // `microbatches` by rank; 0: not known, then 1. All ranks take no time until it is set.
  CostModel(const Layout& layout, const std::vector<int>& microbatches);

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

// What a suspect costs in the mean of the steps in which it was one.
class CostMeans {
 public:
  using Who = std::pair<Scope, int>;

  // In `step`, a place in one count, it costs `cost_ns`: the mean with that. `until_known_ns`: what it is taken to cost
  // while it has been suspected in a few steps only.
  double Add(const Who& who, int64_t step, double cost_ns, double until_known_ns);
  // Those that were not suspected in `step`.
  void Forget(int64_t step);

 private:
  struct Mean {
    double ns = 0;
    double steps = 0;  // that it is of
    int64_t last = 0;
  };
  std::map<Who, Mean> means_;
};

}  // namespace taskd::diagnosis
