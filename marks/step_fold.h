// The step summary: a few hundred bytes about one rank and one step for the diagnosis, instead of thousands of marks.
//
// Every duration is a difference of two stamps of the rank's own clock. Stamps are compared with those of other ranks
// only after the clocks of the nodes were aligned. Sums and counts are used where possible, so that a lost mark costs
// one operation and not the step. Times are in ns; stamps are Unix time of the rank's node.
//
// This is how a step is cut up (docs/diagnosis.md has the picture). The period of a step is the time from the end of
// the previous step to its own end. Communication operations cover a part of the period. The uncovered part is the self
// time, which the rank spent by itself. An operation belongs to the step in which it ends.
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
// Such an operation ends at about the same moment on all members, whichever came last.
inline bool EndsTogether(CommOp op) {
  return op == CommOp::kAllReduce || op == CommOp::kAllGather || op == CommOp::kReduceScatter ||
         op == CommOp::kAllToAll || op == CommOp::kBarrier;
}

// All operations of one step that share group, kind, peer and size.
struct OpFold {
  uint32_t group = 0;  // index in the rank's list of groups, in the order in which marks first named them
  CommOp op = CommOp::kOther;
  uint8_t size_log2 = 0;     // floor(log2(bytes of one operation)); 0: unknown
  int32_t peer = -1;         // for point-to-point operations the group rank of the other end; -1: no peer, or unknown
  uint32_t count = 0;        // operations that ended in this step
  uint64_t bytes = 0;        // sum; 0: unknown
  uint64_t duration_ns = 0;  // sum
  uint64_t min_duration_ns = 0;  // the shortest operation
  uint64_t first_start_ns = 0;   // stamp
  uint64_t last_end_ns = 0;      // stamp
  // Self time that ended when one of these operations started. `gap_ns` counts from the latest end of any earlier
  // operation. `blocking_gap_ns` is for blocking operations and counts from the latest end of an earlier blocking one.
  // These sums exclude the step's first operation, its first blocking operation, and gaps in which marks were lost.
  uint32_t gaps = 0;
  uint32_t blocking_gaps = 0;
  uint64_t gap_ns = 0;
  uint64_t max_gap_ns = 0;
  uint64_t blocking_gap_ns = 0;

  friend bool operator==(const OpFold&, const OpFold&) = default;
};

// One operation that ends together on all of its members (EndsTogether). The clocks of nodes are compared by these
// ends. Every member chooses the same operations, by their number within the step, group and kind.
struct OpSample {
  uint16_t group = 0;  // like OpFold::group
  CommOp op = CommOp::kOther;
  uint32_t number = 0;  // counts the operations of this group and kind in this step, from 0
  uint64_t start_ns = 0;
  uint64_t end_ns = 0;

  friend bool operator==(const OpSample&, const OpSample&) = default;
};

struct StepFold {
  int64_t step = 0;         // N of "step N", 0 to kMaxStep
  uint32_t process_id = 0;  // process that made the marks; another one is another incarnation of the rank
  uint64_t start_ns = 0;    // stamps of the step's own range
  uint64_t end_ns = 0;
  // The end of the previous step of the same incarnation: the period is end_ns - previous_end_ns. 0: unknown (this is
  // the first step, or marks were off in between).
  uint64_t previous_end_ns = 0;

  // These are sums over the ranges that end in the period. Both are 0 if there was no mark.
  uint64_t forward_ns = 0;
  uint32_t forwards = 0;
  uint64_t dataloader_ns = 0;
  uint32_t dataloaders = 0;
  uint64_t checkpoint_ns = 0;
  uint32_t checkpoints = 0;

  // The time of the period that communication operations cover (their union), and that blocking operations cover.
  uint64_t covered_ns = 0;
  uint64_t blocking_covered_ns = 0;
  // The part of covered_ns before the start of the last operation. The rank may have computed during that part; from
  // that start on it waits.
  uint64_t covered_before_last_ns = 0;
  // Uncovered time is head before the first operation, lead from there to the first blocking operation, and tail after
  // the last operation. Without any operation the whole period is head.
  uint64_t head_ns = 0;
  uint64_t lead_ns = 0;
  uint64_t tail_ns = 0;
  // The part of the forward, dataloader and checkpoint ranges in uncovered time; the rest overlapped communication.
  uint64_t forward_own_ns = 0;
  uint64_t dataloader_own_ns = 0;
  uint64_t checkpoint_own_ns = 0;

  // The issue latency of an operation is its device start minus its host start. 0 values: there are no device records.
  uint32_t issues = 0;
  uint64_t issue_p10_ns = 0;
  uint64_t issue_p50_ns = 0;

  // The part of the uncovered time in which the device computed; 0: unknown. It comes from profilers only.
  uint64_t device_busy_ns = 0;

  // The time in the period in which the rank was runnable but other processes ran. It is taken from the working thread
  // that waited most. 0: unknown; known values are at least 1.
  uint64_t cpu_wait_ns = 0;

  // The sum of the work that the rank's marks reported for this step (marks/work_name.h); 0 and 0: there was no report.
  double work = 0;
  uint32_t works = 0;      // marks that reported work
  uint32_t odd_works = 0;  // marks among these whose number was unusable

  uint32_t broken = 0;    // records of the period without a counterpart, and lost records
  bool host_only = true;  // no operation had device stamps

  std::vector<OpFold> ops;        // at most kMaxOps
  std::vector<OpSample> samples;  // at most kMaxSamples

  static constexpr int64_t kMaxStep = INT64_MAX - (int64_t{1} << 32);  // leaves room for increments
  static constexpr size_t kMaxOps = 40;
  static constexpr size_t kMaxSamples = 16;

  uint64_t period_ns() const { return previous_end_ns != 0 && end_ns > previous_end_ns ? end_ns - previous_end_ns : 0; }

  friend bool operator==(const StepFold&, const StepFold&) = default;
};

// The phases of a step; their sum is its period. Communication is the covered time. Data loader and checkpoint are
// their parts of the uncovered time, and compute is the rest.
inline constexpr std::array<std::string_view, 4> kStepPhases = {"dataloader", "compute", "communication", "checkpoint"};
using StepPhasesNs = std::array<uint64_t, kStepPhases.size()>;
StepPhasesNs PhasesOf(const StepFold& fold);  // all 0 if the period is unknown

// Some members of a process group: the equally spaced global ranks first + i * stride, 0 <= i < count.
struct MemberRun {
  int32_t first = 0;
  int32_t stride = 1;
  int32_t count = 0;

  friend bool operator==(const MemberRun&, const MemberRun&) = default;
};

// A process group as one rank knows it.
struct GroupInfo {
  std::string name;                // the name in marks
  std::string label;               // "tp", "dp", ... from parallel_group.json; empty: unknown
  std::vector<MemberRun> members;  // in the order of ranks within the group; empty: unknown

  friend bool operator==(const GroupInfo&, const GroupInfo&) = default;
};

// Returns true if a rank has to wait in the operation before it can compute further: point-to-point operations, and
// those of groups labelled tensor, context, expert or pipeline parallel. Other operations may overlap with computation.
bool IsBlocking(CommOp op, const GroupInfo& group);

// Converts a list of global ranks into runs in its order, and back. `ExpandMembers` returns at most `limit` ranks.
std::vector<MemberRun> CompressMembers(const std::vector<int>& ranks);
std::vector<int> ExpandMembers(const std::vector<MemberRun>& members, size_t limit);

}  // namespace taskd
