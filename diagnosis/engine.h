// The diagnosis: folds in, verdicts out. Pure computation: no I/O, no threads, no clock, no randomness; the same folds
// in the same order of steps give the same report. docs/diagnosis.md explains the mathematics.
//
// Design:
// 1. Folds are gathered by step. A step is judged, once and in order, when every live rank has reached it, or when
//    `now_ns` is past its deadline and most ranks have (common/progress.h); who has not reported then has "no data" for
//    it, which is never "slow". So a rank that says a step far ahead of the others' costs itself only: its folds wait,
//    at most 1,024 and at most its share of kMaxWaitingBytes.
// 2. Ranks that should do equal work are peers. A rank's own time is compared with its peers' and with its own past.
// 3. Deviations are summed up over steps (CUSUM) until chance is ruled out; the threshold follows from the wanted rate
//    of false alarms and the number of ranks.
// 4. A deviation becomes a verdict only if it explains lost time of the whole job.
//
// Not thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/switch.h"
#include "diagnosis/gathering.h"
#include "diagnosis/rank_place.h"
#include "diagnosis/rank_trace.h"
#include "diagnosis/verdict.h"
#include "marks/step_fold.h"

namespace taskd::diagnosis {

class Engine {
 public:
  // Of all folds that wait (gathering.h).
  static constexpr size_t kMaxWaitingBytes = Gathering::kMaxBytes;

  struct Options {
    // Wanted rate: false verdicts in 1,000 hours of a healthy job.
    double false_alarms_per_1000_hours = 1;
    // What costs less than this share of the step is not worth a verdict.
    double min_cost_share = 0.01;
    // How long a step waits for its last ranks after its first one reported.
    uint64_t step_deadline_ns = 10'000'000'000;
  };

  Engine();
  explicit Engine(const Options& options);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // Where a rank runs. Again when it moves. Ranks outside 0..kMaxRanks-1 are ignored, here and below.
  void SetPlace(int rank, const RankPlace& place);
  // Group `index` of this rank's folds (OpFold::group). Again when more is known of it: what it was before is forgotten
  // once no rank has it. False: its members are not used, because one of them is no rank, or because they are more than
  // the rank, its node or all may bring (layout.h, group_budget.h). The report says whose they are.
  bool SetGroup(int rank, uint32_t index, const GroupInfo& group);
  // The rank has no groups from `first` on.
  void DropGroups(int rank, uint32_t first);
  // What all groups take, and the folds that wait for other ranks, roughly.
  size_t group_bytes() const;
  size_t waiting_bytes() const;
  // Which kinds of the rank's marks are recorded, as far as is known.
  void SetMarksOn(int rank, KindMask kinds);
  // How many ranks the job has; 0: not known, then a group of all ranks that most of them declare says it. Members of
  // groups beyond are not waited for: the report says whose groups they are.
  void SetWorldSize(int ranks);
  // The rank is gone (its process ended, its node left): steps do not wait for it.
  void RemoveRank(int rank);

  // `now_ns`: any steady clock, the same in all calls. Folds of one rank come in order of steps; ranks in any order.
  // False: it is not used: it came twice, too late, or too far ahead of the others.
  bool Add(int rank, StepFold fold, uint64_t now_ns);
  // Judges what is due. True: the verdicts or the state have changed.
  bool Advance(uint64_t now_ns);
  // Judges everything that is there, complete or not. For the end of files.
  bool Finish();

  // Its first note says it if too few steps could be judged.
  Report report() const;
  bool has_few_steps() const;

  // What the detectors have decided of the rank as of the last judged step. NOT_FOUND: the job has no such rank.
  absl::StatusOr<RankTrace> Why(int rank) const;

  // Verdicts that an earlier life of the manager gave: open ones are kept open until the evidence is there to clear or
  // confirm them.
  void Restore(const std::vector<Verdict>& verdicts);

  // How far a node's clock is ahead of the reference node's, ns; 0 where it is unknown.
  int64_t ClockOffsetNs(int node) const;
  // Ranks that should do the same work as `rank`, itself among them.
  std::vector<int> Peers(int rank) const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace taskd::diagnosis
