#include "manager/supervision/hang_evidence.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace taskd::manager {

HangEvidence MergeEvidence(const HangVerdict& verdict, const HangEvidence& evidence) {
  HangEvidence merged = evidence;
  if (evidence.is_found && (!evidence.origins.empty() || verdict.behind.empty())) {
    merged.text = absl::StrCat("hang: ", evidence.text, "; ", std::string(absl::StripPrefix(verdict.text, "hang: ")));
    return merged;
  }
  if (evidence.is_found) merged.notes.insert(merged.notes.begin(), evidence.text);
  merged.is_found = true;
  merged.origins = verdict.behind;
  std::sort(merged.origins.begin(), merged.origins.end());
  // Steps do not say in which operation anybody stands.
  merged.kind = verdict.behind.empty() ? "unknown" : "missing";
  merged.group.clear();
  merged.operation.clear();
  merged.since_ns = 0;
  merged.waiting = verdict.waiting;
  merged.frames.clear();
  merged.text = verdict.text;
  return merged;
}

}  // namespace taskd::manager
