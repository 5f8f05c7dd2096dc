#include "agent/commands/find_job.h"

#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/address.h"

namespace taskd::commands {

absl::StatusOr<JobFile> FindJob(const std::string& manager, const std::string& job) {
  if (manager.empty()) return ChooseJob(job);
  absl::StatusOr<HostPort> address = ParseHostPort("--manager", manager);
  if (!address.ok()) return address.status();
  std::optional<JobFile> found = JobAt(*address);
  if (found.has_value()) return *std::move(found);
  return absl::NotFoundError(
      absl::StrCat("this user runs no manager at ", manager, " on this machine; ask on its own machine"));
}

}  // namespace taskd::commands
