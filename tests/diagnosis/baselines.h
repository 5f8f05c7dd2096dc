// Known rules for slow ranks, to compare the engine with: each sees what marks give (folds, groups, places), no truth.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "diagnosis/verdict.h"
#include "marks/step_fold.h"

namespace taskd::evaluation {

// What a rank computed by itself in a step, ns a gap: of the gaps before blocking operations, or of all uncovered time
// where there are none. A mean over gaps, so that lost marks do not make a rank look fast. 0: unknown.
double OwnTimeNs(const StepFold& fold);

// Where ranks stand among each other, from their groups alone.
class Topology {
 public:
  void SetGroup(int rank, uint32_t index, const GroupInfo& group);
  void Clear() { ranks_.clear(); }
  // Position in the pipeline-parallel group; 0 without one.
  int Stage(int rank) const;
  // Empty: unknown.
  const GroupInfo& Group(int rank, uint32_t index) const;

 private:
  struct Rank {
    int stage = 0;
    std::vector<GroupInfo> groups;
  };
  std::vector<Rank> ranks_;
};

using RankFold = std::pair<int, const StepFold*>;  // global rank, its fold

class Baseline {
 public:
  virtual ~Baseline() = default;
  virtual const char* name() const = 0;
  // The folds of one step, in order of ranks.
  virtual void Step(int64_t step, const std::vector<RankFold>& folds, const Topology& topology) = 0;
  // The job begins a new life: ranks are others.
  virtual void Restart() = 0;
  // What it says now; all open.
  virtual std::vector<diagnosis::Verdict> verdicts() const = 0;
};

// MindCluster ascend-faultdiag-online: slow if three steps in a row exceed the trimmed mean of the first 20 healthy
// ones by 30 %; then the ranks of a tensor-parallel group that wait least, where the durations of their operations fall
// apart into two clusters (largest gap at least half of the span, means 1.3 apart), the same ones in three steps.
std::unique_ptr<Baseline> MakeUpstreamRule();
// Own time: more than three (scaled) median absolute deviations above the median of the stage, three steps in a row.
std::unique_ptr<Baseline> MakePeerMad();
// Own time: winsorised CUSUM of the logarithm against a lower-order statistic of the stage.
std::unique_ptr<Baseline> MakePeerCusum();
// NVRx: the fastest rank's median own time over the rank's own is below 0.75, over 20 steps. Knows no stages.
std::unique_ptr<Baseline> MakeRelativeScore();
// Who comes last into the collective with the largest spread (at least 5 % of the step), three steps in a row.
std::unique_ptr<Baseline> MakeLastArrival();

std::vector<std::unique_ptr<Baseline>> MakeBaselines();

}  // namespace taskd::evaluation
