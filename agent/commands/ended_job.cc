#include "agent/commands/ended_job.h"

#include <algorithm>
#include <chrono>
#include <ctime>
#include <filesystem>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/job_file.h"
#include "common/printable.h"
#include "proto/ended_jobs.h"

namespace taskd::commands {
namespace {

constexpr int64_t kLastAnswersPatienceS = 3;
constexpr std::chrono::milliseconds kAskAgain{100};

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

std::string MarksThatAreThere(const v1::EndedJob& job) { return CheckMarkFolder(job.mark_folder()).value_or(""); }

absl::StatusOr<std::string> CheckMarkFolder(const std::string& folder) {
  std::error_code error;
  if (!folder.empty() && std::filesystem::exists(folder, error)) return folder;
  return absl::InvalidArgumentError("this job has left no mark files here; --from names what a profiler wrote");
}

bool HasEndedSince(const std::string& job, int64_t unix_s) {
  const std::vector<proto::KeptJob> jobs = proto::ListEndedJobs();
  return std::any_of(jobs.begin(), jobs.end(), [&](const proto::KeptJob& one) {
    return (job.empty() || one.job.job() == job) && one.job.ended_unix_s() >= unix_s;
  });
}

namespace {

// A manager takes its job file away first, and leaves its last answers when all its calls have ended.
void AwaitLastAnswers(const std::string& job) {
  const int64_t changed_unix_s = JobFilesChangedUnixS();
  while (time(nullptr) < changed_unix_s + kLastAnswersPatienceS && !HasEndedSince(job, changed_unix_s)) {
    std::this_thread::sleep_for(kAskAgain);
  }
}

}  // namespace

std::optional<v1::EndedJob> AskEndedSince(int64_t unix_s, const std::string& job, std::ostream& out) {
  AwaitLastAnswers(job);
  if (!HasEndedSince(job, unix_s)) return std::nullopt;
  return AskEndedJob(absl::NotFoundError("its manager has gone"), job, out);
}

std::optional<v1::EndedJob> AskEndedJob(const absl::Status& found_none, const std::string& job, std::ostream& out) {
  if (!absl::IsNotFound(found_none)) return std::nullopt;
  AwaitLastAnswers(job);
  std::vector<proto::KeptJob> jobs = proto::ListEndedJobs();
  if (!job.empty()) std::erase_if(jobs, [&](const proto::KeptJob& one) { return one.job.job() != job; });
  if (jobs.empty()) return std::nullopt;
  v1::EndedJob last = std::move(jobs.front().job);
  out << "job " << Printable(last.job()) << " " << HowItEnded(last, time(nullptr));
  if (const std::string marks = MarksThatAreThere(last); !marks.empty()) {
    out << "; its marks are in " << Printable(marks, kShownLineBytes);
  }
  if (jobs.size() > 1) out << "; " << jobs.size() - 1 << " ended before it: taskd jobs";
  out << std::endl;
  return last;
}

}  // namespace taskd::commands
