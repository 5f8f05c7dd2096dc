// StepFold and GroupInfo as messages, and back. What comes from outside is checked: sizes, ranges, enums.
#pragma once

#include "absl/status/statusor.h"
#include "marks/step_fold.h"
#include "taskd/v1/fold.pb.h"

namespace taskd::proto {

void FillFold(int rank, const StepFold& fold, v1::RankStep* message);
// INVALID_ARGUMENT: a step below 0 or above StepFold::kMaxStep, more operations or samples than StepFold allows, an
// incomplete one, an unknown kind, a group above 4,095, or a number out of its range.
absl::StatusOr<StepFold> ReadFold(const v1::RankStep& message);

void FillGroup(const GroupInfo& group, v1::Group* message);
// INVALID_ARGUMENT: incomplete runs, a negative count, names over 512 bytes, over 1,024 runs.
absl::StatusOr<GroupInfo> ReadGroup(const v1::Group& message);

}  // namespace taskd::proto
