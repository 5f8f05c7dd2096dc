// Computes step summaries from the events of a profiler's trace, as if the rank had marked them (marks/mark_fold.h).
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

// The events that counted as steps.
enum class StepSource : uint8_t { kNone, kNumbered, kCounted, kOptimizer };

// The time of a kernel in each step in which it ran.
struct KernelTimes {
  std::string name;
  std::vector<std::pair<int64_t, float>> ms;  // by step, ascending
};

struct FoldedTrace {
  std::deque<StepFold> folds;  // in the order of their ends
  std::vector<GroupInfo> groups;
  StepSource steps = StepSource::kNone;
  bool has_ops = false;
  std::vector<KernelTimes> kernels;  // those with the longest total time
  uint64_t first_ns = UINT64_MAX;    // first event that counts, by the trace's own clock; UINT64_MAX: none
};

// Moves the events out of `trace`. If it has one group without members, these are all of the job's ranks (`world_size`,
// unless it is unknown).
FoldedTrace FoldTrace(TraceRank&& trace);

// Moves the events out, and passes the marks of which their summaries consist to `use` in the order of time. `use`
// returns false to stop.
using UseTraceMark = std::function<bool(const MarkRecord& mark)>;
void UseTraceMarks(TraceRank&& trace, const UseTraceMark& use);

// Returns how far the clock of each rank is ahead of the first rank's, in the order of `ranks`. All members of a
// collective end it at about the same time. If no collective connects two ranks, the ends of their common steps do;
// otherwise 0.
std::vector<int64_t> ClockOffsetsOf(const std::vector<const FoldedTrace*>& ranks);
// Moves all stamps of the step summaries back by `offset_ns`.
void ShiftClock(int64_t offset_ns, std::deque<StepFold>& folds);

// A stream whose step summaries are all available from the start.
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
