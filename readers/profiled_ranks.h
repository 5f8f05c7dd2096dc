// The ranks whose steps profilers have written down, judged beside each other.
//
// Design:
// 1. Files of one rank are windows of one profile where their steps do not overlap.
// 2. Clocks are aligned before folds are compared: files have the clocks of their hosts, or begin at 0.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "diagnosis/verdict.h"
#include "readers/fold_merge.h"
#include "readers/read_source.h"
#include "readers/source_marks.h"
#include "readers/trace_fold.h"

namespace taskd::readers {

class ProfiledRanks {
 public:
  // Takes the folds of those files of `read` that have a rank and are of a format that `is_of` says; files whose steps
  // another one has get a note. `world_size`: 0: no file says. Keeps `read`.
  ProfiledRanks(std::vector<SourceContent>& read, int world_size, const std::function<bool(SourceFormat)>& is_of);

  bool empty() const { return ranks_.empty(); }
  std::vector<SourceRank> TakeRanks() { return std::move(source_ranks_); }  // ascending; after Judge

  // Takes the folds; once. `on_engine` is called after the last step.
  diagnosis::Report Judge(const StepSeen& on_step, const std::function<void(const diagnosis::Engine&)>& on_engine);

 private:
  struct Rank {
    std::vector<size_t> files;  // indices of read_, in the order of their steps
    FoldedTrace folded;
    std::string host;
  };

  void AddWindow(int rank, size_t i, Rank& gathered);
  void FindAscendMembers();
  void AlignClocks();
  void AddSourceRank(int rank, const Rank& gathered, int64_t clock_offset_ns);
  void NoteSteps();
  void AddNotes(diagnosis::Report& report) const;

  std::vector<SourceContent>& read_;
  const int world_size_;
  std::map<int, Rank> ranks_;
  std::vector<SourceRank> source_ranks_;  // as ranks_
  std::map<std::string, int> nodes_;      // by host
  std::vector<int> without_steps_, without_ops_, without_times_;
  bool counted_ = false;  // steps have no numbers
  bool apart_ = false;    // no two ranks have a step in common
};

}  // namespace taskd::readers
