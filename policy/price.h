// What a restart of the job costs, by its own ledger. Pure.
#pragma once

#include <cstdint>
#include <string>

#include "ledger/report.h"

namespace taskd::policy {

struct Price {
  double rank_s = 0;
  uint64_t restarts = 0;  // that it is the mean of; 0: it is estimated

  friend bool operator==(const Price&, const Price&) = default;
};

// For the ends of processes and their start, where the ledger has seen no restart yet.
inline constexpr double kRestartS = 60;

// The mean of the job's restarts, without the time in which a hang was not known yet. Before the first: launch, link-up
// and warm-up so far, the `unsaved_steps` of `step_s` that would be done twice, and kRestartS, of each slot.
Price PriceOfRestart(const ledger::Report& report, int64_t unsaved_steps, double step_s);

}  // namespace taskd::policy
