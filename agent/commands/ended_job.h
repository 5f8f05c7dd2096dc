// A job that has ended, for commands that find no running one.
#pragma once

#include <cstdint>
#include <optional>
#include <ostream>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "taskd/v1/ended_job.pb.h"

namespace taskd::commands {

// Returns this user's last ended job on this machine, or the last one named `job` if that is not empty, and prints a line
// about it to `out`. Nullopt: `found_none`, the status of looking for a running job, is not NOT_FOUND, or there is none.
// A manager whose job file has just gone is waited for, so that the job's last answers are there.
std::optional<v1::EndedJob> AskEndedJob(const absl::Status& found_none, const std::string& job, std::ostream& out);
// The same of `job`, whose manager has answered since `unix_s` and does not any more. Nullopt: it has not ended since then.
std::optional<v1::EndedJob> AskEndedSince(int64_t unix_s, const std::string& job, std::ostream& out);

// Returns the folder of the job's marks. Empty: the job left no marks, or they were removed.
std::string MarksThatAreThere(const v1::EndedJob& job);

// `folder`, of a job's marks. INVALID_ARGUMENT: it is empty or is not there any more.
absl::StatusOr<std::string> CheckMarkFolder(const std::string& folder);

// Whether one with this name, or any if it is empty, is known to have ended since then.
bool HasEndedSince(const std::string& job, int64_t unix_s);

// "ended 12 minutes ago, exit 1", "ended 5 s ago, its launcher was lost"
std::string HowItEnded(const v1::EndedJob& job, int64_t now_unix_s);

}  // namespace taskd::commands
