// Finds the kernel in which a slow rank spends its excess, if its trace has kernels.
#pragma once

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "diagnosis/engine.h"
#include "diagnosis/verdict.h"
#include "readers/trace_fold.h"

namespace taskd::readers {

class KernelEvidence {
 public:
  // Takes the kernels of a rank. Must come before the merge takes the rank's step summaries.
  void AddRank(int rank, FoldedTrace& folded);
  // Adds a kernel to a verdict on a rank's self time: the one with the largest excess over the peers, or over the time
  // before the onset if no peer has the kernel. Adds it only if it is a sufficient share of the rank's excess.
  void AddTo(diagnosis::Verdict& verdict, const diagnosis::Engine& engine) const;

 private:
  struct Rank {
    std::vector<int64_t> steps;  // ascending
    std::vector<KernelTimes> kernels;
  };
  struct Mean {
    double ms = 0;
    int64_t steps = 0;
  };
  // The mean over the steps from `first` to `last`, with those in which the kernel did not run.
  static Mean MeanOf(const Rank& rank, const KernelTimes& kernel, int64_t first, int64_t last);
  const KernelTimes* Find(int rank, const std::string& name) const;

  std::map<int, Rank> ranks_;
};

}  // namespace taskd::readers
