// What hits a rank for a while, and then another: a neighbour's work, a busy switch. Whoever is hit is no sick node. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>

#include "diagnosis/parameters.h"

namespace taskd::diagnosis {

// Rises that came and went, of the last steps. All steps are places in one count (lives.h).
class Weather {
 public:
  static constexpr size_t kMost = 1024;  // rises that are remembered

  // A rise of this rank has ended that cost it `excess_ns` in each of its steps of `step_ns`.
  void Add(int rank, int64_t onset, int64_t end, double step_ns, double excess_ns);
  void Forget(int64_t step);

  // How long a rise of the rank, one of so many `peers`, may last and still be weather: twice as long as the longest that has
  // come and gone, and short_burst_ns at least. 0: there were none, or the rank had them more often than chance would
  // choose it.
  double ExplainsUntilNs(int rank, int peers) const;
  bool Explains(int rank, int peers, double lasted_ns) const {
    const double until_ns = ExplainsUntilNs(rank, peers);
    return until_ns > 0 && lasted_ns <= until_ns;
  }

  size_t rises() const { return rises_.size(); }
  size_t ranks() const { return by_rank_.size(); }
  int64_t first_step() const { return rises_.empty() ? -1 : rises_.front().onset; }
  double mean_steps() const;
  // Of those that were hit, a step on average over the steps from the first one to `step`.
  double cost_ns(int64_t step) const;

 private:
  struct Rise {
    int rank;
    int64_t onset;
    int64_t steps;
    double step_ns;
    double excess_ns;
  };
  void Drop();  // the oldest one

  std::deque<Rise> rises_;  // in the order of their ends
  std::map<int, size_t> by_rank_;
};

// Some steps in a row in which a rank's own time is far above what it usually changes by. Where they hit ranks by turns,
// whoever had a few of late looks as if its steps were slow now and then.
class Gusts {
 public:
  // The rank's time stuck out in this step. Steps do not go back.
  void Add(int rank, int64_t step);
  void Forget(int64_t step);

  // So many steps of the rank, one of so many `peers`, stood out since `since`: they lie in gusts, which chose it no more
  // often than chance would. The last one is such a gust until it is twice as long as any.
  bool Explain(int rank, int peers, int64_t since, int spikes) const;

 private:
  struct Gust {
    int rank;
    int64_t first, last;
    int hits;
    int64_t steps() const { return last - first + 1; }
  };

  std::map<int, Gust> open_;
  std::deque<Gust> ended_;  // in the order of their ends
};

}  // namespace taskd::diagnosis
