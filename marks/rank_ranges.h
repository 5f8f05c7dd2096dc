// Holds the ranges of one rank that are in no step summary yet: open ranges, ranges that wait for records, and complete
// ranges. MarkFold takes those that belong to the period of a step (mark_fold.h, step_cutter.h).
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

// A range that is dropped or contradictory is recorded as a loss. Not thread-safe.
class RankRanges {
 public:
  using Map = absl::flat_hash_map<uint64_t, MarkRange>;

  struct Period {
    uint64_t begin_ns;
    uint64_t end_ns;
    uint64_t serial;  // serial of the step to summarise
  };
  // These facts hold for all ranges.
  struct Facts {
    bool device;      // there are device records
    uint64_t losses;  // calls of MarkFold::Lost()
  };

  // `groups` and `losses` must outlive this object.
  RankRanges(const FoldGroups* groups, LossLog* losses) : groups_(*groups), losses_(*losses) {}

  // Adds an open range under the id of its records. It replaces an open range of the same id. If there are too many,
  // old ones are forgotten, but not the range with id `step`, which is that of the open step.
  void Begin(uint64_t id, const MarkRange& range, std::optional<uint64_t> step) {
    if (open_.size() >= kMaxOpen) ForgetOld(step);
    auto [at, added] = open_.try_emplace(id, range);
    if (!added) Replace(at->second, range);
  }
  Map& open() { return open_; }
  void EraseEnded();

  // Stores a complete operation or another range that counts; ignores others.
  void Complete(const MarkRange& range) {
    if (range.kind != MarkRange::Kind::kOp || ops_.size() >= kMaxBufferedOps) return CompleteOther(range);
    ops_.emplace_back() = OpOf(range);
  }
  void ClearComplete();
  void Clear();

  // Takes the operations that end in the period, and copies those that cover a part of it but end later. The result is
  // valid until the next call.
  const std::vector<TimedOp>& TakeOps(const Period& period, const Facts& facts);
  // Returns true if some operations of the last period lacked device records while others had them.
  bool has_lost_ops() const { return !lost_ops_.empty(); }
  // Takes all other ranges that end in the period and adds them to `fold`. `cutter` must have cut this period.
  void TakeOthers(const Period& period, const StepCutter& cutter, StepFold& fold);

 private:
  struct HostRange {
    MarkRange::Kind kind;
    uint64_t start_ns;
    uint64_t end_ns;
  };

  // A device runs behind its host by up to one or two steps of operations.
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

  // These are used within one period; as members they keep their memory.
  std::vector<TimedOp> work_;
  std::vector<uint64_t> lost_ops_;                       // host starts
  absl::flat_hash_map<uint64_t, uint64_t> last_starts_;  // last start of the period's operations, by link
  bool last_starts_known_ = false;
};

}  // namespace taskd
