#include "common/step_cutter.h"

#include <algorithm>

namespace taskd {
namespace {

uint64_t Quantile(std::vector<uint64_t>& values, size_t percent) {
  auto at = values.begin() + static_cast<std::ptrdiff_t>((values.size() - 1) * percent / 100);
  std::nth_element(values.begin(), at, values.end());
  return *at;
}

// Whether nothing was lost in this time.
bool IsWhole(const std::vector<LostSpan>& losses, uint64_t begin_ns, uint64_t end_ns) {
  if (losses.empty()) return true;
  auto after = std::upper_bound(losses.begin(), losses.end(), end_ns,
                                [](uint64_t time_ns, const auto& span) { return time_ns < span.first; });
  return after == losses.begin() || std::prev(after)->second < begin_ns;
}

void Join(const OpFold& from, OpFold& into) {
  into.count += from.count;
  into.bytes += from.bytes;
  into.duration_ns += from.duration_ns;
  into.min_duration_ns = std::min(into.min_duration_ns, from.min_duration_ns);
  into.first_start_ns = std::min(into.first_start_ns, from.first_start_ns);
  into.last_end_ns = std::max(into.last_end_ns, from.last_end_ns);
  into.gaps += from.gaps;
  into.gap_ns += from.gap_ns;
  into.max_gap_ns = std::max(into.max_gap_ns, from.max_gap_ns);
  into.blocking_gaps += from.blocking_gaps;
  into.blocking_gap_ns += from.blocking_gap_ns;
}

}  // namespace

// Everything but the size fits: groups take 10 bits, kinds 4, sizes 6, peers 32.
uint64_t KeyOf(const TimedOp& op) {
  return uint64_t{op.group} << 48 | static_cast<uint64_t>(op.op) << 40 | uint64_t{op.size_log2} << 32 |
         static_cast<uint32_t>(op.peer);
}

void StepCutter::AddUncovered(uint64_t begin_ns, uint64_t end_ns) {
  if (end_ns <= begin_ns) return;
  uncovered_begins_.push_back(begin_ns);
  uncovered_sums_.push_back(uncovered_ns_);
  uncovered_ns_ += end_ns - begin_ns;
}

uint64_t StepCutter::UncoveredUntil(uint64_t time_ns) const {
  const auto after = std::upper_bound(uncovered_begins_.begin(), uncovered_begins_.end(), time_ns);
  if (after == uncovered_begins_.begin()) return 0;
  const auto i = static_cast<size_t>(after - uncovered_begins_.begin()) - 1;
  const uint64_t sum_after = i + 1 < uncovered_sums_.size() ? uncovered_sums_[i + 1] : uncovered_ns_;
  return uncovered_sums_[i] + std::min(time_ns - uncovered_begins_[i], sum_after - uncovered_sums_[i]);
}

uint64_t StepCutter::UncoveredWithin(uint64_t begin_ns, uint64_t end_ns) const {
  return end_ns > begin_ns ? UncoveredUntil(end_ns) - UncoveredUntil(begin_ns) : 0;
}

OpFold* StepCutter::Find(const TimedOp& op) {
  auto found = fold_index_.find(KeyOf(op));
  return found == fold_index_.end() ? nullptr : &folds_[found->second];
}

OpFold* StepCutter::Add(const TimedOp& op) {
  auto [at, added] = fold_index_.try_emplace(KeyOf(op), static_cast<uint32_t>(folds_.size()));
  const uint64_t duration_ns = op.end_ns - op.start_ns;
  if (added) {
    OpFold fold;
    fold.group = op.group;
    fold.op = op.op;
    fold.peer = op.peer;
    fold.size_log2 = op.size_log2;
    fold.min_duration_ns = duration_ns;
    fold.first_start_ns = op.start_ns;
    folds_.push_back(fold);
  }
  OpFold& fold = folds_[at->second];
  ++fold.count;
  fold.bytes += op.bytes;
  fold.duration_ns += duration_ns;
  fold.min_duration_ns = std::min(fold.min_duration_ns, duration_ns);
  fold.last_end_ns = std::max(fold.last_end_ns, op.end_ns);
  return &fold;
}

// At most kMaxOps: what takes the least time joins one of the same group and kind, or goes.
void StepCutter::KeepLargest(StepFold& fold) {
  if (folds_.size() > StepFold::kMaxOps) {
    std::vector<uint32_t> by_time(folds_.size());
    for (uint32_t i = 0; i < by_time.size(); ++i) by_time[i] = i;
    std::stable_sort(by_time.begin(), by_time.end(),
                     [&](uint32_t a, uint32_t b) { return folds_[a].duration_ns > folds_[b].duration_ns; });
    std::vector<uint32_t> kept(by_time.begin(), by_time.begin() + StepFold::kMaxOps);
    std::sort(kept.begin(), kept.end());
    for (size_t i = StepFold::kMaxOps; i < by_time.size(); ++i) {
      const OpFold& small = folds_[by_time[i]];
      OpFold* into = nullptr;
      for (uint32_t k : kept) {
        OpFold& candidate = folds_[k];
        if (candidate.group != small.group || candidate.op != small.op) continue;
        if (into == nullptr || (candidate.peer == small.peer && into->peer != small.peer)) into = &candidate;
      }
      if (into != nullptr) Join(small, *into);
    }
    for (uint32_t k : kept) fold.ops.push_back(folds_[k]);
    return;
  }
  fold.ops.assign(folds_.begin(), folds_.end());
}

void StepCutter::Cut(const std::vector<TimedOp>& ops, const std::vector<LostSpan>& losses, uint64_t begin_ns,
                     uint64_t end_ns, StepFold& fold) {
  order_.clear();
  for (uint32_t i = 0; i < ops.size(); ++i) order_.push_back({ops[i].start_ns, ops[i].end_ns, i});
  std::sort(order_.begin(), order_.end());
  uncovered_begins_.clear();
  uncovered_sums_.clear();
  uncovered_ns_ = 0;
  folds_.clear();
  fold_index_.clear();
  issues_.clear();
  uint64_t all_end_ns = begin_ns;       // latest end so far of any operation
  uint64_t blocking_end_ns = begin_ns;  // and of a blocking one
  uint64_t uncovered_at_first_ns = 0;
  bool first = true;
  bool first_blocking = true;
  for (const auto& [sorted_start_ns, sorted_end_ns, index] : order_) {
    const TimedOp& op = ops[index];
    const bool starts_here = op.start_ns >= begin_ns;
    const uint64_t start_ns = std::max(op.start_ns, begin_ns);
    const uint64_t op_end_ns = std::min(op.end_ns, end_ns);
    OpFold* folded = op.open ? Find(op) : Add(op);
    if (op.device && !op.open) {
      fold.host_only = false;
      issues_.push_back(op.issue_ns);
    }

    AddUncovered(all_end_ns, start_ns);
    bool counts = starts_here;  // whether the gap before it is that operation's
    if (starts_here && first) {
      first = false;
      counts = false;
      uncovered_at_first_ns = uncovered_ns_;
      fold.head_ns = uncovered_at_first_ns;
    }
    if (starts_here && op.blocking && first_blocking) {
      first_blocking = false;
      counts = false;
      fold.lead_ns = uncovered_ns_ - uncovered_at_first_ns;
    } else if (starts_here && op.blocking && folded != nullptr && start_ns > blocking_end_ns &&
               IsWhole(losses, blocking_end_ns, start_ns)) {
      ++folded->blocking_gaps;
      folded->blocking_gap_ns += start_ns - blocking_end_ns;
    }
    if (counts && start_ns > all_end_ns && folded != nullptr && IsWhole(losses, all_end_ns, start_ns)) {
      const uint64_t gap_ns = start_ns - all_end_ns;
      ++folded->gaps;
      folded->gap_ns += gap_ns;
      folded->max_gap_ns = std::max(folded->max_gap_ns, gap_ns);
    }
    if (op_end_ns > all_end_ns) {
      fold.covered_ns += op_end_ns - std::max(start_ns, all_end_ns);
      all_end_ns = op_end_ns;
    }
    if (op.blocking && op_end_ns > blocking_end_ns) {
      fold.blocking_covered_ns += op_end_ns - std::max(start_ns, blocking_end_ns);
      blocking_end_ns = op_end_ns;
    }
  }
  AddUncovered(all_end_ns, end_ns);
  if (first) {
    fold.head_ns = uncovered_ns_;
  } else {
    fold.tail_ns = end_ns - all_end_ns;
  }
  fold.issues = static_cast<uint32_t>(issues_.size());
  if (!issues_.empty()) {
    fold.issue_p10_ns = Quantile(issues_, 10);
    fold.issue_p50_ns = Quantile(issues_, 50);
  }
  KeepLargest(fold);
}

}  // namespace taskd
