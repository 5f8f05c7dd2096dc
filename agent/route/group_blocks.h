// Nodes cut into blocks, and blocks laid out as tiles. groups.h, "Design" 3. Internal to agent/route.
#pragma once

#include <cstdint>
#include <vector>

#include "agent/route/job_tree.h"

namespace taskd::route {

// All divisors, ascending.
std::vector<int32_t> Divisors(int32_t number);

// Job nodes of each leaf switch, by its first rail.
std::vector<int32_t> LeafFills(const JobTree& tree);

// The nodes of `tree`, which is a tree, in blocks of `size`, one after the other; the last may be shorter. A switch
// makes as many blocks as it can of what is left over below it: the largest part first, then the largest that fits.
// Blocks stand in the order of the tree, node 0 first.
std::vector<int32_t> BlockOrder(const JobTree& tree, int32_t size);

// Positions in the order in which blocks of `tile_stages` x `tile_width` fill them. The layout has `stages` rows of
// `width` positions; both are multiples of the tile's. `stages_first`: the next tile is one of the next stages, else
// one of the same.
std::vector<int32_t> TilePositions(int32_t stages, int32_t width, int32_t tile_stages, int32_t tile_width,
                                   bool stages_first);

}  // namespace taskd::route
