// Summarises the marks of one rank: one StepFold per step with matched ranges, self time and waits, in one pass and
// bounded memory. The proxy feeds it the records of its rings, and `taskd diagnose --from` those of mark files.
//
// Records come in the order of the files: host records by time, device records of a range at any time after its start.
// A range with device records is measured by these. The device runs behind the host, so a step with device records is
// summarised when the next step has ended. A step without device records is summarised as soon as it ends.
//
// These faults are tolerated and counted (StepFold::broken): ends without a start, ranges that never end, missing
// device records, steps that are skipped or begin again, and records lost in the ring (Lost). A gap between operations
// in which records were lost is in none of the sums of gaps.
//
// Not thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "common/rank_report.h"
#include "marks/mark_record.h"
#include "marks/step_fold.h"

namespace taskd {

class MarkFold {
 public:
  // Called with each step summary, in the order of the steps' ends. The summary may be moved from.
  using Sink = std::function<void(StepFold&&)>;

  explicit MarkFold(Sink sink);
  ~MarkFold();
  MarkFold(const MarkFold&) = delete;
  MarkFold& operator=(const MarkFold&) = delete;

  void Add(const MarkRecord& record);
  // Reports that records were lost about here; 0: an unknown number.
  void Lost(uint64_t records);
  // Takes the contents of parallel_group.json. A group that no mark has named yet is kept until one does.
  void SetGroups(const std::vector<GroupInfo>& groups);
  // Ends the input: summarises all complete steps.
  void Finish();

  // Returns the checkpoint saves since the newest step ended.
  const SavedInStep& saved() const;

  // Returns the innermost open range: the one that began last. Takes time linear in the number of open ranges.
  OpenPhase open() const;

  // Returns the groups by index (OpFold::group). Groups are added, and their members may become known; then
  // `groups_version` changes.
  const std::vector<GroupInfo>& groups() const;
  uint64_t groups_version() const;
  // Returns the smallest device id in device records, or -1 if there are none. This distinguishes nodes if nothing else
  // does.
  int device_id() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace taskd
