// What ranks left in /dev/shm whose processes are gone: a proxy takes it over.
#pragma once

#include <string>

#include "proxy/node_ranks.h"

namespace taskd::proxy {

inline constexpr int kMaxRank = 1 << 24;

// Adds the segments that belong to the proxy at `socket`, to no living process, and to no rank yet. Takes the ranks'
// mutex.
void AdoptOrphans(const std::string& socket, NodeRanks& node);

}  // namespace taskd::proxy
