// What the diagnosis needs to know of one rank and one step: a few hundred bytes instead of thousands of marks.
//
// Design: every number is a difference of stamps of one clock, the rank's own, or a stamp that is only ever compared
// after the clocks of the nodes were aligned. A fold is additive where it can be (sums and counts), so that a lost mark
// costs one operation and not the step. Times are ns; stamps are Unix time of the rank's node.
//
// How a step is cut up (docs/diagnosis.md has the picture). The period of a step is the time from the end of the step
// before it to its own end. Communication operations cover a part of the period; what they leave uncovered is time
// that the rank spent by itself, its own time. An operation belongs to the step in which it ends.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace taskd {

enum class CommOp : uint8_t {
  kOther = 0,
  kAllReduce = 1,
  kAllGather = 2,
  kReduceScatter = 3,
  kBroadcast = 4,
  kReduce = 5,
  kScatter = 6,
  kGather = 7,
  kAllToAll = 8,
  kSend = 9,
  kRecv = 10,
  kSendRecv = 11,  // one mark for both directions (HcclBatchSendRecv)
  kBarrier = 12,
};
inline constexpr int kCommOps = 13;

inline bool IsPointToPoint(CommOp op) { return op == CommOp::kSend || op == CommOp::kRecv || op == CommOp::kSendRecv; }
// Ends at about the same moment on all members, whoever came last.
inline bool EndsTogether(CommOp op) {
  return op == CommOp::kAllReduce || op == CommOp::kAllGather || op == CommOp::kReduceScatter ||
         op == CommOp::kAllToAll || op == CommOp::kBarrier;
}

// All operations of one step that share group, kind, peer and size.
struct OpFold {
  uint32_t group = 0;  // index in the rank's list of groups, in the order in which their names were first seen
  CommOp op = CommOp::kOther;
  uint8_t size_log2 = 0;  // floor(log2(bytes of one operation)); 0: unknown
  int32_t peer = -1;      // rank within the group of the other end, of a point-to-point operation; -1: none or unknown
  uint32_t count = 0;     // operations that ended in this step
  uint64_t bytes = 0;     // sum over them; 0: unknown
  uint64_t duration_ns = 0;      // sum
  uint64_t min_duration_ns = 0;  // of one
  uint64_t first_start_ns = 0;   // stamp
  uint64_t last_end_ns = 0;      // stamp
  // Own time that ended when one of these operations started: from the latest end of any earlier operation (`gap_ns`),
  // or of any earlier blocking operation (`blocking_gap_ns`; of blocking operations only). The step's first operation,
  // its first blocking operation, and gaps in which marks were lost, are not in them.
  uint32_t gaps = 0;
  uint32_t blocking_gaps = 0;
  uint64_t gap_ns = 0;
  uint64_t max_gap_ns = 0;
  uint64_t blocking_gap_ns = 0;

  friend bool operator==(const OpFold&, const OpFold&) = default;
};

// One operation that ends together on all of its members (EndsTogether), as it was: by those ends the clocks of nodes are
// compared. The same ones are chosen on every member: by their running number within the step, group and kind.
struct OpSample {
  uint16_t group = 0;  // as OpFold::group
  CommOp op = CommOp::kOther;
  uint32_t number = 0;  // of the operations of this group and kind in this step, from 0
  uint64_t start_ns = 0;
  uint64_t end_ns = 0;

  friend bool operator==(const OpSample&, const OpSample&) = default;
};

struct StepFold {
  int64_t step = 0;         // N of "step N", 0 to kMaxStep
  uint32_t process_id = 0;  // of the process that marked it: another one is another life of the rank
  uint64_t start_ns = 0;    // stamps of the step's own range
  uint64_t end_ns = 0;
  // The end of the step before, of the same life: the period is end_ns - previous_end_ns. 0: unknown (first step, or
  // marks were off in between).
  uint64_t previous_end_ns = 0;

  // Sums over the period of the ranges that end in it; 0 and 0 where nothing was marked.
  uint64_t forward_ns = 0;
  uint32_t forwards = 0;
  uint64_t dataloader_ns = 0;
  uint32_t dataloaders = 0;
  uint64_t checkpoint_ns = 0;
  uint32_t checkpoints = 0;

  // Time of the period that communication operations cover (their union), and that blocking operations cover.
  uint64_t covered_ns = 0;
  uint64_t blocking_covered_ns = 0;
  // Of covered_ns, what lies before the last operation's start: behind it a rank may have computed, and from there on it
  // waits.
  uint64_t covered_before_last_ns = 0;
  // Uncovered time from the period's begin to the first operation; between the first operation and the first blocking
  // one; and from the last operation to the period's end. Without any operation the whole period is head.
  uint64_t head_ns = 0;
  uint64_t lead_ns = 0;
  uint64_t tail_ns = 0;
  // Of the forward, dataloader and checkpoint ranges, what lies in uncovered time: the rest hid behind communication.
  uint64_t forward_own_ns = 0;
  uint64_t dataloader_own_ns = 0;
  uint64_t checkpoint_own_ns = 0;

  // Issue latency: device start minus host start of an operation. 0 values: no device records.
  uint32_t issues = 0;
  uint64_t issue_p10_ns = 0;
  uint64_t issue_p50_ns = 0;

  // Of the uncovered time, what the device computed; 0: unknown. Only profilers tell.
  uint64_t device_busy_ns = 0;

  // That the rank could run and others did, by that of its working threads that waited most in the period. 0: unknown; at
  // least 1 where it is known.
  uint64_t cpu_wait_ns = 0;

  // How much work the rank said it has in this step (marks/work_name.h), summed up; 0 and 0: nothing was said.
  double work = 0;
  uint32_t works = 0;      // marks that said it
  uint32_t odd_works = 0;  // of them, those whose number could not be used

  uint32_t broken = 0;    // records of the period that had no counterpart, or that were lost
  bool host_only = true;  // no operation had device stamps

  std::vector<OpFold> ops;        // at most kMaxOps
  std::vector<OpSample> samples;  // at most kMaxSamples

  static constexpr int64_t kMaxStep = INT64_MAX - (int64_t{1} << 32);  // so that one can count on from it
  static constexpr size_t kMaxOps = 40;
  static constexpr size_t kMaxSamples = 16;

  uint64_t period_ns() const { return previous_end_ns != 0 && end_ns > previous_end_ns ? end_ns - previous_end_ns : 0; }

  friend bool operator==(const StepFold&, const StepFold&) = default;
};

// What a step's period was spent on: the four make it up. Communication is what its operations cover; data loader and
// checkpoint are what lies in uncovered time, compute is what is left.
inline constexpr std::array<std::string_view, 4> kStepPhases = {"dataloader", "compute", "communication", "checkpoint"};
using StepPhasesNs = std::array<uint64_t, kStepPhases.size()>;
StepPhasesNs PhasesOf(const StepFold& fold);  // all 0 where the period is unknown

// The members of a process group, as runs of equally spaced global ranks: rank first + i * stride, 0 <= i < count.
struct MemberRun {
  int32_t first = 0;
  int32_t stride = 1;
  int32_t count = 0;

  friend bool operator==(const MemberRun&, const MemberRun&) = default;
};

// A process group as one rank knows it.
struct GroupInfo {
  std::string name;                // as in the marks
  std::string label;               // "tp", "dp", ... from parallel_group.json; empty: unknown
  std::vector<MemberRun> members;  // in the order of ranks within the group; empty: unknown

  friend bool operator==(const GroupInfo&, const GroupInfo&) = default;
};

// A rank waits in a blocking operation before it can compute on: point-to-point, and those of groups labelled tensor,
// context, expert or pipeline parallel. Others may overlap with computation.
bool IsBlocking(CommOp op, const GroupInfo& group);

// Runs of a list of global ranks, in its order, and back. `ExpandMembers` gives at most `limit` of them.
std::vector<MemberRun> CompressMembers(const std::vector<int>& ranks);
std::vector<int> ExpandMembers(const std::vector<MemberRun>& members, size_t limit);

}  // namespace taskd
