#include "readers/joined_report.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace taskd::readers {
namespace {

using diagnosis::JobState;
using diagnosis::Verdict;

// A verdict with its accused ranks and the formats that proved it. Ranks, because each part numbers nodes separately.
struct Proved {
  Verdict verdict;
  std::vector<int> accused;
  std::vector<SourceFormat> by;

  bool is_same(const Proved& other) const {
    if (verdict.scope != other.verdict.scope) return false;
    if (verdict.scope == diagnosis::Scope::kNode) return !accused.empty() && accused == other.accused;
    return verdict.ids == other.verdict.ids && verdict.links == other.verdict.links;
  }
};

std::string TitlesOf(const std::vector<SourceFormat>& formats) {
  return absl::StrJoin(formats, ", ", [](std::string* out, SourceFormat format) { *out += TitleOf(format); });
}

void Add(Proved more, std::vector<Proved>& all) {
  const auto same = std::find_if(all.begin(), all.end(), [&more](const Proved& known) { return known.is_same(more); });
  if (same == all.end()) {
    all.push_back(std::move(more));
    return;
  }
  Verdict& verdict = same->verdict;
  if (verdict.cause == diagnosis::Cause::kUnknown) verdict.cause = more.verdict.cause;
  verdict.evidence.insert(verdict.evidence.end(), more.verdict.evidence.begin(), more.verdict.evidence.end());
  absl::StrAppend(&verdict.text, "; ", more.verdict.text);
  same->by.insert(same->by.end(), more.by.begin(), more.by.end());
}

}  // namespace

diagnosis::Report JoinReports(const std::vector<Judged>& parts, std::vector<std::vector<SourceFormat>>& proved_by) {
  // The job's numbers (its step, the sensitivity) are those of the first part that has judged it.
  const auto judged = std::find_if(parts.begin(), parts.end(),
                                   [](const Judged& part) { return part.report.state != JobState::kUnknown; });
  diagnosis::Report joined = judged == parts.end() ? parts[0].report : judged->report;
  joined.notes.clear();
  std::vector<Proved> all;
  for (const Judged& part : parts) {
    const std::string titles = TitlesOf(part.formats);
    joined.ranks = std::max(joined.ranks, part.report.ranks);
    if (part.report.state == JobState::kSlow) joined.state = JobState::kSlow;
    for (const Verdict& verdict : part.report.verdicts) {
      Proved proved{.verdict = verdict, .accused = AccusedBy(verdict, part.ranks), .by = part.formats};
      absl::StrAppend(&proved.verdict.text, " (", titles, ")");
      Add(std::move(proved), all);
    }
    for (diagnosis::Note note : part.report.notes) {
      note.text = absl::StrCat(titles, ": ", note.text);
      joined.notes.push_back(std::move(note));
    }
  }
  // Open verdicts come first, each kind by cost.
  std::stable_sort(all.begin(), all.end(), [](const Proved& a, const Proved& b) {
    if (a.verdict.open != b.verdict.open) return a.verdict.open;
    return a.verdict.cost_ms_per_step > b.verdict.cost_ms_per_step;
  });
  joined.verdicts.clear();
  for (Proved& proved : all) {
    joined.verdicts.push_back(std::move(proved.verdict));
    proved_by.push_back(std::move(proved.by));
  }
  return joined;
}

}  // namespace taskd::readers
