// What `ibnetdiscover` prints. ReadTopology (formats.h) documents the checks before.
#pragma once

#include <string_view>

#include "absl/status/statusor.h"
#include "agent/route/topology.h"

namespace taskd::route {

absl::StatusOr<Topology> ReadIbnetdiscover(std::string_view text, InputBudget& budget);

}  // namespace taskd::route
