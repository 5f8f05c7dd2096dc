// The part of YAML that topology files are written in: block and flow collections, plain and quoted scalars, literal blocks.
#pragma once

#include <string_view>

#include "absl/status/statusor.h"
#include "common/input_budget.h"
#include "nlohmann/json.hpp"

namespace taskd::route {

// Whether the first line that is no comment begins a YAML document: "---", "key:" or "- key:".
bool LooksLikeYaml(std::string_view text);

// The documents as a list, without empty ones. Every scalar is a string; an empty value is null. Refused, with the line: what
// is no YAML of this part (anchors, tags, multi-line flow), deeper than 64, a key twice, more than `budget` has room for.
absl::StatusOr<nlohmann::json> ParseYaml(std::string_view text, InputBudget& budget);

}  // namespace taskd::route
