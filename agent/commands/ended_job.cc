#include "agent/commands/ended_job.h"

#include <algorithm>
#include <ctime>
#include <filesystem>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/printable.h"
#include "proto/ended_jobs.h"

namespace taskd::commands {
namespace {

std::string Ago(int64_t seconds) {
  constexpr std::pair<int64_t, const char*> kUnits[] = {{86'400, "day"}, {3600, "hour"}, {60, "minute"}};
  for (const auto& [length, name] : kUnits) {
    const int64_t count = seconds / length;
    if (count > 0) return absl::StrCat(count, " ", name, count == 1 ? "" : "s", " ago");
  }
  return absl::StrCat(std::max<int64_t>(seconds, 0), " s ago");
}

}  // namespace

std::string HowItEnded(const v1::EndedJob& job, int64_t now_unix_s) {
  std::string how = absl::StrCat("ended ", Ago(now_unix_s - job.ended_unix_s()));
  if (job.lost_launcher()) absl::StrAppend(&how, ", its launcher was lost");
  if (job.has_exit_code()) absl::StrAppend(&how, ", exit ", job.exit_code());
  return how;
}

absl::StatusOr<std::string> CheckMarkFolder(const std::string& folder) {
  std::error_code error;
  if (!folder.empty() && std::filesystem::exists(folder, error)) return folder;
  return absl::InvalidArgumentError("this job has left no mark files here; --from names what a profiler wrote");
}

bool HasEndedSince(const std::string& job, int64_t unix_s) {
  const std::vector<proto::KeptJob> jobs = proto::ListEndedJobs();
  return std::any_of(jobs.begin(), jobs.end(), [&](const proto::KeptJob& one) {
    return one.job.job() == job && one.job.ended_unix_s() >= unix_s;
  });
}

std::optional<v1::EndedJob> AskEndedJob(const absl::Status& found_none, const std::string& job, std::ostream& out) {
  if (!absl::IsNotFound(found_none)) return std::nullopt;
  std::vector<proto::KeptJob> jobs = proto::ListEndedJobs();
  if (!job.empty()) std::erase_if(jobs, [&](const proto::KeptJob& one) { return one.job.job() != job; });
  if (jobs.empty()) return std::nullopt;
  v1::EndedJob last = std::move(jobs.front().job);
  out << "job " << Printable(last.job()) << " " << HowItEnded(last, time(nullptr));
  if (!last.mark_folder().empty()) out << "; its marks are in " << Printable(last.mark_folder(), kShownLineBytes);
  if (jobs.size() > 1) out << "; " << jobs.size() - 1 << " ended before it: taskd jobs";
  out << std::endl;
  return last;
}

}  // namespace taskd::commands
