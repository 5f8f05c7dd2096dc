// Which kernel a slow rank spends its excess in, where its trace has kernels.
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
  // Before the folds are handed over; takes the kernels away.
  void AddRank(int rank, FoldedTrace& folded);
  // To a verdict on a rank's own time: the kernel that takes most longer than the peers', or where no peer has it than
  // before the onset; if it holds a good part of the excess.
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
  // Of the steps from `first` to `last`, also those in which it did not run.
  static Mean MeanOf(const Rank& rank, const KernelTimes& kernel, int64_t first, int64_t last);
  const KernelTimes* Find(int rank, const std::string& name) const;

  std::map<int, Rank> ranks_;
};

}  // namespace taskd::readers
