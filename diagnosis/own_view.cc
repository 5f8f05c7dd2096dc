#include "diagnosis/own_view.h"

#include <algorithm>
#include <cmath>

#include "diagnosis/stats.h"

namespace taskd::diagnosis {
namespace {

constexpr uint32_t kMinGaps = 4;
constexpr double kMinEnds = 0.5;
constexpr size_t kModeSample = 512;  // ranks

bool TooBroken(const StepFold& fold, OwnMode mode) {
  // Without blocking operations a step is few and long gaps: one that is broken is no data.
  if (mode == OwnMode::kAll) return fold.broken > 0;
  if (mode != OwnMode::kBulk || fold.broken <= 2) return false;
  uint64_t count = 0;
  for (const OpFold& op : fold.ops) count += op.count;
  return fold.broken > 2 + count * 3 / 4;
}

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
    own.rest = static_cast<double>(fold.head_ns + fold.lead_ns + fold.tail_ns) -
               static_cast<double>(fold.dataloader_own_ns + fold.checkpoint_own_ns);
    own.full = own.rest;
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
    bulk += ViewOf(layout, rank, fold, OwnMode::kBulk).cut_gaps >= kMinGaps ? 1 : 0;
  }
  if (2 * all > looked_at) return 2 * bulk > all ? OwnMode::kBulk : OwnMode::kAll;
  return 2 * forward > looked_at ? OwnMode::kForward : OwnMode::kNone;
}

std::vector<std::vector<OwnView>> ViewByClass(const Layout& layout, const std::vector<std::pair<int, StepFold>>& folds,
                                              OwnMode mode, size_t classes) {
  std::vector<std::vector<OwnView>> by_class(classes);
  for (size_t c = 0; c < std::min(classes, layout.classes().size()); ++c) {
    by_class[c].reserve(std::min(folds.size(), layout.classes()[c].size()));
  }
  for (const auto& [rank, fold] : folds) {
    if (TooBroken(fold, mode)) continue;
    const OwnView own = ViewOf(layout, rank, fold, mode);
    if (own.cut + own.rest > 0) by_class[static_cast<size_t>(own.peer_class)].push_back(own);
  }
  return by_class;
}

PeerViews ComparePeers(std::vector<OwnView> views, OwnMode mode) {
  MakeUpForLostGaps(views);
  for (OwnView& own : views) own.cut = std::max(1.0, own.cut + own.rest);
  PeerViews peers;
  std::vector<double> cuts = ValuesOf(views, [](const OwnView& own) { return own.cut; });
  std::vector<double> fulls = ValuesOf(views, [](const OwnView& own) { return own.full; });
  peers.cut_ns = LowerMedian(cuts);
  peers.full_ns = LowerMedian(fulls);
  peers.cut_of_others = MedianOfOthers(cuts);
  peers.full_of_others = MedianOfOthers(fulls);
  // The ends of the step alone prove something only if they are a good part of it.
  if (mode == OwnMode::kAll && peers.full_ns < kMinEnds * peers.cut_ns) peers.full_ns = 0;
  peers.tokens = MedianOf(views, [](const OwnView& own) { return own.tokens; });
  peers.tail_ns = MedianOf(views, [](const OwnView& own) { return static_cast<double>(own.fold->tail_ns); });
  if (!views.empty() && views[0].fold->device_busy_ns > 0) {  // marks never tell
    peers.busy_ns = MedianOf(views, [](const OwnView& own) { return static_cast<double>(own.fold->device_busy_ns); });
  }
  peers.views = std::move(views);
  return peers;
}

Deviation DeviationOf(const PeerViews& peers, size_t index, OwnMode mode) {
  const OwnView& own = peers.views[index];
  const double cut_ns = peers.cut_of_others.Without(own.cut);
  const double full_ns = peers.full_of_others.Without(own.full);
  const bool two_views = own.full > 0 && peers.full_ns > 0 && full_ns > 0;
  const double cut = std::log(own.cut / cut_ns);
  const double full = two_views ? std::log(own.full / full_ns) : cut;
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
