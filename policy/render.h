// Actions as JSON, for people, and as they are kept. Pure.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "policy/policy.h"

namespace taskd::policy {

// One JSON object in one line (docs/formats.md): "schema":1, policy, paused, summary, actions from the newest to the
// oldest. `no_name`: why nodes have no certain name, one line; empty: all have one.
std::string RenderJson(const Policy::Kept& kept, const Options& options, double remaining_s,
                       const std::string& no_name);
// One action, as in `actions`.
std::string RenderJson(const Action& action);

// For people, of what RenderJson wrote. INVALID_ARGUMENT: it is none.
absl::StatusOr<std::string> RenderText(std::string_view json);

// The same of one action, as RenderJson wrote it.
absl::StatusOr<std::string> RenderActionText(std::string_view json);

std::string RenderKept(const Policy::Kept& kept);
// INVALID_ARGUMENT: RenderKept wrote no such text.
absl::StatusOr<Policy::Kept> ReadKept(std::string_view text);

}  // namespace taskd::policy
