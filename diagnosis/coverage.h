// Whether the marks suffice to see what each rank does by itself. Where ranks wait for each other in something that is
// not marked, the wait looks like work: all are equally slow, and who is slow cannot be known.
//
// Design: three questions, over the last steps.
// 1. Do all ranks meet? Marked operations in which a rank waits for others have to connect every rank with every other.
// 2. Do those operations hold the waits? Ranks are never equal, so whoever comes first waits in them: their time has to
//    differ between the ranks, and not far less than the time outside them differs between the steps.
// 3. Is time lost where it seems to be lost? A forward or a load that took a rank longer than its peers makes its time
//    outside communication longer by as much. If it does not, a wait that is not marked took it up.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "diagnosis/layout.h"
#include "diagnosis/verdict.h"
#include "marks/step_fold.h"

namespace taskd::diagnosis {

class Coverage {
 public:
  enum class Finding : uint8_t {
    kTooEarly,  // too few steps
    kAlone,     // one rank waits for nobody
    kSeen,      // each rank's own time is known
    kNoMarks,   // ranks without operations in which they wait for others
    kFree,      // the same, and ranks go at their own pace: they do not wait for each other at all
    kApart,     // sets of ranks that meet in nothing that is marked
    kNoWaits,   // the operations that are marked hold no waits
    kAbsorbed,  // a wait that is not marked takes up what a rank loses
  };

  // A step that is judged: it begins, each of its folds, which have a period, and all of them, by rank. `period_ns`: the
  // lower median of their periods.
  void BeginStep();
  void Take(const Layout& layout, int rank, const StepFold& fold);
  void Observe(const Layout& layout, const std::vector<std::pair<int, StepFold>>& folds, double period_ns);
  // The layout was built anew: nothing is known of groups that are gone.
  void Regroup(const Layout& layout);
  // The job was started again, and may be another one.
  void Forget();
  // Whether the rank records communication, as its proxy reported.
  void SetCommunicationOn(int rank, bool on);
  // Of the ranks that took part in the last steps. Looks at all of them.
  struct Result {
    Finding finding = Finding::kTooEarly;
    std::vector<RankCoverage> ranks;
    std::string note;  // what cannot be judged and what to do about it; empty for kTooEarly, kAlone and kSeen
  };
  Result Judge(const Layout& layout) const;
  // Changes whenever what Judge() finds may, for one layout.
  uint64_t version() const { return version_; }

 private:
  static constexpr int kNever = -1;
  // What a rank did in one of the layout's groups, and when.
  struct Use {
    int group = 0;
    int gathers = kNever;  // the last step in which it waited for others there
    int spreads = kNever;  // and in which others waited for it
  };
  struct Rank {
    int last_step = kNever;
    double share = 0;  // of its steps that operations cover
    std::vector<Use> uses;
    int point_to_point = kNever;
    std::optional<bool> communication_on;
    double behind_steps = 0;  // how far it has fallen behind the others, by the length of its steps
    double pace_ns = 0;       // exponential mean of its period
  };
  // One step of one class of peers.
  struct Waits {
    double apart = 0;   // how much longer the first one was in operations than the last one; share of the period
    double change = 0;  // of the longest time outside operations, from the step before; share of the period
  };
  // What FindSets() found. It is so until somebody begins to take part or to meet others, or the step in which it may be
  // over that somebody did.
  struct Sets {
    std::vector<int> of_ranks;
    uint64_t layout_version = 0;
    int until = kNever;
  };
  // Sums over steps and ranks of what ranks differ by from their peers in a step.
  struct Moments {
    double count = 0, known = 0, outside = 0, both = 0;
  };

  Rank& Touch(int rank);
  void NoteUses(const Layout& layout, int r, const StepFold& fold, Rank& rank);
  void NotePace(const std::vector<std::pair<int, StepFold>>& folds, double usual_ns);
  // What one class of peers did in one step; ns, sums over its ranks unless noted.
  struct ClassStep {
    double count = 0, known = 0, outside = 0, period = 0;
    double least_covered = 0, most_covered = 0, longest_outside = 0;  // of one rank
  };

  void NoteWaits(const Layout& layout, const std::vector<std::pair<int, StepFold>>& folds);
  Waits WaitsOf(const std::vector<ClassStep>& classes, const std::vector<std::pair<int, StepFold>>& folds);
  void NoteMoments(const Layout& layout, const std::vector<ClassStep>& classes,
                   const std::vector<std::pair<int, StepFold>>& folds);
  static std::vector<ClassStep> SumByClass(const Layout& layout, const std::vector<std::pair<int, StepFold>>& folds);
  bool IsPresent(const Rank& rank) const { return rank.last_step != kNever && rank.last_step > observed_ - kPresent; }
  bool IsRecent(int step) const { return step != kNever && step > observed_ - kWindow; }
  bool Meets(const Use& use) const { return IsRecent(use.gathers) && IsRecent(use.spreads); }
  // By rank, the smallest rank of those that it meets directly or through others; -1 for who is not present.
  const std::vector<int>& FindSets(const Layout& layout) const;
  bool GoesFreely() const;
  Finding FindWaits() const;
  std::string Explain(Finding finding, const Layout& layout, const std::vector<int>& sets) const;
  std::string ExplainNoMarks(const std::vector<int>& unmarked, const Layout& layout) const;
  std::string ExplainPace() const;
  std::string GroupsInUse(const Layout& layout) const;

  static constexpr int kPresent = 6;  // steps
  static constexpr int kWindow = 64;  // steps

  std::vector<Rank> ranks_;
  mutable Sets sets_;
  uint64_t version_ = 0;
  int observed_ = 0;      // steps
  int silent_steps_ = 0;  // the last ones, without any operation
  std::deque<Waits> waits_;
  std::vector<double> longest_outside_;  // by class, of the step before
  Moments moments_;
};

}  // namespace taskd::diagnosis
