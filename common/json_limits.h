// JSON that others wrote, with an end to its bytes, nesting and values before anything is built from it: a tree costs
// some hundred times its text, and copying, printing or freeing a deep one recurses.
#pragma once

#include <cstddef>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"

namespace taskd {

struct JsonLimits {
  size_t bytes = size_t{64} * 1024;
  size_t depth = 16;  // 1: one array or object that holds scalars only
  size_t values = 65'536;
};

// OK, or INVALID_ARGUMENT with the limit that the text exceeds. One pass, no memory. For text that is no JSON it only
// promises that a parser that stops at its first error stays within the limits up to there.
absl::Status CheckJsonLimits(std::string_view text, const JsonLimits& limits);

// `Json`: nlohmann::json or nlohmann::ordered_json. INVALID_ARGUMENT: beyond a limit, or not JSON.
template <typename Json = nlohmann::json>
absl::StatusOr<Json> ParseJson(std::string_view text, const JsonLimits& limits) {
  if (absl::Status checked = CheckJsonLimits(text, limits); !checked.ok()) return checked;
  Json json = Json::parse(text.begin(), text.end(), nullptr, false);
  if (json.is_discarded()) return absl::InvalidArgumentError("not JSON");
  return json;
}

}  // namespace taskd
