// What the profilers of torch_npu and MindSpore sum up of a rank. docs/from-other-tools.md says what of it is used.
//
// Design:
// 1. communication.json has each operation with its begin and length, by step. A step lasts from the last end of the one
//    before to its own last end.
// 2. step_trace_time.csv has what each step was spent on. Computation that did not hide behind communication, against all
//    the time between operations, tells a slow device from one that waits for its host. Alone it gives steps that begin
//    at no time of day, with one operation each.
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

  // communication.json or step_trace_time.csv, as the first byte says.
  void Read(ByteSource& source);
  bool empty() const { return steps_.empty(); }
  bool has_ops() const { return !trace_.events.empty(); }  // else its steps begin at no time of day

  bool is_pipeline() const { return is_pipeline_; }  // as far as its sums say

  // Without ranks, and with groups that only have names.
  TraceRank Take();

 private:
  struct Step {
    uint64_t first_start_ns = 0, last_end_ns = 0;  // of its operations; 0: there are none
    // Of step_trace_time.csv.
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
  TraceRank trace_;  // its events are operations
  std::map<int64_t, Step> steps_;
  std::map<std::string, uint32_t> group_index_;
  std::string device_;  // of the first row
  bool is_pipeline_ = false;
  uint64_t left_out_ = 0, of_other_devices_ = 0;
};

}  // namespace taskd::readers
