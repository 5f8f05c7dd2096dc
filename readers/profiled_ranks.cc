#include "readers/profiled_ranks.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/printable.h"
#include "common/ranges_text.h"
#include "common/utf8.h"
#include "diagnosis/rank_place.h"
#include "readers/fold_merge.h"
#include "readers/kernel_evidence.h"

namespace taskd::readers {
namespace {

constexpr uint64_t kFirstTimeNs = 946'684'800'000'000'000;  // year 2000; an earlier time is not a time of day
constexpr int64_t kLiftNs = 1'000'000'000;

// Maps the group indices of `more`'s summaries to the groups of `all`.
void MergeGroups(FoldedTrace& all, FoldedTrace& more) {
  std::vector<uint32_t> index;
  for (GroupInfo& group : more.groups) {
    const auto known = std::find_if(all.groups.begin(), all.groups.end(),
                                    [&](const GroupInfo& other) { return other.name == group.name; });
    index.push_back(static_cast<uint32_t>(known - all.groups.begin()));
    if (known == all.groups.end()) all.groups.push_back(std::move(group));
  }
  for (StepFold& fold : more.folds) {
    for (OpFold& op : fold.ops) op.group = index[op.group];
    std::erase_if(fold.samples, [&](const OpSample& sample) { return index[sample.group] > UINT16_MAX; });
    for (OpSample& sample : fold.samples) sample.group = static_cast<uint16_t>(index[sample.group]);
  }
}

void MergeKernels(FoldedTrace& all, FoldedTrace& more) {
  for (KernelTimes& kernel : more.kernels) {
    const auto known = std::find_if(all.kernels.begin(), all.kernels.end(),
                                    [&](const KernelTimes& other) { return other.name == kernel.name; });
    if (known == all.kernels.end()) {
      all.kernels.push_back(std::move(kernel));
    } else {
      known->ms.insert(known->ms.end(), kernel.ms.begin(), kernel.ms.end());
    }
  }
}

}  // namespace

ProfiledRanks::ProfiledRanks(std::vector<SourceContent>& read, int world_size,
                             const std::function<bool(SourceFormat)>& is_of)
    : read_(read), world_size_(world_size) {
  std::map<int, std::vector<size_t>> files;
  for (size_t i = 0; i < read_.size(); ++i) {
    if (is_of(read_[i].format) && read_[i].rank >= 0) files[read_[i].rank].push_back(i);
  }
  for (auto& [rank, indices] : files) {
    const auto first_step = [this](size_t i) {
      return read_[i].folded.folds.empty() ? INT64_MAX : read_[i].folded.folds.front().step;
    };
    std::stable_sort(indices.begin(), indices.end(), [&](size_t a, size_t b) { return first_step(a) < first_step(b); });
    Rank& gathered = ranks_[rank];
    for (size_t i : indices) AddWindow(rank, i, gathered);
  }
  FindAscendMembers();
  AlignClocks();
  NoteSteps();
}

// Adds a further file of a rank.
void ProfiledRanks::AddWindow(int rank, size_t i, Rank& gathered) {
  FoldedTrace& more = read_[i].folded;
  FoldedTrace& before = gathered.folded;
  if (gathered.files.empty()) {
    gathered.host = read_[i].host;
    before = std::move(more);
  } else if (!more.folds.empty()) {
    if (!read_[i].has_times && !before.folds.empty()) {
      ShiftClock(-static_cast<int64_t>(before.folds.back().end_ns), more.folds);
    }
    const bool overlaps = !before.folds.empty() && (more.folds.front().step <= before.folds.back().step ||
                                                    more.folds.front().end_ns <= before.folds.back().end_ns);
    if (overlaps) {
      AddNote(read_[i].note, absl::StrCat("left out: ", Printable(read_[gathered.files.back()].file.path),
                                          " has steps of rank ", rank, " at the same time"));
      return;
    }
    MergeGroups(before, more);
    for (StepFold& fold : more.folds) before.folds.push_back(std::move(fold));
    before.has_ops |= more.has_ops;
    MergeKernels(before, more);
    if (before.steps == StepSource::kNone) before.steps = more.steps;
  }
  gathered.files.push_back(i);
}

// Ascend's operations name a process group by a number of its own, and some profiles do not list its members.
void ProfiledRanks::FindAscendMembers() {
  std::map<std::string, std::vector<int>> ranks_of_group;
  const auto for_each = [this](const auto& use) {
    for (auto& [rank, gathered] : ranks_) {
      if (read_[gathered.files[0]].format != SourceFormat::kAscendProfile) continue;
      for (GroupInfo& group : gathered.folded.groups) {
        if (!group.name.empty() && group.members.empty()) use(rank, group);
      }
    }
  };
  for_each([&](int rank, const GroupInfo& group) { ranks_of_group[group.name].push_back(rank); });
  for_each([&](int, GroupInfo& group) { group.members = CompressMembers(ranks_of_group[group.name]); });
}

void ProfiledRanks::AlignClocks() {
  // A trace without named groups is of a job with one group.
  const int most = ranks_.empty() ? 0 : ranks_.rbegin()->first + 1;
  for (auto& [rank, gathered] : ranks_) {
    for (GroupInfo& group : gathered.folded.groups) {
      if (group.name.empty() && group.members.empty()) {
        group.members = {{.first = 0, .stride = 1, .count = std::max(world_size_, most)}};
      }
    }
  }
  std::vector<const FoldedTrace*> folded;
  for (const auto& [rank, gathered] : ranks_) folded.push_back(&gathered.folded);
  std::vector<int64_t> offsets = ClockOffsetsOf(folded);
  // Stamps that begin at 0 must not become negative.
  int64_t lift = 0;
  for (size_t i = 0; i < offsets.size(); ++i) {
    if (folded[i]->folds.empty()) continue;
    const auto first = static_cast<int64_t>(folded[i]->folds.front().start_ns);
    if (folded[i]->folds.front().start_ns < kFirstTimeNs) lift = std::max(lift, offsets[i] - first + kLiftNs);
  }
  for (int64_t& offset : offsets) offset -= lift;
  auto offset = offsets.begin();
  for (auto& [rank, gathered] : ranks_) {
    ShiftClock(*offset, gathered.folded.folds);
    AddSourceRank(rank, gathered, *offset++);
  }
}

void ProfiledRanks::AddSourceRank(int rank, const Rank& gathered, int64_t clock_offset_ns) {
  SourceRank source;
  source.rank = rank;
  source.host = ValidUtf8(gathered.host);
  source.clock_offset_ns = clock_offset_ns;
  source.groups = gathered.folded.groups;
  source.first_ns = gathered.folded.first_ns;
  if (!gathered.host.empty()) {
    source.node = nodes_.try_emplace(gathered.host, static_cast<int>(nodes_.size())).first->second;
  }
  for (size_t i : gathered.files) {
    source.files.push_back(read_[i].file);
    source.bytes += read_[i].file.bytes;
    source.has_times = source.has_times && read_[i].has_times;
  }
  source_ranks_.push_back(std::move(source));
}

diagnosis::Report ProfiledRanks::Judge(const StepSeen& on_step,
                                       const std::function<void(const diagnosis::Engine&)>& on_engine) {
  std::vector<std::unique_ptr<FoldedStream>> owned;
  std::vector<FoldStream*> streams;
  KernelEvidence kernels;
  for (auto& [rank, gathered] : ranks_) {
    kernels.AddRank(rank, gathered.folded);
    owned.push_back(std::make_unique<FoldedStream>(rank, std::move(gathered.folded)));
    streams.push_back(owned.back().get());
  }
  bool sent = false;
  FoldMerge merge(streams, 1, 0, on_step);
  merge.Run(
      [&](std::vector<diagnosis::RankPlace>& places) {
        if (std::exchange(sent, true)) return false;
        for (const SourceRank& rank : source_ranks_) places.push_back({.node = rank.node, .host = rank.host});
        return true;
      },
      nullptr);
  if (on_engine) on_engine(merge.engine());
  diagnosis::Report report = merge.engine().report();
  for (diagnosis::Verdict& verdict : report.verdicts) {
    if (verdict.since_ns < kFirstTimeNs) verdict.since_ns = 0;
    kernels.AddTo(verdict, merge.engine());
  }
  AddPeers(report, merge.engine(), source_ranks_);
  AddNotes(report);
  return report;
}

// Must run before Judge() takes the summaries.
void ProfiledRanks::NoteSteps() {
  std::map<int64_t, int> ranks_of_step;
  for (const auto& [rank, gathered] : ranks_) {
    if (gathered.folded.folds.empty()) without_steps_.push_back(rank);
    if (!read_[gathered.files[0]].has_times) without_times_.push_back(rank);
    if (!gathered.folded.has_ops) without_ops_.push_back(rank);
    counted_ |= gathered.folded.steps == StepSource::kCounted || gathered.folded.steps == StepSource::kOptimizer;
    for (const StepFold& fold : gathered.folded.folds) ++ranks_of_step[fold.step];
  }
  const bool common =
      std::any_of(ranks_of_step.begin(), ranks_of_step.end(), [](auto& step) { return step.second > 1; });
  apart_ = ranks_.size() > 1 && !ranks_of_step.empty() && !common;
}

void ProfiledRanks::AddNotes(diagnosis::Report& report) const {
  auto note = [&](std::string text) { report.notes.push_back({diagnosis::NoteKind::kNoData, std::move(text)}); };
  if (apart_) note("the ranks were profiled at different steps: nobody can be compared with anybody");
  if (counted_) {
    note(
        "the traces do not number their steps: the first one in each file was taken for the same step; profile with a "
        "schedule and call prof.step() for numbers");
  }
  const auto of = [](const std::vector<int>& ranks) {
    return absl::StrCat(ranks.size() == 1 ? "rank " : "ranks ", FormatRanges(ranks));
  };
  if (!without_steps_.empty()) {
    note(absl::StrCat("the traces of ", of(without_steps_),
                      " show no steps: call prof.step() once a step, or wrap "
                      "each step in torch.profiler.record_function(f\"step {n}\")"));
  }
  if (!without_ops_.empty()) {
    note(absl::StrCat("the traces of ", of(without_ops_),
                      " show no communication: what they wait for counts as "
                      "their own time"));
  }
  if (!without_times_.empty()) {
    note(absl::StrCat("of ", of(without_times_),
                      " there are only sums of each step, and no operation: profile with ProfilerLevel.Level1 for "
                      "communication.json"));
  }
  std::vector<int> missing;
  const int size = ranks_.empty() ? 0 : std::max(world_size_, ranks_.rbegin()->first + 1);
  for (int rank = 0; rank < size; ++rank) {
    if (!ranks_.contains(rank)) missing.push_back(rank);
  }
  if (!missing.empty()) note(absl::StrCat("of ", size, " ranks there is no trace of ", of(missing)));
}

}  // namespace taskd::readers
