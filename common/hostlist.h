// Slurm's hostlists: `n[01-3,7]`, `a[0-1]b[2-3]`, lists of them with commas.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"

namespace taskd {

// Appends the names. A leading zero of a range's begin sets the width. Refused: a broken bracket, an empty name or
// range, a range that goes down or is no number, a name above 255 bytes. RESOURCE_EXHAUSTED: more than `max_hosts` in
// all of `hosts`.
absl::Status ExpandHostlist(std::string_view list, size_t max_hosts, std::vector<std::string>& hosts);

}  // namespace taskd
