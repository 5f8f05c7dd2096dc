// A job that has ended, for commands that find no running one.
#pragma once

#include <cstdint>
#include <optional>
#include <ostream>
#include <string>

#include "absl/status/status.h"
#include "taskd/v1/ended_job.pb.h"

namespace taskd::commands {

// This user's last job on this machine, or the last one named `job`, where `found_none` (of ControlClient::Make() or
// ChooseJob()) is NOT_FOUND; else nothing. Says on `out` in one line which it is.
std::optional<v1::EndedJob> AskEndedJob(const absl::Status& found_none, const std::string& job, std::ostream& out);

// "ended 12 minutes ago, exit 1"
std::string HowItEnded(const v1::EndedJob& job, int64_t now_unix_s);

}  // namespace taskd::commands
