// The ranges of one rank that are in no folded step yet: those that wait for records, and the complete ones. Whoever
// folds a step takes what belongs to its period (mark_fold.h, step_cutter.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "marks/fold_groups.h"
#include "marks/loss_log.h"
#include "marks/mark_range.h"
#include "marks/step_cutter.h"
#include "marks/step_fold.h"

namespace taskd {

// Not thread-safe. What has to be left out or cannot be right is a loss.
class RankRanges {
 public:
  using Map = absl::flat_hash_map<uint64_t, MarkRange>;

  struct Period {
    uint64_t begin_ns;
    uint64_t end_ns;
    uint64_t serial;  // of the step that it is folded into
  };
  // What is known of all ranges.
  struct Facts {
    bool device;      // device records come
    uint64_t losses;  // calls of MarkFold::Lost()
  };

  // Both outlive this.
  RankRanges(const FoldGroups* groups, LossLog* losses) : groups_(*groups), losses_(*losses) {}

  // Open ones, by the id of their records. One that begins again replaces its predecessor. `step`: the open step's,
  // which is not forgotten when there are too many.
  void Begin(uint64_t id, const MarkRange& range, std::optional<uint64_t> step) {
    if (open_.size() >= kMaxOpen) ForgetOld(step);
    auto [at, added] = open_.try_emplace(id, range);
    if (!added) Replace(at->second, range);
  }
  Map& open() { return open_; }
  void EraseEnded();

  // An operation, or another range that counts; any other is left out.
  void Complete(const MarkRange& range) {
    if (range.kind != MarkRange::Kind::kOp || ops_.size() >= kMaxBufferedOps) return CompleteOther(range);
    ops_.emplace_back() = OpOf(range);
  }
  void ClearComplete();
  void Clear();

  // The operations that end in the period, and what covers a part of it but ends later. Valid until the next call.
  const std::vector<TimedOp>& TakeOps(const Period& period, const Facts& facts);
  // Some of the last period's had no device records, when others had.
  bool has_lost_ops() const { return !lost_ops_.empty(); }
  // The sums of all others that end in the period, which `cutter` has cut.
  void TakeOthers(const Period& period, const StepCutter& cutter, StepFold& fold);

 private:
  struct HostRange {
    MarkRange::Kind kind;
    uint64_t start_ns;
    uint64_t end_ns;
  };

  // A device runs behind its host by up to a step or two of operations.
  static constexpr size_t kMaxOpen = 1 << 16;
  static constexpr size_t kMaxBufferedOps = 1 << 17;

  void Replace(MarkRange& old, const MarkRange& range);
  void CompleteOther(const MarkRange& range);
  void ForgetOld(std::optional<uint64_t> step);
  void TakeCompleteOps(const Period& period);
  bool TakeOpen(MarkRange& range, const Period& period, const Facts& facts);
  bool TakeHostOp(MarkRange& range, const Period& period, const Facts& facts);
  bool IsOvertaken(const TimedOp& op);
  void CompleteLate(const MarkRange& range, const Period& period);
  void NoteLostOps();

  const FoldGroups& groups_;
  LossLog& losses_;
  Map open_;
  std::vector<TimedOp> ops_;  // complete
  std::vector<HostRange> others_;

  // Of one period; members so that their memory is kept.
  std::vector<TimedOp> work_;
  std::vector<uint64_t> lost_ops_;                       // host starts
  absl::flat_hash_map<uint64_t, uint64_t> last_starts_;  // of the period's operations, by link
  bool last_starts_known_ = false;
};

}  // namespace taskd
