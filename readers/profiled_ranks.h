// Judges the steps that profilers have recorded on several ranks.
//
// Design:
// 1. Files of one rank whose steps do not overlap are windows of one profile.
// 2. Clocks are aligned before steps are compared: each file has its host's clock, or begins at 0.
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
  // Takes the step summaries of those files of `read` that have a rank and a format that `is_of` accepts. Files whose
  // steps another file already has get a note. `world_size`: 0: unknown. Keeps a reference to `read`.
  ProfiledRanks(std::vector<SourceContent>& read, int world_size, const std::function<bool(SourceFormat)>& is_of);

  bool empty() const { return ranks_.empty(); }
  std::vector<SourceRank> TakeRanks() { return std::move(source_ranks_); }  // ascending; call after Judge

  // Takes the summaries, so it may be called once. `on_engine` is called after the last step.
  diagnosis::Report Judge(const StepSeen& on_step, const std::function<void(const diagnosis::Engine&)>& on_engine);

 private:
  struct Rank {
    std::vector<size_t> files;  // indices in read_, in the order of their steps
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
  std::vector<SourceRank> source_ranks_;  // in the order of ranks_
  std::map<std::string, int> nodes_;      // by host
  std::vector<int> without_steps_, without_ops_, without_times_;
  bool counted_ = false;  // steps have no numbers
  bool apart_ = false;    // no two ranks have a step in common
};

}  // namespace taskd::readers
