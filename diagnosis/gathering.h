// The folds of a job, gathered by step: who is waited for and for how long, and how much may wait.
//
// A step is due when every rank that is waited for has reached it, or when its deadline is over and most ranks have
// (common/progress.h). A rank is waited for from when it is first heard until it is removed or has missed a few steps.
//
// Pure: no clock. Deterministic. Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "common/progress.h"
#include "marks/step_fold.h"

namespace taskd::diagnosis {

class Gathering {
 public:
  using Folds = std::vector<std::pair<int, StepFold>>;  // of one step, by rank
  using Position = Progress::Position;                  // a step of one life of the job

  // Of all folds that wait: three steps of 131,072 ranks, whose folds in a job of tensor, pipeline and data parallelism
  // take 1.7 KiB each. From two thirds of it on steps wait no longer for late ranks, and no rank waits with more than
  // its share of the last third.
  static constexpr size_t kMaxBytes = size_t{768} << 20;

  struct Step {
    Position at;
    Folds folds;
    bool restarted = false;  // most of its ranks are other processes than in the step before
    bool next_life = false;  // or their numbers go back
  };

  // `deadline_ns`: how long a step waits for its last ranks after its first one reported.
  explicit Gathering(uint64_t deadline_ns) : deadline_ns_(deadline_ns) {}

  // There is such a rank.
  void Hear(int rank);
  // Its process or node has ended, as far as is known, until it reports again.
  void Remove(int rank);
  // The fold where it waits, until the next call that is not const. Null: it is not used: it came twice, too late, or
  // too far ahead of the others. `now_ns`: any steady clock.
  const StepFold* Add(int rank, StepFold fold, uint64_t now_ns);

  bool empty() const { return waiting_.empty(); }
  // The first step that waits is.
  bool IsDue(uint64_t now_ns);
  // It, due or not; there is one.
  Step Take();
  // What Take() gave, once it was judged: the next step has its folds in the same memory.
  void GiveBack(Folds folds);

  int size() const { return static_cast<int>(ranks_.size()); }  // ranks up to the highest one that was heard
  size_t bytes() const { return bytes_; }
  const Position& taken() const { return taken_; }  // the last step that was
  // Of the rank's newest fold; -1, -1 where it has none.
  Position at(int rank) const { return IsKnown(rank) ? ranks_[static_cast<size_t>(rank)].at : Position(); }
  bool IsGone(int rank) const { return IsKnown(rank) && ranks_[static_cast<size_t>(rank)].gone; }
  // What most ranks have reached, and how many were asked.
  const Position& reached() const { return progress_.reached(); }
  size_t voices() const { return progress_.voices(); }
  bool IsFarAhead(const Position& position) const { return progress_.IsFarAhead(position); }
  // Ranks that were heard and are not waited for, whose newest step is before `position`.
  std::vector<int> SilentBefore(const Position& position) const;
  // Ranks whose newest step is far ahead of the others'.
  std::vector<int> FarAhead() const;
  // The newest folds of most ranks are not used.
  bool MostAreUnused() const;

 private:
  struct Rank {
    bool live = false;  // waited for
    bool heard = false;
    bool gone = false;
    bool unused = false;  // its newest fold
    int missed = 0;
    Position at;
    uint32_t process_id = 0;    // of its last fold that was taken
    uint32_t waiting = 0;       // its folds
    Position newest_waiting;    // of them; not beyond `at`
    size_t waiting_bytes = 0;   // of them
    uint64_t withdrawn_at = 0;  // the value of steps_ at which it withdrew some, + 1
  };
  struct Bucket {
    Folds folds;
    uint64_t first_ns = 0;
    size_t passed = 0;  // live ranks that are at this step or beyond
  };

  bool IsKnown(int rank) const { return rank >= 0 && static_cast<size_t>(rank) < ranks_.size(); }
  Rank& Touch(int rank);
  void SetLive(int rank, bool live);
  void MoveTo(int rank, Position position);
  void Withdraw(int rank, Folds& folds);
  void Release(Rank& state, const StepFold& fold);
  bool IsTakenTooFar() const;
  bool MayWait(const Rank& state, Position position, size_t bytes) const;
  const StepFold* Wait(int rank, Position position, StepFold fold, uint64_t now_ns);
  bool IsCrowded() const;
  bool IsRestarted(const Folds& folds);
  void CountMissing();

  const uint64_t deadline_ns_;
  std::vector<Rank> ranks_;
  size_t live_ = 0;
  std::map<Position, Bucket> waiting_;
  Folds spare_;  // empty
  Position taken_;
  Progress progress_;
  size_t bytes_ = 0;    // of waiting_
  uint64_t steps_ = 0;  // that were taken
};

}  // namespace taskd::diagnosis
