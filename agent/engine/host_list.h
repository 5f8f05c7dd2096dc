// Slurm's lists of hosts: "gpu[001-003,7],login2-ib0".
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace taskd::engine {

// At most this many hosts: what a list of a few bytes may ask for has to end somewhere.
inline constexpr size_t kMaxHosts = 65536;

// The hosts in their order, zeros in front of numbers kept; several brackets in a name multiply, the last one running
// fastest. INVALID_ARGUMENT, without the list's name: empty, a bracket that is not closed or that is in another one, no
// number where one has to be, a range that runs backwards, more than kMaxHosts.
absl::StatusOr<std::vector<std::string>> ExpandHostList(absl::string_view list);

}  // namespace taskd::engine
