#include "marks/rank_ranges.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <utility>

namespace taskd {
namespace {

constexpr size_t kMaxBufferedOthers = 1 << 12;

using Kind = MarkRange::Kind;

// A link is a group, a kind and a peer; operations of any size belong to it.
uint64_t LinkOf(const TimedOp& op) { return KeyOf(op) & ~(uint64_t{0xff} << 32); }

}  // namespace

void RankRanges::Replace(MarkRange& old, const MarkRange& range) {
  if (old.kind != Kind::kIgnored) losses_.AddOne(range.host_start_ns);
  old = range;
}

// Forgets the oldest eighth, whose ends are unlikely to come.
void RankRanges::ForgetOld(std::optional<uint64_t> step) {
  std::vector<uint64_t> orders;
  orders.reserve(open_.size());
  for (const auto& [id, range] : open_) orders.push_back(range.order);
  auto limit = orders.begin() + static_cast<std::ptrdiff_t>(orders.size() / 8);
  std::nth_element(orders.begin(), limit, orders.end());
  absl::erase_if(open_, [&, limit = *limit](const auto& entry) {
    if (entry.second.order >= limit || step == entry.first) return false;
    if (entry.second.kind != Kind::kIgnored) losses_.AddOne(entry.second.host_start_ns);
    return true;
  });
}

void RankRanges::EraseEnded() {
  absl::erase_if(open_, [](const auto& entry) { return entry.second.host_ended; });
}

void RankRanges::ClearComplete() {
  ops_.clear();
  others_.clear();
}

void RankRanges::Clear() {
  open_.clear();
  ClearComplete();
}

void RankRanges::CompleteOther(const MarkRange& range) {
  switch (range.kind) {
    case Kind::kOp:  // ops_ is full
      return losses_.Add(range.start_ns(), range.end_ns(), 1);
    case Kind::kForward:
    case Kind::kDataLoader:
    case Kind::kCheckpoint:
      if (others_.size() >= kMaxBufferedOthers) return losses_.AddOne(range.end_ns());
      others_.push_back({range.kind, range.start_ns(), range.end_ns()});
      return;
    default:
      return;
  }
}

const std::vector<TimedOp>& RankRanges::TakeOps(const Period& period, const Facts& facts) {
  work_.clear();
  lost_ops_.clear();
  last_starts_.clear();
  last_starts_known_ = false;
  TakeCompleteOps(period);
  absl::erase_if(open_, [&](auto& entry) { return TakeOpen(entry.second, period, facts); });
  NoteLostOps();
  for (TimedOp& op : work_) op.blocking = IsPointToPoint(op.op) || groups_.is_blocking(op.group);
  return work_;
}

void RankRanges::TakeCompleteOps(const Period& period) {
  size_t kept = 0;
  for (TimedOp& op : ops_) {
    if (op.end_ns > period.end_ns) {
      if (op.start_ns < period.end_ns) {
        work_.push_back(op);
        work_.back().open = true;
      }
      ops_[kept++] = op;
    } else if (op.end_ns > period.begin_ns) {
      work_.push_back(op);
    }
  }
  ops_.resize(kept);
}

// Returns true if the range is not open any more.
bool RankRanges::TakeOpen(MarkRange& range, const Period& period, const Facts& facts) {
  const bool is_op = range.kind == Kind::kOp;
  const bool host_only = !facts.device || (is_op ? !groups_.is_on_device(range.group) : !range.device_started);
  // The host runs ahead of the step that is summarised. A range without device records is taken by its host time, which
  // may lie in the period of the previous step. By now the records of the next step have come.
  const bool taken_by_time =
      host_only && range.host_ended && range.host_end_ns <= period.end_ns && range.step_serial == period.serial + 1;
  if (range.step_serial > period.serial && !taken_by_time) return false;
  if (!is_op || host_only) {
    if (is_op && !range.host_ended) return TakeHostOp(range, period, facts);
    if (range.host_ended) CompleteLate(range, period);  // it has waited for device records that do not exist
    return range.host_ended;
  }
  // On the device, operations that were issued in this step have ended by the end of the next step.
  if (range.is_whole_on_device()) {
    CompleteLate(range, period);
  } else {
    lost_ops_.push_back(range.host_start_ns);
  }
  return true;
}

// Takes an open operation that has no device records. Returns true if its end was lost.
bool RankRanges::TakeHostOp(MarkRange& range, const Period& period, const Facts& facts) {
  if (range.host_start_ns >= period.end_ns) return false;
  TimedOp op = BegunOpOf(range);
  if (IsOvertaken(op) || range.over_a_step || range.losses != facts.losses) {
    losses_.AddOne(op.start_ns);
    return true;
  }
  range.over_a_step = true;
  op.end_ns = std::numeric_limits<uint64_t>::max();
  op.open = true;
  work_.push_back(op);
  return false;
}

// Operations of one link end in the order of their starts. So an open operation has lost its end if a later one has
// ended.
bool RankRanges::IsOvertaken(const TimedOp& op) {
  if (!std::exchange(last_starts_known_, true)) {
    for (const TimedOp& taken : work_) {
      uint64_t& last = last_starts_[LinkOf(taken)];
      last = std::max(last, taken.open ? 0 : taken.start_ns);
    }
  }
  auto last = last_starts_.find(LinkOf(op));
  return last != last_starts_.end() && last->second > op.start_ns;
}

// Does what Complete() does, while a step is being summarised.
void RankRanges::CompleteLate(const MarkRange& range, const Period& period) {
  const size_t before = ops_.size();
  Complete(range);
  if (range.kind != Kind::kOp || ops_.size() == before) return;
  TimedOp op = ops_.back();
  if (op.start_ns >= period.end_ns) return;
  if (op.end_ns > period.end_ns) {
    op.open = true;
  } else {
    ops_.pop_back();
  }
  if (op.end_ns > period.begin_ns) work_.push_back(op);
}

// An operation without device stamps ran after the operation that was issued before it.
void RankRanges::NoteLostOps() {
  if (lost_ops_.empty()) return;
  std::vector<std::pair<uint64_t, uint64_t>> issued;  // (host start, end)
  issued.reserve(work_.size());
  for (const TimedOp& op : work_) issued.emplace_back(op.host_start_ns, op.end_ns);
  std::sort(issued.begin(), issued.end());
  for (uint64_t host_start_ns : lost_ops_) {
    auto after = std::lower_bound(issued.begin(), issued.end(), std::pair<uint64_t, uint64_t>(host_start_ns, 0));
    losses_.AddOne(after == issued.begin() ? host_start_ns : std::prev(after)->second);
  }
}

void RankRanges::TakeOthers(const Period& period, const StepCutter& cutter, StepFold& fold) {
  size_t kept = 0;
  for (const HostRange& range : others_) {
    if (range.end_ns > period.end_ns) {
      others_[kept++] = range;
      continue;
    }
    if (range.end_ns <= period.begin_ns) continue;
    const uint64_t duration_ns = range.end_ns - range.start_ns;
    const uint64_t own_ns = cutter.UncoveredWithin(std::max(range.start_ns, period.begin_ns), range.end_ns);
    if (range.kind == Kind::kForward) {
      ++fold.forwards;
      fold.forward_ns += duration_ns;
      fold.forward_own_ns += own_ns;
    } else if (range.kind == Kind::kDataLoader) {
      ++fold.dataloaders;
      fold.dataloader_ns += duration_ns;
      fold.dataloader_own_ns += own_ns;
    } else {
      ++fold.checkpoints;
      fold.checkpoint_ns += duration_ns;
      fold.checkpoint_own_ns += own_ns;
    }
  }
  others_.resize(kept);
}

}  // namespace taskd
