// Does the arithmetic of a step (marks/step_fold.h). One pass over the operations of the step's period gives the time
// that they cover, the gaps between them, and the sums of each kind. MarkFold finds the operations.
//
// Not thread-safe; keeps its memory from step to step.
#pragma once

#include <cstdint>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "marks/step_fold.h"

namespace taskd {

// A complete operation, or one that continues after the step.
struct TimedOp {
  uint64_t start_ns;
  uint64_t end_ns;
  uint64_t issue_ns;  // device start minus host start
  uint64_t host_start_ns;
  uint64_t bytes;
  uint64_t step_serial;  // serial of the step in which it was issued
  uint32_t group;
  int32_t peer;
  uint32_t number;
  CommOp op;
  uint8_t size_log2;
  bool device;
  bool open;      // continues after the step: it covers time but is not an operation of this step
  bool blocking;  // IsBlocking
};

// Returns a key for the operation's group, kind, size and peer. Groups are below 65,536.
uint64_t KeyOf(const TimedOp& op);

// The first and last stamp of a time in which records were lost.
using LostSpan = std::pair<uint64_t, uint64_t>;

class StepCutter {
 public:
  // Fills in the fields that follow from the operations. All of `ops` overlap the period, in any order; `losses` are
  // disjoint and in order.
  void Cut(const std::vector<TimedOp>& ops, const std::vector<LostSpan>& losses, uint64_t begin_ns, uint64_t end_ns,
           StepFold& fold);
  // Returns the part of this time that operations of the last period did not cover.
  uint64_t UncoveredWithin(uint64_t begin_ns, uint64_t end_ns) const;

 private:
  struct Sweep;

  void Reset(const std::vector<TimedOp>& ops);
  void TakeOp(const TimedOp& op, Sweep& sweep);
  void NoteGaps(const TimedOp& op, OpFold* folded, Sweep& sweep);
  void FoldIssues(StepFold& fold);
  void AddUncovered(uint64_t begin_ns, uint64_t end_ns);
  uint64_t UncoveredUntil(uint64_t time_ns) const;
  OpFold* Find(const TimedOp& op);
  OpFold* Add(const TimedOp& op);
  void KeepLargest(StepFold& fold);
  void JoinAny(const OpFold& small, const std::vector<uint32_t>& kept);

  std::vector<std::tuple<uint64_t, uint64_t, uint32_t>> order_;  // (start, end, index of an operation)
  std::vector<OpFold> folds_;
  absl::flat_hash_map<uint64_t, uint32_t> fold_index_;
  std::vector<uint64_t> issues_;
  // The begins of the uncovered intervals in order of time, and the length of all intervals before each.
  std::vector<uint64_t> uncovered_begins_;
  std::vector<uint64_t> uncovered_sums_;
  uint64_t uncovered_ns_ = 0;
};

}  // namespace taskd
