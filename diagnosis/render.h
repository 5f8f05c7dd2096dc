// A report for programs (JSON, DESIGN §4.5) and for people.
#pragma once

#include <cstddef>
#include <string>

#include "diagnosis/verdict.h"

namespace taskd::diagnosis {

// One object, no line feed at the end. Strings are valid UTF-8 whatever the job's name holds.
std::string RenderJson(const Report& report, const std::string& job);

// The state and why, one sentence: "slow: rank 7 ...", "ok: ...", "unknown: ..., cannot say: ...". Not safe to print as it
// is.
std::string WriteHeadline(const Report& report);
// What the headline of an unknown state says for a reason: "cannot say: only 4 steps were seen".
std::string WriteWhyUnknown(const Report& report);

// Returns the words for an Evidence::feature in text: "self time" for "own_time". A feature without words of its own is
// returned unchanged.
std::string FeatureForPeople(const std::string& feature);

// Verdict, evidence table and cost, notes; plain text of at most 120 columns.
std::string RenderText(const Report& report, const std::string& job);

// Appends `text`, made safe, as lines of at most 120 columns, broken at spaces; lines after the first begin with `indent`
// spaces.
void AppendWrapped(const std::string& text, size_t indent, std::string& out);

// "on worker-7 (host train-1)", of the first few nodes that the verdict accuses; "" where it has none.
std::string NodesText(const Verdict& verdict);

}  // namespace taskd::diagnosis
