// The rank-seconds of steps, from the fold of a rank to its categories.
//
// Design:
// 1. Ranks wait for each other, so what a step lost is decided for all its ranks together: the data loader, saving, and
//    time between steps are of the rank that took longest; the others waited for it. Where all ranks mark communication
//    it is no more than the others have waited: their own work says how long that can have been. Less than kLeast of a
//    step counts as productive.
// 2. A step stays open for a while, until verdicts about it have come and a usual step is known; then it is closed.
// 3. Of a process's first step what a usual step takes is work, the rest is warm-up. Of any other one that takes more
//    than kOdd usual ones, what is beyond a usual one is: what every rank took by itself, the user's code, as an
//    evaluation; what one rank took by itself while the others waited in a barrier, the same; what one waited for another
//    otherwise, if it was long enough, a hang; else unknown. Without communication marks nobody knows of a wait.
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

// What of a rank's time a step has taken.
struct RankStep {
  int rank = -1;
  int64_t step = 0;         // in the job's count
  int64_t named = -1;       // as the rank and the diagnosis call it; -1: the same
  bool first = false;       // of its process
  bool redone = false;      // this number had been done before
  uint64_t incident = 0;    // that its process was started after
  double rank_s = 0;        // all of it
  double data_s = 0;        // waiting for the data loader
  double checkpoint_s = 0;  // saving
  double between_s = 0;     // since the step before, neither of the two
  // Without communication, data and saving: what the rank did by itself, between steps too. Below 0: not known, the rank
  // marks no communication.
  double alone_s = -1;
  double barrier_s = 0;  // of the communication, in barriers
};

// What an open verdict says.
struct StragglerCost {
  uint64_t verdict = 0;
  bool open = true;
  int64_t since_step = 0;  // as the diagnosis calls it, as the next
  int64_t last_step = 0;   // of one that is not open any more
  bool unjudged = false;   // the marks that it rests on have ended: whether later steps have the cost is unknown
  int64_t base = -1;       // from there to the job's count; -1: of whichever process does such a step
  double cost_s = 0;       // a step
  bool of_data = false, of_checkpoint = false;  // its cause
  uint64_t incident = 0;

  friend bool operator==(const StragglerCost&, const StragglerCost&) = default;
};

class StepBook {
 public:
  static constexpr double kLeast = 0.01;
  static constexpr double kOdd = 4;
  static constexpr double kHangS = 5;                        // a hang takes that at least, and
  static constexpr double kHangSteps = 10;                   // so many usual steps
  static constexpr size_t kMaxOpen = 256;                    // steps
  static constexpr int64_t kOpenNs = 120'000'000'000;        // since its last rank
  static constexpr int64_t kFirstOpenNs = 3600'000'000'000;  // of a first step, while no usual one is known
  static constexpr size_t kUsualSteps = 3;                   // that have to be known
  // More than the verdicts that a diagnosis keeps once they are cleared: each may be of steps that are open here.
  static constexpr size_t kMaxCosts = 256;

  void Add(const RankStep& step, int64_t now_ns);
  // Those of the diagnosis now, at most kMaxCosts. One that is not among them holds for no step any more.
  void SetCosts(std::vector<StragglerCost> costs);
  const std::vector<StragglerCost>& costs() const { return costs_; }

  // Closes what is old enough, into `closed`.
  void Close(int64_t now_ns, Tally& closed);
  // What is open, as it looks now.
  void AddOpen(Tally& open) const;
  // The median of the last steps, without what is not work; 0: not known yet.
  double usual_s() const { return usual_s_; }

 private:
  using Key = std::tuple<int64_t, bool, bool>;  // step, first, redone
  struct Record {
    int64_t touched_ns = 0;
    int64_t named = 0;
    int ranks = 0;
    uint64_t incident = 0;
    double rank_s = 0, data_s = 0, checkpoint_s = 0, between_s = 0;  // a sum, and the largest
    double barrier_s = 0;                                            // the largest
    double least_alone_s = 0, most_alone_s = 0;
    double least_own_s = 0, most_own_s = 0;  // of that, what is not between steps
    // What ranks did not do by themselves in the step, where all of them mark communication: a sum, and the largest.
    double waited_s = 0, most_waited_s = 0;
    bool all_mark = true;
    int alone_rank = -1;  // whose most_alone_s is
  };

  struct Parts {
    double data_s = 0, checkpoint_s = 0, between_s = 0;
  };
  // What one rank says that it did while the others waited, no more than these have waited.
  static Parts PartsOf(const Record& record);
  void LearnUsual();
  void Split(const Key& key, const Record& record, Tally& into) const;
  static int64_t NumberOf(const StragglerCost& cost, int64_t step, int64_t named);
  static bool Holds(const StragglerCost& cost, int64_t step, int64_t named);
  // Of a step for which it holds: the verdict may be over by then.
  static bool IsUnsure(const StragglerCost& cost, int64_t step, int64_t named);
  // The dearest with that cause that holds for the step; null: there is none.
  const StragglerCost* DearestOf(bool StragglerCost::*cause, int64_t step, int64_t named) const;
  // The dearest of those that hold for the step, without what data and checkpoint have already.
  const StragglerCost* Dearest(int64_t step, int64_t named, double data_s, double checkpoint_s, double* cost_s) const;

  std::map<Key, Record> open_;
  std::vector<StragglerCost> costs_;
  double usual_s_ = 0;
};

}  // namespace taskd::ledger
