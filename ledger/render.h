// Renders a ledger's report as JSON and as text, and reads it from JSON.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "ledger/report.h"

namespace taskd::ledger {

// One JSON object in one line (docs/formats.md): "schema":1, seconds by category, attempts, incidents, advice.
std::string RenderJson(const Report& report, const std::string& job);

// Reads what RenderJson wrote. All of its seconds are closed. INVALID_ARGUMENT: it is no report, or of a later schema.
absl::StatusOr<Report> ReadJson(std::string_view text, std::string* job);

// Example: "84.1 % of 512 rank-hours were productive; most was lost to redone steps (6.2 %: 3 restarts)"
std::string Sentence(const Report& report);

// Examples: "512 rank-hours", "93 rank-seconds"
std::string Amount(double rank_s);

// Text for people: the sentence, a table by category, and the `incidents` most expensive incidents.
std::string RenderText(const Report& report, const std::string& job, size_t incidents);

}  // namespace taskd::ledger
