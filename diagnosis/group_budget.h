// What the process groups of all ranks may cost who keeps them, charged to the nodes that brought them.
//
// A rank's word of a few bytes stands for as many members as the job has ranks, and whoever works with a group goes
// through all of them. So a group is charged once, with its bytes and with its members expanded, however many ranks are
// in it: to the node that brought it while that alone uses it, and to nobody but the sum once another node's ranks do.
// A node that brings what nobody else knows can thus fill its own share and no more.
//
// Pure bookkeeping. Not thread-safe.
#pragma once

#include <cstddef>
#include <map>

#include "diagnosis/rank_place.h"
#include "marks/step_fold.h"

namespace taskd::diagnosis {

class GroupBudget {
 public:
  struct Cost {
    size_t members = 0;
    size_t bytes = 0;
  };
  struct Limits {
    Cost node, all;
  };
  // A job of kMaxRanks has a few groups of all its ranks, and as many small ones as it has ranks.
  static constexpr Limits kLimits = {.node = {size_t{16} * kMaxRanks, size_t{8} << 20},
                                     .all = {size_t{64} * kMaxRanks, size_t{80} << 20}};
  // What a group that is charged carries with it.
  struct Charge {
    Cost cost;
    int node = -1;  // that pays for it; -1: nobody alone
  };

  explicit GroupBudget(const Limits& limits = kLimits) : limits_(limits) {}

  // A group's, bookkeeping included, roughly. `members`: how many its runs stand for; 0 where nobody goes through them.
  static Cost CostOf(const GroupInfo& group, size_t members);

  // Charges a group to the node that brings it, -1 where that is not known. False: it does not fit.
  bool Take(int node, const Cost& cost, Charge* charge);
  // It takes so many bytes more. False: they do not fit.
  bool Grow(Charge* charge, size_t bytes);
  // A rank of `node` uses it, too.
  void Share(int node, Charge* charge);
  // It is kept no more.
  void Release(const Charge& charge);

  const Cost& used() const { return used_; }

 private:
  void TakeOff(const Charge& charge);

  Limits limits_;
  Cost used_;
  std::map<int, Cost> of_node_;  // of nodes that pay for anything
};

}  // namespace taskd::diagnosis
