// A range of one rank from its first record to its last one (mark_fold.h). This is passive data.
#pragma once

#include <algorithm>
#include <cstdint>

#include "marks/step_cutter.h"
#include "marks/step_fold.h"

namespace taskd {

struct MarkRange {
  enum class Kind : uint8_t {
    kIgnored,
    kStep,
    kInnerStep,    // a step range within another step
    kDroppedStep,  // a step without a summary
    kForward,
    kDataLoader,
    kCheckpoint,
    kOp,
  };

  Kind kind = Kind::kIgnored;
  bool host_ended = false;
  bool device_started = false;
  bool device_ended = false;
  bool over_a_step = false;  // it was open when an earlier step was summarised
  uint64_t order = 0;        // rank of its start among all starts
  uint64_t losses = 0;       // calls of MarkFold::Lost() before its start
  uint64_t host_start_ns = 0;
  uint64_t host_end_ns = 0;
  uint64_t device_start_ns = 0;
  uint64_t device_end_ns = 0;
  uint64_t step_serial = 0;  // serial of the step in which it was issued
  // Only operations have these.
  uint32_t group = 0;
  CommOp op = CommOp::kOther;
  uint8_t size_log2 = 0;
  int32_t peer = -1;
  uint32_t number = 0;
  uint64_t bytes = 0;

  bool is_whole_on_device() const { return device_started && device_ended; }
  // Device stamps are used if there are both.
  uint64_t start_ns() const { return is_whole_on_device() ? device_start_ns : host_start_ns; }
  uint64_t end_ns() const { return std::max(is_whole_on_device() ? device_end_ns : host_end_ns, start_ns()); }
};

// Converts an operation that has no end yet.
inline TimedOp BegunOpOf(const MarkRange& range) {
  return {.start_ns = range.host_start_ns,
          .end_ns = 0,
          .issue_ns = 0,
          .host_start_ns = range.host_start_ns,
          .bytes = range.bytes,
          .step_serial = range.step_serial,
          .group = range.group,
          .peer = range.peer,
          .number = range.number,
          .op = range.op,
          .size_log2 = range.size_log2,
          .device = false,
          .open = false,
          .blocking = false};
}

// Converts a complete operation.
inline TimedOp OpOf(const MarkRange& range) {
  TimedOp op = BegunOpOf(range);
  op.device = range.is_whole_on_device();
  if (op.device) op.start_ns = range.device_start_ns;
  op.end_ns = std::max(op.device ? range.device_end_ns : range.host_end_ns, op.start_ns);
  if (op.start_ns > range.host_start_ns) op.issue_ns = op.start_ns - range.host_start_ns;
  return op;
}

}  // namespace taskd
