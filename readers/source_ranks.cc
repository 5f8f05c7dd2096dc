#include "readers/source_ranks.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/printable.h"
#include "readers/ascend_folder.h"
#include "readers/named_ranks.h"

namespace taskd::readers {
namespace {

// An interval; empty while first > last.
struct Span {
  int64_t first = INT64_MAX, last = INT64_MIN;

  void Add(int64_t value) {
    first = std::min(first, value);
    last = std::max(last, value);
  }
  bool Overlaps(const Span& other) const { return first <= other.last && other.first <= last; }
};

struct Extent {
  Span steps, times_ns;
};

Extent ExtentOf(const FoldedTrace& folded) {
  Extent extent;
  for (const StepFold& fold : folded.folds) {
    extent.steps.Add(fold.step);
    extent.times_ns.Add(static_cast<int64_t>(fold.start_ns));
    extent.times_ns.Add(static_cast<int64_t>(fold.end_ns));
  }
  return extent;
}

// Whether two files have the same steps and times. Windows of one rank differ in their steps or in their times.
bool AreOfOneTime(const SourceContent& a, const SourceContent& b) {
  const Extent first = ExtentOf(a.folded), second = ExtentOf(b.folded);
  const bool have_times = a.has_times && b.has_times;
  return first.steps.Overlaps(second.steps) && (!have_times || first.times_ns.Overlaps(second.times_ns));
}

// Whether the dumps are of two processes. Two dumps of one process share operations, unless one begins after the
// other's end.
bool AreOfTwoProcesses(const FlightDump& a, const FlightDump& b) {
  Span first, second;
  std::set<uint64_t> created;
  for (const diagnosis::HangOp& op : a.known.ops) {
    if (op.created_ns == 0) continue;
    created.insert(op.created_ns);
    first.Add(static_cast<int64_t>(op.created_ns));
  }
  for (const diagnosis::HangOp& op : b.known.ops) {
    if (op.created_ns == 0) continue;
    if (created.contains(op.created_ns)) return false;
    second.Add(static_cast<int64_t>(op.created_ns));
  }
  return first.Overlaps(second);
}

bool Contradict(const SourceContent& a, const SourceContent& b) {
  if (!a.is_rank_of_name && !b.is_rank_of_name) return false;
  return a.is_dump() ? AreOfTwoProcesses(a.dump, b.dump) : AreOfOneTime(a, b);
}

using Files = std::vector<SourceContent*>;

// Returns two files that contradict each other.
std::optional<std::pair<const SourceContent*, const SourceContent*>> FindContradiction(const Files& files) {
  std::map<int, std::vector<const SourceContent*>> of_rank;
  for (const SourceContent* file : files) {
    if (file->rank < 0) continue;
    std::vector<const SourceContent*>& same = of_rank[file->rank];
    const auto other = std::find_if(same.begin(), same.end(),
                                    [&](const SourceContent* earlier) { return Contradict(*earlier, *file); });
    if (other != same.end()) return std::pair(*other, file);
    same.push_back(file);
  }
  return std::nullopt;
}

void TakeNames(const Files& files) {
  Files without;
  std::vector<std::string> paths;
  for (SourceContent* file : files) {
    if (file->rank >= 0) continue;
    without.push_back(file);
    const std::string& path = file->file.path;
    paths.push_back(file->format == SourceFormat::kAscendProfile ? AscendRankPath(path) : path);
  }
  const std::vector<int> ranks = RanksOfPaths(paths);
  for (size_t i = 0; i < without.size(); ++i) {
    without[i]->rank = ranks[i];
    without[i]->is_rank_of_name = ranks[i] >= 0;
  }
  const auto contradiction = FindContradiction(files);
  if (!contradiction) return;
  const auto& [a, b] = *contradiction;
  const std::string note =
      absl::StrCat("left out: the names do not tell which rank each file is of, ", Printable(a->file.path), " and ",
                   Printable(b->file.path), " would both be of rank ", a->rank, " (rename them rank_N.json)");
  for (SourceContent* file : without) {
    if (!std::exchange(file->is_rank_of_name, false)) continue;
    file->rank = -1;
    AddNote(file->note, note);
  }
}

}  // namespace

std::string NameRanks(std::vector<SourceContent>& read) {
  std::map<SourceFormat, Files> formats;
  for (SourceContent& file : read) {
    const bool can_be_named = file.format == SourceFormat::kKinetoTrace ||
                              file.format == SourceFormat::kAscendProfile ||
                              file.format == SourceFormat::kFlightRecorder;
    if (can_be_named) formats[file.format].push_back(&file);
  }
  std::string note;
  for (const auto& [format, files] : formats) {
    TakeNames(files);
    if (files.size() > 1 || files[0]->rank >= 0) continue;
    files[0]->rank = 0;
    AddNote(note, absl::StrCat(Printable(files[0]->file.path),
                               " does not say its rank and is taken as rank 0: there is nothing to compare it with"));
  }
  return note;
}

}  // namespace taskd::readers
