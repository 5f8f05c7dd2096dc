#include "diagnosis/own_view.h"

#include <algorithm>
#include <cmath>

#include "diagnosis/parameters.h"
#include "diagnosis/stats.h"

namespace taskd::diagnosis {
namespace {

constexpr size_t kKinds = 4;         // of operations, that are looked at
constexpr size_t kModeSample = 512;  // ranks

bool TooBroken(const StepFold& fold, OwnMode mode) {
  // Without blocking operations a step is few and long gaps: one that is broken is no data.
  if (mode == OwnMode::kAll) return fold.broken > 0;
  if (mode != OwnMode::kBulk || fold.broken <= 2) return false;
  uint64_t count = 0;
  for (const OpFold& op : fold.ops) count += op.count;
  return fold.broken > 2 + count * 3 / 4;
}

double NotOwnNs(const StepFold& fold) { return static_cast<double>(fold.dataloader_own_ns + fold.checkpoint_own_ns); }

OwnView ViewOf(const Layout& layout, int rank, const StepFold& fold, OwnMode mode) {
  OwnView own{.rank = rank, .peer_class = layout.rank(rank).peer_class, .fold = &fold};
  if (mode == OwnMode::kForward) {
    own.rest = fold.forwards > 0 ? static_cast<double>(fold.forward_ns) : 0;
    return own;
  }
  for (const OpFold& op : fold.ops) {
    if (op.op == CommOp::kAllToAll) own.tokens += static_cast<double>(op.bytes);
    if (mode == OwnMode::kBulk) {
      const int group = layout.GroupOf(rank, op.group);
      const bool blocking = IsPointToPoint(op.op) || (group >= 0 && layout.group(group).blocking);
      if (!blocking) continue;
      own.full += static_cast<double>(op.blocking_gap_ns);
      own.full_gaps += op.blocking_gaps;
    }
    own.cut += static_cast<double>(op.gap_ns);
    own.cut_gaps += op.gaps;
  }
  if (mode == OwnMode::kAll) {
    own.rest = static_cast<double>(fold.head_ns + fold.lead_ns + fold.tail_ns) - NotOwnNs(fold);
    own.full = own.rest;
    own.covered = static_cast<double>(fold.covered_before_last_ns);
  }
  return own;
}

// A lost mark costs its gap, not the step: the mean of the gaps that are there times how many there should be.
void MakeUpForLostGaps(std::vector<OwnView>& views) {
  std::vector<double> counts;
  for (const OwnView& own : views) counts.push_back(own.full_gaps);
  const double full_gaps = LowerMedian(counts);
  for (OwnView& own : views) {
    if (own.fold->broken == 0 || own.full_gaps == 0) continue;
    own.cut *= full_gaps / own.full_gaps;
    own.full *= full_gaps / own.full_gaps;
  }
}

template <typename Value>
std::vector<double> ValuesOf(const std::vector<OwnView>& views, Value value) {
  std::vector<double> values;
  values.reserve(views.size());
  for (const OwnView& own : views) values.push_back(value(own));
  return values;
}

template <typename Value>
double MedianOf(const std::vector<OwnView>& views, Value value) {
  std::vector<double> values = ValuesOf(views, value);
  return LowerMedian(values);
}

// From the step's begin until the rank came to its first operation of the `kind`-th kind, without loading and saving; 0:
// unknown, or another kind than `first` has there.
double UntilKind(const StepFold& fold, const StepFold& first, size_t kind) {
  if (kind >= fold.ops.size() || fold.previous_end_ns == 0) return 0;
  const OpFold& op = fold.ops[kind];
  const OpFold& like = first.ops[kind];
  if (op.op != like.op || op.size_log2 != like.size_log2 || op.first_start_ns < fold.previous_end_ns) return 0;
  return std::max(0.0, static_cast<double>(op.first_start_ns - fold.previous_end_ns) - NotOwnNs(fold));
}

// By the ends of the step, in which nothing runs, and what gaps between operations are longer than its peers' by more than
// these can have computed behind operations that ran longer than this rank's.
double CertainBySums(const OwnView& own, double usual_cut, double usual_gap, double usual_covered) {
  const double gap = own.cut - own.rest;
  const double hidden = std::max(0.0, usual_covered - own.covered);
  const double certain_gap = std::min(gap, usual_gap) + std::max(0.0, gap - usual_gap - hidden);
  return std::max(0.0, own.rest + certain_gap - usual_cut);
}

// Or, if that is more, by how much later than its peers it came to the first operation of a kind. `views` is not empty.
void FindCertain(const MedianOfOthers& cut_of_others, std::vector<OwnView>& views) {
  std::vector<double> gaps = ValuesOf(views, [](const OwnView& own) { return own.cut - own.rest; });
  std::vector<double> covered = ValuesOf(views, [](const OwnView& own) { return own.covered; });
  const MedianOfOthers gaps_of_others(gaps), covered_of_others(covered);
  for (OwnView& own : views) {
    own.certain = CertainBySums(own, cut_of_others.Without(own.cut), gaps_of_others.Without(own.cut - own.rest),
                                covered_of_others.Without(own.covered));
  }
  // When a rank would have come with its peers' work is not known.
  if (std::any_of(views.begin(), views.end(), [](const OwnView& own) { return own.work_factor != 1; })) return;
  const StepFold& first = *views[0].fold;
  for (size_t kind = 0; kind < std::min(first.ops.size(), kKinds); ++kind) {
    const std::vector<double> until =
        ValuesOf(views, [&](const OwnView& own) { return UntilKind(*own.fold, first, kind); });
    if (std::find(until.begin(), until.end(), 0) != until.end()) continue;
    std::vector<double> values = until;
    const MedianOfOthers until_of_others(values);
    for (size_t i = 0; i < views.size(); ++i) {
      views[i].certain = std::max(views[i].certain, until[i] - until_of_others.Without(until[i]));
    }
  }
}

}  // namespace

OwnMode ChooseMode(const Layout& layout, const std::vector<std::pair<int, StepFold>>& folds) {
  size_t bulk = 0;
  size_t all = 0;
  size_t forward = 0;
  size_t looked_at = 0;
  // In a large job a sample suffices.
  const size_t stride = folds.size() / kModeSample + 1;
  for (size_t i = 0; i < folds.size(); i += stride) {
    const auto& [rank, fold] = folds[i];
    ++looked_at;
    forward += fold.forwards > 0 ? 1 : 0;
    if (fold.ops.empty() && fold.covered_ns == 0) continue;  // one that ends after its step is an operation too
    ++all;
    bulk += ViewOf(layout, rank, fold, OwnMode::kBulk).cut_gaps >= parameters.gaps ? 1 : 0;
  }
  if (2 * all > looked_at) return 2 * bulk > all ? OwnMode::kBulk : OwnMode::kAll;
  return 2 * forward > looked_at ? OwnMode::kForward : OwnMode::kNone;
}

std::optional<OwnView> MakeView(const Layout& layout, int rank, const StepFold& fold, OwnMode mode) {
  if (TooBroken(fold, mode)) return std::nullopt;
  const OwnView own = ViewOf(layout, rank, fold, mode);
  return own.cut + own.rest > 0 ? std::optional(own) : std::nullopt;
}

PeerViews ComparePeers(std::vector<OwnView> views, OwnMode mode) {
  MakeUpForLostGaps(views);
  for (OwnView& own : views) own.cut = std::max(1.0, own.cut + own.rest);
  PeerViews peers;
  std::vector<double> cuts = ValuesOf(views, [](const OwnView& own) { return own.cut; });
  std::vector<double> fulls = ValuesOf(views, [](const OwnView& own) { return own.full; });
  peers.cut_of_others = MedianOfOthers(cuts);
  peers.full_of_others = MedianOfOthers(fulls);
  peers.cut_ns = peers.cut_of_others.of_all();
  peers.full_ns = peers.full_of_others.of_all();
  // The ends of the step alone prove something only if they are a good part of it.
  if (mode == OwnMode::kAll && peers.full_ns < parameters.least_ends * peers.cut_ns) peers.full_ns = 0;
  if (mode == OwnMode::kAll && peers.full_ns > 0) FindCertain(peers.cut_of_others, views);
  peers.tokens = MedianOf(views, [](const OwnView& own) { return own.tokens; });
  peers.tail_ns = MedianOf(views, [](const OwnView& own) { return static_cast<double>(own.fold->tail_ns); });
  if (!views.empty() && views[0].fold->device_busy_ns > 0) {  // marks never tell
    peers.busy_ns = MedianOf(views, [](const OwnView& own) { return static_cast<double>(own.fold->device_busy_ns); });
  }
  std::vector<double> cpu_waits;
  for (const OwnView& own : views) {
    if (own.fold->cpu_wait_ns > 0) cpu_waits.push_back(static_cast<double>(own.fold->cpu_wait_ns));
  }
  if (cpu_waits.size() > std::max<size_t>(1, views.size() / 2)) peers.cpu_wait_of_others.emplace(cpu_waits);
  peers.views = std::move(views);
  return peers;
}

Deviation DeviationOf(const PeerViews& peers, size_t index, OwnMode mode) {
  const OwnView& own = peers.views[index];
  const double cut_ns = peers.cut_of_others.Without(own.cut);
  const double full_ns = peers.full_of_others.Without(own.full);
  const bool two_views = own.full > 0 && peers.full_ns > 0 && full_ns > 0;
  const double cut = std::log(own.cut / cut_ns);
  double full = two_views ? std::log(own.full / full_ns) : cut;
  if (two_views && own.certain > 0) full = std::max(full, std::log1p(own.certain / cut_ns));
  // Experts that get more tokens work more: that is the routing's doing, as far as the tokens go.
  const double more_tokens = peers.tokens > 0 && own.tokens > peers.tokens ? std::log(own.tokens / peers.tokens) : 0;
  // Gaps between blocking operations are computation, whatever ran beside it.
  const bool shows_full = two_views && mode == OwnMode::kBulk;
  Deviation deviation;
  deviation.judged = std::min(cut, full) - more_tokens;
  deviation.unrest = full;
  deviation.own_ns = shows_full ? own.full : own.cut;
  deviation.reference_ns = shows_full ? full_ns : cut_ns;
  return deviation;
}

}  // namespace taskd::diagnosis
