// Derives advice from the ledger's own numbers.
//
// Checkpoints: a save takes d, and failures are m of training time apart on average. Saving every T costs d/T + T/(2m)
// of the time; the cost is least at T = sqrt(2dm) (J. W. Young 1974; J. T. Daly 2006). With n failures, m is known
// within the bounds of a Poisson process. If the interval in use lies outside these bounds, the advice names the best
// interval and its bounds. Advice on checkpoints needs kFewest failures.
//
// Pure.
#pragma once

#include <vector>

#include "ledger/report.h"

namespace taskd::ledger {

// Thresholds of advice.
inline constexpr double kWorth = 0.01;  // share of all rank-seconds that an advice has to save
inline constexpr uint64_t kFewest = 3;  // failures
inline constexpr double kShortS = 10;   // per start: launching, or linking up, for this long is normal

// Returns the advice that is worth at least kWorth, the largest saving first.
std::vector<Advice> AdviceOf(const Report& report);

// The checkpoint interval that costs least, in seconds. The number of failures allows `low_s` to `high_s` at 90 %.
struct CheckpointInterval {
  double best_s = 0, low_s = 0, high_s = 0;
};
// `save_s`: duration of a checkpoint save. `trained_s`: training time with `failures` (at least 1) failures.
CheckpointInterval YoungDaly(double save_s, double trained_s, uint64_t failures);

}  // namespace taskd::ledger
