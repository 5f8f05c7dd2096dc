// Jobs that have ended: the last answers of their managers, <runtime folder>/ended/<unix ns>-<pid>, mode 0600. So this user's
// tools on the manager's machine can ask after such a job. They are gone when the machine starts again.
//
// Kept are the newest kMostEndedJobs of at most kEndedJobDays days, together at most kEndedJobBytes.
//
// Thread safety: the functions may be called from any thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "taskd/v1/ended_job.pb.h"

namespace taskd::proto {

inline constexpr size_t kMostEndedJobs = 20;
inline constexpr int kEndedJobDays = 14;
inline constexpr int64_t kEndedJobBytes = int64_t{64} << 20;

// Keeps the job, and removes those that are then too old, too many or too large. Of a job that is too large itself the ranks
// are left out. INVALID_ARGUMENT: the runtime folder breaks its rule (common/runtime_dir.h). UNAVAILABLE: path and reason.
absl::Status KeepEndedJob(v1::EndedJob job);

struct KeptJob {
  std::string path;
  v1::EndedJob job;
};

// Those of this user on this machine, the newest first. What no manager of this user writes is skipped.
std::vector<KeptJob> ListEndedJobs();

// Removes what is kept of the job, and not its mark files. UNAVAILABLE: path and reason.
absl::Status RemoveEndedJob(const KeptJob& job);

// The folder with the ranks' folders of marks, as the first node has it. Empty: there are no mark files.
std::string MarkFolderOf(const v1::JobStatus& status);

}  // namespace taskd::proto
