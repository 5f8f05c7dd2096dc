#include "marks/step_cutter.h"

#include <algorithm>

namespace taskd {
namespace {

uint64_t Quantile(std::vector<uint64_t>& values, size_t percent) {
  auto at = values.begin() + static_cast<std::ptrdiff_t>((values.size() - 1) * percent / 100);
  std::nth_element(values.begin(), at, values.end());
  return *at;
}

// Returns true if no record was lost in this time.
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

// The fields fit: groups take 10 bits, kinds 4, sizes 6, peers 32.
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

// Keeps at most kMaxOps entries. The entries with the least time join another one of the same group and kind, or are
// dropped.
void StepCutter::KeepLargest(StepFold& fold) {
  if (folds_.size() <= StepFold::kMaxOps) {
    fold.ops.assign(folds_.begin(), folds_.end());
    return;
  }
  std::vector<uint32_t> by_time(folds_.size());
  for (uint32_t i = 0; i < by_time.size(); ++i) by_time[i] = i;
  std::stable_sort(by_time.begin(), by_time.end(),
                   [&](uint32_t a, uint32_t b) { return folds_[a].duration_ns > folds_[b].duration_ns; });
  std::vector<uint32_t> kept(by_time.begin(), by_time.begin() + StepFold::kMaxOps);
  std::sort(kept.begin(), kept.end());
  for (size_t i = StepFold::kMaxOps; i < by_time.size(); ++i) JoinAny(folds_[by_time[i]], kept);
  for (uint32_t k : kept) fold.ops.push_back(folds_[k]);
}

// Joins `small` into one of `kept` of the same group and kind, preferably of the same peer. Without such an entry it is
// dropped.
void StepCutter::JoinAny(const OpFold& small, const std::vector<uint32_t>& kept) {
  OpFold* into = nullptr;
  for (uint32_t k : kept) {
    OpFold& candidate = folds_[k];
    if (candidate.group != small.group || candidate.op != small.op) continue;
    if (into == nullptr || (candidate.peer == small.peer && into->peer != small.peer)) into = &candidate;
  }
  if (into != nullptr) Join(small, *into);
}

// The state of a pass from the period's begin to its end, over operations in the order of their starts.
struct StepCutter::Sweep {
  // The parts of StepFold: before the first operation, from there to the first blocking one, and the rest.
  enum class Part : uint8_t { kHead, kLead, kRest };

  const std::vector<LostSpan>& losses;
  const uint64_t begin_ns;
  const uint64_t end_ns;
  StepFold& fold;
  uint64_t all_end_ns;       // latest end so far of an operation
  uint64_t blocking_end_ns;  // latest end so far of a blocking operation
  Part part = Part::kHead;
};

void StepCutter::Cut(const std::vector<TimedOp>& ops, const std::vector<LostSpan>& losses, uint64_t begin_ns,
                     uint64_t end_ns, StepFold& fold) {
  Reset(ops);
  Sweep sweep{losses, begin_ns, end_ns, fold, begin_ns, begin_ns};
  for (const auto& [start_ns, op_end_ns, index] : order_) TakeOp(ops[index], sweep);
  AddUncovered(sweep.all_end_ns, end_ns);
  if (sweep.part == Sweep::Part::kHead) {
    fold.head_ns = uncovered_ns_;
  } else {
    fold.tail_ns = end_ns - sweep.all_end_ns;
  }
  FoldIssues(fold);
  KeepLargest(fold);
}

void StepCutter::Reset(const std::vector<TimedOp>& ops) {
  order_.clear();
  for (uint32_t i = 0; i < ops.size(); ++i) order_.push_back({ops[i].start_ns, ops[i].end_ns, i});
  std::sort(order_.begin(), order_.end());
  uncovered_begins_.clear();
  uncovered_sums_.clear();
  uncovered_ns_ = 0;
  folds_.clear();
  fold_index_.clear();
  issues_.clear();
}

void StepCutter::TakeOp(const TimedOp& op, Sweep& sweep) {
  OpFold* folded = op.open ? Find(op) : Add(op);
  if (op.device && !op.open) {
    sweep.fold.host_only = false;
    issues_.push_back(op.issue_ns);
  }
  const uint64_t start_ns = std::max(op.start_ns, sweep.begin_ns);
  const uint64_t end_ns = std::min(op.end_ns, sweep.end_ns);
  AddUncovered(sweep.all_end_ns, start_ns);
  if (op.start_ns >= sweep.begin_ns) NoteGaps(op, folded, sweep);
  sweep.fold.covered_before_last_ns = sweep.fold.covered_ns - (std::max(start_ns, sweep.all_end_ns) - start_ns);
  if (end_ns > sweep.all_end_ns) {
    sweep.fold.covered_ns += end_ns - std::max(start_ns, sweep.all_end_ns);
    sweep.all_end_ns = end_ns;
  }
  if (op.blocking && end_ns > sweep.blocking_end_ns) {
    sweep.fold.blocking_covered_ns += end_ns - std::max(start_ns, sweep.blocking_end_ns);
    sweep.blocking_end_ns = end_ns;
  }
}

// Assigns the self time before an operation that starts in the period. Before the first operation it is head, before
// the first blocking one lead; before any other it belongs to that operation's entry.
void StepCutter::NoteGaps(const TimedOp& op, OpFold* folded, Sweep& sweep) {
  bool counts = folded != nullptr;
  if (sweep.part == Sweep::Part::kHead) {
    sweep.part = Sweep::Part::kLead;
    sweep.fold.head_ns = uncovered_ns_;
    counts = false;
  }
  if (op.blocking && sweep.part == Sweep::Part::kLead) {
    sweep.part = Sweep::Part::kRest;
    sweep.fold.lead_ns = uncovered_ns_ - sweep.fold.head_ns;
    counts = false;
  } else if (op.blocking && folded != nullptr && op.start_ns > sweep.blocking_end_ns &&
             IsWhole(sweep.losses, sweep.blocking_end_ns, op.start_ns)) {
    ++folded->blocking_gaps;
    folded->blocking_gap_ns += op.start_ns - sweep.blocking_end_ns;
  }
  if (counts && op.start_ns > sweep.all_end_ns && IsWhole(sweep.losses, sweep.all_end_ns, op.start_ns)) {
    const uint64_t gap_ns = op.start_ns - sweep.all_end_ns;
    ++folded->gaps;
    folded->gap_ns += gap_ns;
    folded->max_gap_ns = std::max(folded->max_gap_ns, gap_ns);
  }
}

void StepCutter::FoldIssues(StepFold& fold) {
  fold.issues = static_cast<uint32_t>(issues_.size());
  if (issues_.empty()) return;
  fold.issue_p10_ns = Quantile(issues_, 10);
  fold.issue_p50_ns = Quantile(issues_, 50);
}

}  // namespace taskd
