// The events of a profiler's trace into the folds of its steps: as if the rank had marked them (marks/mark_fold.h).
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "marks/mark_record.h"
#include "marks/step_fold.h"
#include "readers/fold_stream.h"
#include "readers/trace_events.h"

namespace taskd::readers {

// Which events counted as steps.
enum class StepSource : uint8_t { kNone, kNumbered, kCounted, kOptimizer };

// What a kernel took in each step in which it ran.
struct KernelTimes {
  std::string name;
  std::vector<std::pair<int64_t, float>> ms;  // by step, ascending
};

struct FoldedTrace {
  std::deque<StepFold> folds;  // in the order of their ends
  std::vector<GroupInfo> groups;
  StepSource steps = StepSource::kNone;
  bool has_ops = false;
  std::vector<KernelTimes> kernels;  // those that took most
  uint64_t first_ns = UINT64_MAX;    // of the first event that counts, by the trace's own clock; without any as here
};

// Takes the events away. A group of which nothing is known has all of the job's ranks: `world_size`, 0: not known.
FoldedTrace FoldTrace(TraceRank&& trace);

// Takes the events away: the marks that they are folded as, in the order of time. `use` returns whether it wants more.
using UseTraceMark = std::function<bool(const MarkRecord& mark)>;
void UseTraceMarks(TraceRank&& trace, const UseTraceMark& use);

// How far the clock of each rank is ahead of the first one's, in the order of `ranks`: all members of a collective end
// it at about the same moment. Where no collective connects two ranks, by the ends of the steps that both have, else 0.
std::vector<int64_t> ClockOffsetsOf(const std::vector<const FoldedTrace*>& ranks);
// Moves all stamps of the folds back by `offset_ns`.
void ShiftClock(int64_t offset_ns, std::deque<StepFold>& folds);

// Folds that are all there.
class FoldedStream final : public FoldStream {
 public:
  FoldedStream(int rank, FoldedTrace&& trace) : FoldStream(rank), groups_(std::move(trace.groups)) {
    folds_ = std::move(trace.folds);
  }

  void Refill(std::vector<char>&) override {}
  bool runs_low() const override { return false; }
  bool ended() const override { return true; }
  const std::vector<GroupInfo>& groups() const override { return groups_; }
  uint64_t groups_version() const override { return 1; }

 private:
  const std::vector<GroupInfo> groups_;
};

}  // namespace taskd::readers
