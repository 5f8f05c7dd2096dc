#include "diagnosis/work_notes.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/ranges_text.h"
#include "diagnosis/parameters.h"

namespace taskd::diagnosis {
namespace {

// Those who get about as much as whoever gets most, as one: a replica's ranks all have its batch.
Note NoteOn(const std::vector<Work::Load>& loads, const std::function<int64_t(int64_t)>& step_at) {
  const auto by_ratio = [](const Work::Load& a, const Work::Load& b) { return a.ratio < b.ratio; };
  const Work::Load most = *std::max_element(loads.begin(), loads.end(), by_ratio);
  std::vector<int> ranks;
  int64_t since = most.since;
  bool explains = true;
  for (const Work::Load& load : loads) {
    if (std::log(load.ratio) < parameters.alike_load * std::log(most.ratio)) continue;
    ranks.push_back(load.rank);
    since = std::min(since, load.since);
    explains = explains && load.explains;
  }
  const bool one = ranks.size() == 1;
  const int64_t step = step_at(since);
  std::string text =
      absl::StrFormat("rank %s %s %.*f × the work of %s peers since step %d: ", FormatRanges(ranks),
                      one ? "gets" : "get", most.ratio < 1.095 ? 2 : 1, most.ratio, one ? "its" : "their", step);
  if (explains) {
    absl::StrAppend(&text, one ? "it is not slow, its load is" : "they are not slow, their load is");
  } else {
    absl::StrAppend(&text, "as far as that goes, that ", one ? "it takes" : "they take", " longer is no slowness");
  }
  if (const size_t others = loads.size() - ranks.size(); others > 0) {
    absl::StrAppend(&text, "; ", others, " more ", others == 1 ? "gets" : "get", " more than their peers");
  }
  return {NoteKind::kLoad, text, step};
}

}  // namespace

std::vector<Note> NotesOn(const Work& work, const std::function<int64_t(int64_t)>& step_at) {
  std::vector<Note> notes;
  if (const std::vector<Work::Load> loads = work.loads(); !loads.empty()) notes.push_back(NoteOn(loads, step_at));
  const Work::Unusable unusable = work.unusable();
  std::string why;
  const auto add = [&why](const std::vector<int>& ranks, std::string_view what) {
    if (ranks.empty()) return;
    absl::StrAppend(&why, why.empty() ? "" : "; ", "rank ", FormatRanges(ranks), " ", std::string(what));
  };
  add(unusable.silent, "says none while its peers do");
  add(unusable.odd, "says none that can be used: a number above 0 is needed");
  add(unusable.units, "counts something else than its peers: its work is far from theirs, its time is not");
  if (!why.empty()) {
    notes.push_back({NoteKind::kNoData, absl::StrCat("work is not used to compare where ", why), -1});
  }
  return notes;
}

}  // namespace taskd::diagnosis
