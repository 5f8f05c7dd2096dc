// Events of a profiler's trace of one rank that the diagnosis can use, independent of the format.
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

// Limits of a rank's process groups.
inline constexpr size_t kMaxGroups = 1024;
inline constexpr size_t kMaxMembers = size_t{8} * diagnosis::kMaxRanks;  // sum over all groups
inline constexpr size_t kMaxNameBytes = 512;

struct TraceEvent {
  enum class Kind : uint8_t {
    kStep,           // with a known number
    kDeviceStep,     // the same on the device, from the first to the last kernel that it launched
    kUncountedStep,  // without a number: such steps are counted from 0
    kBoundary,       // end of a step without a number, by an optimizer
    kDeviceOp,       // communication on the device
    kWork,           // communication on the host, from its begin to its end
    kCall,           // the call that starts communication, with or without waiting for it
    kForward,
    kDataLoader,
    kCheckpoint,
  };

  Kind kind = Kind::kStep;
  CommOp op = CommOp::kOther;
  uint32_t group = 0;  // for communication: index in TraceRank::groups
  int32_t peer = -1;   // rank within the group
  int64_t step = 0;
  uint64_t bytes = 0;                 // 0: unknown
  uint64_t call_id = 0;               // shared by the call and its operation on the device; 0: unknown
  uint64_t issue_ns = 0;              // from the call to the begin on the device; 0: unknown
  uint64_t start_ns = 0, end_ns = 0;  // Unix time, or time since an unknown moment
};

// A kernel on the device that is not communication, or a copy.
struct KernelRun {
  uint64_t start_ns = 0;
  uint32_t length_ns = 0;
  uint32_t name = 0;  // index in TraceRank::kernel_names
};

struct TraceRank {
  int rank = -1;       // -1: not in the file
  int world_size = 0;  // 0: not in the file
  std::string host;    // empty: not in the file
  std::vector<GroupInfo> groups;
  // In any order. If the reader's limit was reached, the rest is missing and `note` says so.
  std::vector<TraceEvent> events;
  // In any order. If the reader's limit was exceeded, it is empty and `note` says so.
  std::vector<KernelRun> kernels;
  std::vector<std::string> kernel_names;
  // Times at which the host began to compute gradients, with the same limit.
  std::vector<uint64_t> backward_ns;
  // Computation outside communication, by step, if the file sums it up.
  std::map<int64_t, uint64_t> busy_ns;
  uint64_t records = 0;            // events of the file, of any kind
  std::string note;                // defects of the file; empty: none
  bool has_several_ranks = false;  // the traces of several ranks were merged into the file
};

// The kind of operation by a library's name: "all_reduce", "_allgather_base", "ncclDevKernel_AllReduce_Sum_f32".
CommOp OpOfName(std::string_view name);

// HCCL's name of an operation: "hcom_allReduce__844_0_1@13681369207305868844", or without the last part.
struct HcomName {
  std::string_view op;     // "allReduce"
  std::string_view group;  // "13681369207305868844", else its last digits "844"
};
std::optional<HcomName> ReadHcomName(std::string_view name);

}  // namespace taskd::readers
