// Folds the marks of one rank into one StepFold a step: matched ranges, own time, waits, in one pass and bounded
// memory. The proxy runs it on what it drains, `taskd diagnose --from` on mark files.
//
// Records come in the order of the files: host records by time; device records of a range at any time after its start.
// A range with device records counts by those, and then a step is folded when the next one has ended, since the device
// runs behind; without device records it is folded as soon as it ends.
//
// Tolerated and counted (StepFold::broken): ends without start, ranges that never end, missing device records, steps
// that are left out or begin again, bytes lost in the ring (Lost). A gap in which something was lost counts nowhere.
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
  // Called with each folded step, in the order of their ends. The fold may be moved from.
  using Sink = std::function<void(StepFold&&)>;

  explicit MarkFold(Sink sink);
  ~MarkFold();
  MarkFold(const MarkFold&) = delete;
  MarkFold& operator=(const MarkFold&) = delete;

  void Add(const MarkRecord& record);
  // Records were lost at about here (0: unknown how many).
  void Lost(uint64_t records);
  // The contents of parallel_group.json. Groups not yet seen in marks are kept for when they are.
  void SetGroups(const std::vector<GroupInfo>& groups);
  // No more records come: folds what is complete.
  void Finish();

  // A checkpoint that was saved since the newest step ended.
  const SavedInStep& saved() const;

  // The innermost range that is open: the one that began last. Looks at all open ones.
  OpenPhase open() const;

  // Groups by index (OpFold::group). Grows and learns; `groups_version` changes with it.
  const std::vector<GroupInfo>& groups() const;
  uint64_t groups_version() const;
  // Smallest device id in device records, -1 without any. Distinguishes nodes where nothing else does.
  int device_id() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace taskd
