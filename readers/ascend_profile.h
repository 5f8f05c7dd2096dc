// The summaries of a rank that the profilers of torch_npu and MindSpore write. docs/from-other-tools.md describes their
// use.
//
// Design:
// 1. communication.json has the begin and length of each operation, by step. A step lasts from the last end of the
//    previous step to its own last end.
// 2. step_trace_time.csv has the time of each step by kind. Exposed computation, compared with all the time between
//    operations, distinguishes a slow device from one that waits for its host. Without communication.json its steps
//    have no absolute times, and one operation each.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "readers/byte_source.h"
#include "readers/trace_events.h"

namespace taskd::readers {

// Not thread-safe.
class AscendProfile {
 public:
  explicit AscendProfile(size_t max_events) : max_events_(max_events) {}

  // Reads communication.json or step_trace_time.csv; the first byte distinguishes them.
  void Read(ByteSource& source);
  bool empty() const { return steps_.empty(); }
  bool has_ops() const { return !trace_.events.empty(); }  // otherwise its steps have no absolute times

  bool is_pipeline() const { return is_pipeline_; }  // as far as its sums show

  // The result has no rank, and its groups have only names.
  TraceRank Take();

 private:
  struct Step {
    uint64_t first_start_ns = 0, last_end_ns = 0;  // of its operations; 0: it has none
    // From step_trace_time.csv.
    uint64_t computing_ns = 0, exposed_ns = 0, communication_ns = 0, free_ns = 0;
  };
  class OpsHandler;
  struct Columns;

  void ReadSums(ByteSource& source);
  void AddSums(const Columns& columns, std::string_view row);
  void AddOp(std::string_view step, std::string_view name, uint64_t start_ns, uint64_t length_ns, uint64_t bytes);
  Step* StepOf(std::string_view text);
  void AddNote(std::string_view note);

  const size_t max_events_;
  TraceRank trace_;  // they are operations
  std::map<int64_t, Step> steps_;
  std::map<std::string, uint32_t> group_index_;
  std::string device_;  // of the first row
  bool is_pipeline_ = false;
  uint64_t left_out_ = 0, of_other_devices_ = 0;
};

}  // namespace taskd::readers
