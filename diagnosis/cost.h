// What a step would take if some ranks did what their peers do: a replay of the step by stages.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <tuple>
#include <vector>

#include "diagnosis/layout.h"
#include "diagnosis/measured.h"
#include "diagnosis/verdict.h"

namespace taskd::diagnosis {

// A pipeline of stages that take t_s a microbatch needs sum(t_s) + (m - 1) * max(t_s): the slowest stage paces it, the
// others fill and drain it once. A stage is as slow as the slowest rank of its cell, and the job as its slowest
// pipeline. Only the pipelines of ranks whose times have changed are replayed: there may be as many suspects as ranks.
class CostModel {
 public:
  // `microbatches` by rank; 0: not known, then 1. All ranks take no time until it is set. `layout` outlives this.
  CostModel(const Layout& layout, const std::vector<int>& microbatches);

  // Takes rank's own time to be `own_ns` from now on.
  void Set(int rank, double own_ns);
  double own_ns(int rank) const { return own_ns_[static_cast<size_t>(rank)]; }
  // ns of own time on the critical path of a step.
  double StepNs();
  // The same if these ranks took what `own_ns` has for each of them.
  double StepNsIf(const std::vector<int>& ranks, const std::function<double(int rank)>& own_ns);

 private:
  double PipelineNs(size_t pipeline) const;

  const Layout& layout_;
  std::vector<double> own_ns_;
  std::vector<int> pipelines_;        // by rank; -1: it is in none
  std::vector<double> microbatches_;  // by pipeline
  std::vector<int> changed_;          // pipelines, since the last StepNs(); each once:
  std::vector<bool> is_changed_;      // by pipeline
  // What pipelines take, in the second half, and at i the larger of 2 i and 2 i + 1.
  std::vector<double> slowest_;
};

// What a suspect costs in the mean of the steps in which it was one.
class CostMeans {
 public:
  enum class What : uint8_t { kOwnTime, kLoading };
  using Who = std::tuple<What, Scope, int>;

  // In `step`, a place in one count, it costs `cost_ns` of `step_ns`: the means with that, as `excess` the cost and as
  // `reference` the rest of the step. `until_known`: what they are taken to be while it has been suspected in a few steps
  // only. `may_be_over` as in Measured::Add. A step counts once.
  Measured::Means Add(const Who& who, int64_t step, double cost_ns, double step_ns, bool may_be_over,
                      const Measured::Means& until_known);
  // Those that were not suspected in `step`.
  void Forget(int64_t step);

 private:
  struct Mean {
    Measured measured;
    int64_t last = 0;
  };
  std::map<Who, Mean> means_;
};

}  // namespace taskd::diagnosis
