// Who holds up a job that hangs, by the ranges that are open in its ranks: a rank that is elsewhere while the others wait
// for it in a communication. Pure computation.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "manager/switch/core.h"

namespace taskd::manager {

struct HangOrigin {
  std::vector<int> ranks;  // ascending; empty: the open ranges do not tell
  std::string operation;   // in which the others wait; empty: unknown
  uint64_t since_ns = 0;   // Unix, since when the first one is in its phase; 0: it is in none
  std::string text;        // "rank 1 is in its data loader, in step 58, and 2 ranks wait for it in all_reduce"
};

// `ranks`: by rank.
HangOrigin FindOrigin(const std::vector<RankPulse>& ranks);

}  // namespace taskd::manager
