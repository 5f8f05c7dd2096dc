// The arithmetic of a step (marks/step_fold.h): one pass over the operations of its period gives what they cover,
// whose gaps the rest is, and the sums of each kind. For MarkFold, which finds the operations.
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

// A complete operation, or one that goes on after the step.
struct TimedOp {
  uint64_t start_ns;
  uint64_t end_ns;
  uint64_t issue_ns;  // device start minus host start
  uint64_t host_start_ns;
  uint64_t bytes;
  uint64_t step_serial;  // of the step in which it was issued
  uint32_t group;
  int32_t peer;
  uint32_t number;
  CommOp op;
  uint8_t size_log2;
  bool device;
  bool open;      // goes on after the step: covers time, is no operation of this step
  bool blocking;  // IsBlocking
};

// Operations of one group, kind, size and peer have one key. Groups are below 65,536.
uint64_t KeyOf(const TimedOp& op);

// A time in which records were lost: first and last stamp.
using LostSpan = std::pair<uint64_t, uint64_t>;

class StepCutter {
 public:
  // Fills in what follows from the operations. All of `ops` reach into the period, in any order; `losses` are disjoint
  // and in order.
  void Cut(const std::vector<TimedOp>& ops, const std::vector<LostSpan>& losses, uint64_t begin_ns, uint64_t end_ns,
           StepFold& fold);
  // Of the last period: how much of this time no operation covers.
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

  std::vector<std::tuple<uint64_t, uint64_t, uint32_t>> order_;  // start, end, index of an operation
  std::vector<OpFold> folds_;
  absl::flat_hash_map<uint64_t, uint32_t> fold_index_;
  std::vector<uint64_t> issues_;
  // The uncovered intervals in the order of time, and how much time all before each have.
  std::vector<uint64_t> uncovered_begins_;
  std::vector<uint64_t> uncovered_sums_;
  uint64_t uncovered_ns_ = 0;
};

}  // namespace taskd
