// A rank table whose servers have another order.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "absl/status/statusor.h"
#include "agent/ranktable/rank_table.h"

namespace taskd::ranktable {

// The table's text with its servers (2.0: its ranks) in the order new_order[0], new_order[1], … (places in
// table.servers) and ranks counted anew: server by server, in each in the order of the old ranks. What stands between
// the servers stays where it is. INVALID_ARGUMENT: not each server once. UNIMPLEMENTED: version absent or 1.1.
absl::StatusOr<std::string> ReorderRankTable(const RankTable& table, std::span<const uint32_t> new_order);

}  // namespace taskd::ranktable
