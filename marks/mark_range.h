// A range of one rank between its first record and its last one (mark_fold.h). Passive data.
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
    kInnerStep,    // a step's within another one's
    kDroppedStep,  // a step of which nothing is folded
    kForward,
    kDataLoader,
    kCheckpoint,
    kOp,
  };

  Kind kind = Kind::kIgnored;
  bool host_ended = false;
  bool device_started = false;
  bool device_ended = false;
  bool over_a_step = false;  // was open already when an earlier step was folded
  uint64_t order = 0;        // of the start among all starts
  uint64_t losses = 0;       // calls of MarkFold::Lost() before its start
  uint64_t host_start_ns = 0;
  uint64_t host_end_ns = 0;
  uint64_t device_start_ns = 0;
  uint64_t device_end_ns = 0;
  uint64_t step_serial = 0;  // of the step in which it was issued
  // Of operations only.
  uint32_t group = 0;
  CommOp op = CommOp::kOther;
  uint8_t size_log2 = 0;
  int32_t peer = -1;
  uint32_t number = 0;
  uint64_t bytes = 0;

  bool is_whole_on_device() const { return device_started && device_ended; }
  // By the device's stamps where it has both.
  uint64_t start_ns() const { return is_whole_on_device() ? device_start_ns : host_start_ns; }
  uint64_t end_ns() const { return std::max(is_whole_on_device() ? device_end_ns : host_end_ns, start_ns()); }
};

// An operation's, without its end.
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

// The same, of a complete one.
inline TimedOp OpOf(const MarkRange& range) {
  TimedOp op = BegunOpOf(range);
  op.device = range.is_whole_on_device();
  if (op.device) op.start_ns = range.device_start_ns;
  op.end_ns = std::max(op.device ? range.device_end_ns : range.host_end_ns, op.start_ns);
  if (op.start_ns > range.host_start_ns) op.issue_ns = op.start_ns - range.host_start_ns;
  return op;
}

}  // namespace taskd
