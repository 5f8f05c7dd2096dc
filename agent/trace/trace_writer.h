// Marks as a timeline in the Trace Event Format (object form) that Perfetto and chrome://tracing open.
//
// Design:
// 1. A rank is a process (pid = rank), a track is a thread: one for each kind of mark, of communication one for each
//    group, and of what the device stamped one for each kind, group and stream.
// 2. A range is written when it ends, so memory grows with what is open and not with the marks.
// 3. Viewers drop a range that overlaps another one on its thread without lying within it. Such a range goes to a
//    further thread of its track, a lane.
// 4. Perfetto reads a time as a double of microseconds, multiplies by 1000 and cuts: a time is written so that this
//    gives the very ns, else ranges that touch would overlap. It also knows the names of threads by the tid alone:
//    tids are unique in the file, and none is a pid.
//
// Not thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "agent/trace/trace_lanes.h"
#include "marks/mark_record.h"
#include "marks/step_fold.h"

namespace taskd::trace {

// Unix ns by the rank's own clock.
struct TraceWindow {
  uint64_t first_ns = 0;
  uint64_t last_ns = UINT64_MAX;
};

// A range over the rank's steps first_step to last_step, on a track "verdict". Left out where none of them was seen.
struct TraceSpan {
  std::string name;
  std::string args;  // members of a JSON object, without its braces
  int64_t first_step = 0, last_step = 0;
};

struct TraceRank {
  int rank = 0;
  std::string name;               // of the process
  int sort_index = 0;             // its place among the processes
  int64_t clock_offset_ns = 0;    // how far its clock is ahead of the reference
  std::vector<GroupInfo> groups;  // for labels and global ranks of peers; may lack any
  // Ranges that overlap one of these are written, whole; empty: all.
  std::vector<TraceWindow> windows;
  std::vector<TraceSpan> spans;
};

class TraceWriter {
 public:
  using Write = std::function<absl::Status(std::string_view)>;

  // Times are relative to `base_ns` (Unix, the reference clock); what lies before it is moved there.
  TraceWriter(uint64_t base_ns, Write write);
  ~TraceWriter();
  TraceWriter(const TraceWriter&) = delete;
  TraceWriter& operator=(const TraceWriter&) = delete;

  // The marks of one rank, in the order of its files, between BeginRank and EndRank. Ranges that are open at the end
  // are written up to the last stamp of their process, with "open":true.
  void BeginRank(TraceRank rank);
  void Add(const MarkRecord& record);
  // A line over the whole timeline, attached to the present rank. `time_ns`: Unix, the reference clock.
  void GlobalInstant(std::string_view name, std::string_view args, uint64_t time_ns);
  void EndRank();

  // Ends the file; `other_data` has more members of the object "otherData", or is empty.
  absl::Status Finish(std::string_view other_data);

  // The first error of `write`; nothing is written after it.
  const absl::Status& status() const;
  uint64_t events() const;     // ranges and instants written, without metadata
  uint64_t unmatched() const;  // ends without start, device records of an unknown range
  uint64_t left_out() const;   // ranges beyond TraceLanes::kMax on one track

  // Of one rank: ranges open at a time, and names kept for device records that run behind.
  static constexpr size_t kMaxOpen = 65536;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

// `text` as a JSON string with its quotes; invalid UTF-8 becomes U+FFFD.
std::string JsonString(std::string_view text);

// Appends ns as microseconds, see Design 4.
void AppendMicroseconds(uint64_t ns, std::string& out);

}  // namespace taskd::trace
