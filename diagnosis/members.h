// The members of a process group, kept as the runs that they came as: a run of a few bytes can stand for all ranks of a
// job.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "diagnosis/rank_place.h"
#include "marks/step_fold.h"

namespace taskd::diagnosis {

class Members {
 public:
  Members() = default;
  // All runs with members that are ranks, as IsUsable has it.
  explicit Members(std::vector<MemberRun> runs);

  // Each member is a rank (0 to kMaxRanks - 1), no run is empty or stays where it is, and all are at most kMaxRanks.
  static bool IsUsable(const std::vector<MemberRun>& runs);

  const std::vector<MemberRun>& runs() const { return runs_; }
  bool empty() const { return runs_.empty(); }
  int size() const { return size_; }
  // The global rank of a member; -1: there is no such member.
  int At(int index) const;
  bool Contains(int rank) const;
  // Each one's global rank is the one before it and 1.
  bool AreNeighbours() const;
  std::vector<int> Expand() const { return ExpandMembers(runs_, static_cast<size_t>(size_)); }
  template <typename Visit>
  void ForEach(Visit visit) const {
    for (const MemberRun& run : runs_) {
      for (int i = 0; i < run.count; ++i) visit(run.first + i * run.stride);
    }
  }

 private:
  std::vector<MemberRun> runs_;
  std::vector<int> begins_;  // index of each run's first member, where there are several
  int size_ = 0;
};

}  // namespace taskd::diagnosis
