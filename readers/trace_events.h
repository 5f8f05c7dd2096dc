// What a profiler's trace shows of one rank that the diagnosis can use: some events, whatever the format.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "diagnosis/rank_place.h"
#include "marks/step_fold.h"

namespace taskd::readers {

// What is kept of a rank's process groups.
inline constexpr size_t kMaxGroups = 1024;
inline constexpr size_t kMaxMembers = size_t{8} * diagnosis::kMaxRanks;  // of all of them
inline constexpr size_t kMaxNameBytes = 512;

struct TraceEvent {
  enum class Kind : uint8_t {
    kStep,           // of a known number
    kDeviceStep,     // the same, from the first to the last kernel that it launched
    kUncountedStep,  // of none: they are counted from 0
    kBoundary,       // ends a step of no number: an optimizer's
    kDeviceOp,       // communication on the device
    kWork,           // communication on the host, from its begin to its end
    kCall,           // the call that asked for communication; it need not wait for it
    kForward,
    kDataLoader,
    kCheckpoint,
  };

  Kind kind = Kind::kStep;
  CommOp op = CommOp::kOther;
  uint32_t group = 0;  // index in TraceRank::groups, of communication
  int32_t peer = -1;   // rank within the group
  int64_t step = 0;
  uint64_t bytes = 0;                 // 0: unknown
  uint64_t call_id = 0;               // of the call and of what it has started on the device; 0: unknown
  uint64_t issue_ns = 0;              // from the call to the begin on the device; 0: unknown
  uint64_t start_ns = 0, end_ns = 0;  // Unix, or since an unknown moment
};

// A kernel that is no communication, or a copy, on the device.
struct KernelRun {
  uint64_t start_ns = 0;
  uint32_t length_ns = 0;
  uint32_t name = 0;  // index in TraceRank::kernel_names
};

struct TraceRank {
  int rank = -1;       // -1: the file does not say
  int world_size = 0;  // 0: the file does not say
  std::string host;    // empty: likewise
  std::vector<GroupInfo> groups;
  // In any order. At most as many as the reader was allowed; then `note` says so.
  std::vector<TraceEvent> events;
  // In any order; none where there were more than the reader was allowed; then `note` says so.
  std::vector<KernelRun> kernels;
  std::vector<std::string> kernel_names;
  // When the host began to compute gradients of something, likewise.
  std::vector<uint64_t> backward_ns;
  // Computation outside communication, by step, where the file sums it up.
  std::map<int64_t, uint64_t> busy_ns;
  uint64_t records = 0;            // events of the file, of any kind
  std::string note;                // what is wrong with the file; empty: nothing
  bool has_several_ranks = false;  // somebody has put the traces of several together
};

// The kind of operation that a library calls so: "all_reduce", "_allgather_base", "ncclDevKernel_AllReduce_Sum_f32".
CommOp OpOfName(std::string_view name);

// "hcom_allReduce__844_0_1@13681369207305868844", as HCCL calls an operation, or without the last part.
struct HcomName {
  std::string_view op;     // "allReduce"
  std::string_view group;  // "13681369207305868844", else its last digits "844"
};
std::optional<HcomName> ReadHcomName(std::string_view name);

}  // namespace taskd::readers
