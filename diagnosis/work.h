// What the work that ranks get explains of the time that they spend by themselves: sequences differ in length, batches
// in size. Own times are compared after it. Pure.
//
// Design:
// 1. Own time is taken to be a + b * work, for all ranks of a class alike; the one number that says it is the elasticity
//    e = b W / (a + b W), W being the class's usual work. It is chosen among a few candidates by how well each predicts
//    what comes next, so that the error is always one outside of what was learned from; e = 0 is "work explains
//    nothing", and where nothing is clearly better than that, nothing is used.
// 2. What is predicted is how a rank's time changes from one step to the next, less how a peer's does. A rank's lasting
//    slowness is in neither, so it cannot explain itself by its work; what all have in common is in neither, either.
// 3. Until it is known whether work explains anything, a rank with more work than its peers is given the benefit of it:
//    down to what its peers take, as far as time could follow. And one with less is no measure for the others: up to that,
//    likewise. Nobody is made slower than its peers by having less work.
// 4. Ranks that say no work, or count it in other units, cannot be compared by it: then their class's is not used.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "diagnosis/late.h"
#include "diagnosis/own_view.h"

namespace taskd::diagnosis {

// Whether work explains own times: of one class of peers.
class WorkFit {
 public:
  enum class Finding : uint8_t { kUnknown, kExplains, kExplainsNothing };

  // A rank in two steps in a row.
  struct Change {
    double own_ns, last_own_ns;
    double work, last_work;
  };
  // Once a step, before what is added of it.
  void BeginStep(double usual_work);
  void Add(const Change& rank, const Change& peer);

  Finding finding() const { return finding_; }
  double elasticity() const { return elasticity_; }
  // Time of `work` over the time of the class's usual work, as far as is known; 1 where nothing is.
  double TimeOf(double work) const;

 private:
  static constexpr std::array<double, 15> kElasticities = {0,   0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7,
                                                           0.8, 0.9, 1.0, 1.1, 1.2, 1.5, 2.0};
  static constexpr size_t kCandidates = kElasticities.size();
  // A candidate's errors against those of "nothing": sums that forget.
  struct Gain {
    double sum = 0, square = 0;
    double z() const;
  };
  double TimeOf(double work, double elasticity) const;
  void Judge();

  double usual_work_ = 0;
  int steps_ = 0;
  double count_ = 0;
  double error_ = 0;  // of "nothing"
  std::array<Gain, kCandidates> gains_{};
  Finding finding_ = Finding::kUnknown;
  double elasticity_ = 0;
};

class Work {
 public:
  // A rank that gets more than its peers for good.
  struct Load {
    int rank = 0;
    double ratio = 1;
    int64_t since = 0;        // step, as in Compensate
    bool from_start = false;  // as long as work was said
    bool explains = false;    // it is known that time follows
  };
  // Whose work cannot be used, and what is wrong.
  struct Unusable {
    std::vector<int> silent;  // they say none, while peers do
    std::vector<int> odd;     // zero, negative, or no number
    std::vector<int> units;   // they count something else than their peers
  };

  void Regroup(int ranks, size_t classes);
  void ResetRank(int rank);
  // Makes the times of one class in one step what they would be with equal work: the mean of them. Views without work
  // are removed where the others' is used. True: they are corrected in another way than in the step before, so what was
  // learned of their noise and levels does not apply.
  bool Compensate(size_t peer_class, int64_t step, std::vector<OwnView>& views);

  // Log of what the mean work of the class in the last step makes its times, over usual work: 0 where that is not known.
  double ShiftOf(size_t peer_class) const;
  // A time of the last step, given the benefit of the rank's work (3.): for parts of the step of which nothing was
  // learned. `reference_ns`: what peers take.
  double WithBenefit(int rank, double time_ns, double reference_ns) const;

  std::vector<Load> loads() const;
  Unusable unusable() const;

 private:
  enum class Use : uint8_t { kNone, kUnusable, kUsed };
  struct Rank {
    // Of the last step with work.
    double own_ns = 0, work = 0;
    int seen_at = -2;       // of the class's steps
    int steps = 0;          // with usable work
    float benefit = 1;      // what its times may have to be multiplied by, at least
    bool used = false;      // by its class
    bool explains = false;  // likewise
    bool silent = false;    // while its peers say some
    bool other_unit = false;
    float said = 0;  // share of the last steps in which it said work that can be used; odd: that cannot
    float odd = 0;
    float more = 0;      // log of its work over its peers', mean of the last steps
    float own_more = 0;  // the same of its own time
    float misfit = 0;    // log of what its load leaves unexplained, learned as it began
    int fitted = 0;      // steps that went into it
    float rise = 0;      // sum of what its work was more, or less, since it was last that of its peers
    int64_t rise_step = -1;
    int64_t first_step = -1;
    bool loaded = false;
    int64_t loaded_since = -1;
  };
  struct Class {
    WorkFit fit;
    Use use = Use::kNone;
    double used_elasticity = 0;
    WorkFit::Finding used_finding = WorkFit::Finding::kUnknown;
    double spread = 0;  // of a rank's work around its own mean, log
    double shift = 0;   // of the last step
    int steps = 0;
    bool by_full = false;  // the times are of the view that others' lateness does not change
  };

  Use Listen(const std::vector<OwnView>& views);
  void Learn(Class& peers, const std::vector<OwnView>& views, int64_t step);
  void FollowLoad(Rank& rank, double more, double own_more, double spread, int64_t step);
  bool CountsOtherUnits(const Rank& rank, const WorkFit& fit) const;
  static double OwnOf(const OwnView& view, bool by_full);
  Rank& At(int rank) { return ranks_[static_cast<size_t>(rank)].Begin(); }

  std::vector<Late<Rank>> ranks_;  // those that ever said work, or were silent while their peers did
  std::vector<Class> classes_;
};

}  // namespace taskd::diagnosis
