#include "manager/supervision/hang_evidence.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace taskd::manager {

HangEvidence MergeEvidence(const HangVerdict& verdict, const HangEvidence& evidence, const HangFrames& frames) {
  HangEvidence merged = evidence;
  const std::string steps(absl::StripPrefix(verdict.text, "hang: "));
  if (evidence.is_found && (!evidence.origins.empty() || verdict.origins.empty())) {
    const absl::string_view without_cause = absl::StripPrefix(steps, absl::StrCat(verdict.cause, "; "));
    merged.text = absl::StrCat("hang: ", evidence.text, "; ", without_cause);
    return merged;
  }
  if (evidence.is_found) merged.notes.insert(merged.notes.begin(), evidence.text);
  merged.is_found = true;
  merged.origins = verdict.origins;
  std::sort(merged.origins.begin(), merged.origins.end());
  merged.kind = verdict.origins.empty() ? "unknown" : "missing";
  merged.group.clear();
  merged.operation = verdict.operation;
  merged.since_ns = verdict.since_ns;
  merged.waiting = verdict.waiting;
  merged.frames = verdict.origins.empty() ? std::vector<std::string>() : frames.frames;
  merged.text = verdict.text;
  if (!merged.frames.empty() && !frames.script.empty()) {
    merged.text = absl::StrCat("hang: rank ", merged.origins[0], " stands at ", frames.script, "; ", steps);
  }
  return merged;
}

}  // namespace taskd::manager
