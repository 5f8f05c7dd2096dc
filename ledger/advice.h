// What would pay, as far as the ledger's own numbers prove it.
//
// Checkpoints: a save takes d, failures are m of training apart on average; saving every T costs d/T + T/(2m) of the time,
// least at sqrt(2dm) (J. W. Young 1974; J. T. Daly 2006). Of n failures m is known within the bounds of a Poisson process;
// the interval that follows is told with them, and only where the one in use lies outside. Below kFewest failures nothing
// is said.
//
// Pure.
#pragma once

#include <vector>

#include "ledger/report.h"

namespace taskd::ledger {

// What is worth it, the dearest first.
inline constexpr double kWorth = 0.01;  // of all rank-seconds, that it may save
inline constexpr uint64_t kFewest = 3;  // failures
inline constexpr double kShortS = 10;   // a start: so long launching, or linking up, is nobody's business

std::vector<Advice> AdviceOf(const Report& report);

// The interval of checkpoints that costs least, s; `low` and `high`: 90 % of what the failures leave possible.
struct CheckpointInterval {
  double best_s = 0, low_s = 0, high_s = 0;
};
// `save_s`: a checkpoint takes. `trained_s`: in which `failures` (at least 1) were.
CheckpointInterval YoungDaly(double save_s, double trained_s, uint64_t failures);

}  // namespace taskd::ledger
