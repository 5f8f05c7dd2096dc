// StepFold and GroupInfo as messages, and back. What comes from outside is checked: sizes, ranges, enums.
#pragma once

#include <cstdint>
#include <string_view>

#include "absl/status/statusor.h"
#include "marks/step_fold.h"
#include "taskd/v1/fold.pb.h"

namespace taskd::proto {

// One v1::RankStep.
struct RankFold {
  int rank = 0;
  StepFold fold;
  uint64_t number = 0;
};

void FillFold(int rank, const StepFold& fold, v1::RankStep* message);
// Reads a serialized v1::RankStep. DATA_LOSS: the wire is broken. INVALID_ARGUMENT: a step below 0 or above
// StepFold::kMaxStep, more operations or samples than StepFold allows, an incomplete one, an unknown kind, a group above
// 4,095, or a number out of its range.
absl::StatusOr<RankFold> ReadFold(std::string_view wire);

void FillGroup(const GroupInfo& group, v1::Group* message);
// INVALID_ARGUMENT: incomplete runs, a negative count, names over 512 bytes, over 1,024 runs.
absl::StatusOr<GroupInfo> ReadGroup(const v1::Group& message);

}  // namespace taskd::proto
