// Splits the rank-seconds of steps into categories.
//
// Design:
// 1. Ranks wait for each other, so the loss of a step is decided for all its ranks together. The times for the data
//    loader, for saving and between steps are those of the rank that took longest; the other ranks waited for it. If
//    all ranks mark communication, these times are limited to what the other ranks have waited, which their own work
//    shows. A part below kLeast of a step counts as productive.
// 2. A step stays open for a while, so that verdicts about it arrive and a usual step is known. Then it is closed.
// 3. In a process's first step, the time of a usual step is work and the rest is warm-up. Any other step that takes
//    more than kOdd usual ones is split, too. Time beyond a usual step is user code, such as an evaluation, if every
//    rank took it by itself. Time that one rank took by itself is user code, too, if the others waited in a barrier or
//    if the wait is too short for a hang. Other time is a hang if it is long enough and all ranks mark communication;
//    otherwise it is unknown.
// 4. A step that had been done before is redone as a whole.
//
// Pure. Not thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <tuple>
#include <vector>

#include "ledger/tally.h"

namespace taskd::ledger {

// The time of one rank in one step.
struct RankStep {
  int rank = -1;
  int64_t step = 0;         // in the job's count
  int64_t named = -1;       // the number that the rank and the diagnosis use; -1: the same
  bool first = false;       // of its process
  bool redone = false;      // the step had been done before
  uint64_t incident = 0;    // incident after which its process was started
  double rank_s = 0;        // all of the time
  double data_s = 0;        // waiting for the data loader
  double checkpoint_s = 0;  // checkpoint saves
  double between_s = 0;     // since the step before, without data_s and checkpoint_s
  // The rank's own time without communication, data and saving, but with time between steps. Below 0: not known,
  // because the rank marks no communication.
  double alone_s = -1;
  double barrier_s = 0;  // part of the communication that was barriers
};

// The cost that a verdict states.
struct StragglerCost {
  uint64_t verdict = 0;
  bool open = true;
  int64_t since_step = 0;  // in the diagnosis's numbers, as last_step
  int64_t last_step = 0;   // end of a cleared verdict
  bool unjudged = false;   // its marks have ended: whether later steps have the cost is unknown
  int64_t base = -1;       // added to those numbers for the job's count; -1: compare with RankStep::named
  double cost_s = 0;       // per step
  bool of_data = false, of_checkpoint = false;  // the verdict's cause
  uint64_t incident = 0;

  friend bool operator==(const StragglerCost&, const StragglerCost&) = default;
};

class StepBook {
 public:
  static constexpr double kLeast = 0.01;
  static constexpr double kOdd = 4;
  static constexpr double kHangS = 5;                        // shortest hang, in seconds, and
  static constexpr double kHangSteps = 10;                   // in usual steps
  static constexpr size_t kMaxOpen = 256;                    // steps
  static constexpr int64_t kOpenNs = 120'000'000'000;        // since the step's last rank arrived
  static constexpr int64_t kFirstOpenNs = 3600'000'000'000;  // the same for a first step, while no usual step is known
  static constexpr size_t kUsualSteps = 3;                   // steps needed to know a usual one
  // Larger than the number of cleared verdicts that a diagnosis keeps: each may hold for steps that are open here.
  static constexpr size_t kMaxCosts = 256;

  void Add(const RankStep& step, int64_t now_ns);
  // Replaces the costs by the diagnosis's present ones, at most kMaxCosts. A verdict that is missing holds for no step
  // any more.
  void SetCosts(std::vector<StragglerCost> costs);
  const std::vector<StragglerCost>& costs() const { return costs_; }

  // Closes the steps that are old enough, into `closed`.
  void Close(int64_t now_ns, Tally& closed);
  // Adds the open steps, by what is known now.
  void AddOpen(Tally& open) const;
  // The median work time of recent steps; 0: not known yet.
  double usual_s() const { return usual_s_; }

 private:
  using Key = std::tuple<int64_t, bool, bool>;  // step, first, redone
  struct Record {
    int64_t touched_ns = 0;
    int64_t named = 0;
    int ranks = 0;
    uint64_t incident = 0;
    double rank_s = 0, data_s = 0, checkpoint_s = 0, between_s = 0;  // rank_s is a sum, the others the largest
    double barrier_s = 0;                                            // the largest
    double least_alone_s = 0, most_alone_s = 0;
    double least_own_s = 0, most_own_s = 0;  // the same without time between steps
    // The time that ranks did not work by themselves in the step, valid if all of them mark communication: sum and
    // largest.
    double waited_s = 0, most_waited_s = 0;
    bool all_mark = true;
    int alone_rank = -1;  // the rank with most_alone_s
  };

  struct Parts {
    double data_s = 0, checkpoint_s = 0, between_s = 0;
  };
  // The longest parts that ranks report for the step, limited to what the other ranks have waited.
  static Parts PartsOf(const Record& record);
  void LearnUsual();
  void Split(const Key& key, const Record& record, Tally& into) const;
  static int64_t NumberOf(const StragglerCost& cost, int64_t step, int64_t named);
  static bool Holds(const StragglerCost& cost, int64_t step, int64_t named);
  // Whether a verdict that holds for the step may be over by then.
  static bool IsUnsure(const StragglerCost& cost, int64_t step, int64_t named);
  // The most expensive verdict with that cause that holds for the step; null if there is none.
  const StragglerCost* DearestOf(bool StragglerCost::*cause, int64_t step, int64_t named) const;
  // The most expensive verdict that holds for the step, by its cost without the time that data and checkpoint have
  // already.
  const StragglerCost* Dearest(int64_t step, int64_t named, double data_s, double checkpoint_s, double* cost_s) const;

  std::map<Key, Record> open_;
  std::vector<StragglerCost> costs_;
  double usual_s_ = 0;
};

}  // namespace taskd::ledger
