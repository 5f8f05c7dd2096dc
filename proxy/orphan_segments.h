// What ranks left in /dev/shm whose processes are gone: a proxy takes it over.
#pragma once

#include <cstddef>

#include "proxy/node_ranks.h"
#include "proxy/shm_segments.h"

namespace taskd::proxy {

inline constexpr int kMaxRank = 1 << 24;

// Adds the segments that `scan` finds among its next `entries`, that belong to no living process and to no rank yet. Takes the
// ranks' mutex.
void AdoptOrphans(SegmentScan& scan, size_t entries, NodeRanks& node);

}  // namespace taskd::proxy
