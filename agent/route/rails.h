// Nodes whose devices hang on switches that group them differently: no order needs to be good for all of them.
#pragma once

#include <cstdint>
#include <vector>

#include "agent/route/job_tree.h"

namespace taskd::route {

// An order (of old ranks) that in no part of the cost is worse than the given one, and keeps old rank 0 first. What it
// returns, taken as the given order, comes back unchanged.
std::vector<int32_t> ImproveRails(const JobTree& tree);

}  // namespace taskd::route
