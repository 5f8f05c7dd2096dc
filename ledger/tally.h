// Sums of rank-seconds by category, in total and by incident.
#pragma once

#include <cstdint>
#include <map>

#include "ledger/report.h"

namespace taskd::ledger {

inline double ToSeconds(int64_t ns) { return static_cast<double>(ns) / 1e9; }

struct Tally {
  Seconds seconds{};
  std::map<uint64_t, Seconds> incidents;  // by number
  uint64_t checkpoints = 0;               // saves that the job waited for
  double checkpoint_s = 0;                // their total duration
  std::map<int, double> waited_for;       // part of kOther that ranks waited for a rank, by rank; at most kMaxWaitedFor

  // `incident` 0: no incident has caused it.
  void Add(Category category, double rank_s, uint64_t incident) {
    if (!(rank_s > 0)) return;
    At(seconds, category) += rank_s;
    if (incident != 0) At(incidents[incident], category) += rank_s;
  }

  void AddWaitedFor(int rank, double rank_s) {
    const auto found = waited_for.find(rank);
    if (found != waited_for.end()) {
      found->second += rank_s;
    } else if (waited_for.size() < Report::kMaxWaitedFor) {
      waited_for.emplace(rank, rank_s);
    }
  }
};

}  // namespace taskd::ledger
