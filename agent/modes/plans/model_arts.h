// What the modes of ModelArts share. Internal to agent/modes.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "agent/modes/plans/platform_modes.h"

namespace taskd::modes {

// A job of more nodes is a mistyped MA_NUM_HOSTS.
inline constexpr int kMaxModelArtsHosts = 100000;

// MA_NUM_HOSTS, 1..kMaxModelArtsHosts.
absl::StatusOr<int> ModelArtsHosts(const ModeInput& input);

// The variable with this node's index: the first of MA_TASK_INDEX, VC_TASK_INDEX and VK_TASK_INDEX that is set;
// "" if none is.
std::string ModelArtsIndexName(const ModeInput& input);

// Its value, 0..hosts-1.
absl::StatusOr<int> ModelArtsIndex(const ModeInput& input, int hosts);

// MA_NUM_GPUS, 0..4096; 1 if it is not set.
absl::StatusOr<int> ModelArtsCards(const ModeInput& input);

// A name that others are made from: MA_VJ_NAME, MA_TASK_NAME. INVALID_ARGUMENT: it is not set, or has a blank, a comma,
// a slash, a colon or a bracket in it, which no host's name has.
absl::StatusOr<std::string> NamePart(const ModeInput& input, const std::string& variable);

// "JOB-TASK-INDEX.JOB".
std::string ModelArtsNodeName(std::string_view job, std::string_view task, int index);

// What came in from outside: MA_* and the index's variables, as far as they are set.
Environment ModelArtsVariables(const ModeInput& input);

// A number below `below` that is the same on every node of a job, and another one for most other jobs.
int NumberOfJob(std::string_view job, int below);

}  // namespace taskd::modes
