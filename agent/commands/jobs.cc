#include "agent/commands/jobs.h"

#include <algorithm>
#include <ctime>
#include <iostream>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "agent/commands/ended_job.h"
#include "common/job_file.h"
#include "common/printable.h"
#include "common/utf8.h"
#include "nlohmann/json.hpp"
#include "proto/ended_jobs.h"

namespace taskd::commands {
namespace {

struct JobsOptions {
  std::string action = "list";
  std::string job;  // to remove: namespace/name, or "all"
  bool json = false;
};

std::string TimeOf(int64_t unix_s) {
  return absl::FormatTime("%Y-%m-%d %H:%M:%S", absl::FromUnixSeconds(unix_s), absl::LocalTimeZone());
}

void PrintJson(const std::vector<JobFile>& running, const std::vector<proto::KeptJob>& ended) {
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  for (const JobFile& job : running) {
    rows.push_back(
        {{"job", job.job}, {"state", "running"}, {"started_unix_s", job.started_unix_s}, {"manager", JobAddress(job)}});
  }
  for (const auto& [path, job] : ended) {
    rows.push_back({{"job", job.job()},
                    {"state", "ended"},
                    {"started_unix_s", job.started_unix_s()},
                    {"ended_unix_s", job.ended_unix_s()},
                    {"exit_code", job.has_exit_code() ? nlohmann::ordered_json(job.exit_code()) : nullptr},
                    {"marks", MarksThatAreThere(job)}});
  }
  std::cout << PrintableJson(rows.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace)) << std::endl;
}

// Those that run, then those that have ended; each part the newest first.
absl::Status List(const JobsOptions& options) {
  absl::StatusOr<std::vector<JobFile>> running = ListJobs();
  if (!running.ok()) return running.status();
  std::reverse(running->begin(), running->end());
  const std::vector<proto::KeptJob> ended = proto::ListEndedJobs();
  if (options.json) {
    PrintJson(*running, ended);
    return absl::OkStatus();
  }
  std::vector<std::vector<std::string>> rows;
  for (const JobFile& job : *running) {
    rows.push_back({job.job.empty() ? "(no job name)" : Printable(job.job),
                    absl::StrCat("since ", TimeOf(job.started_unix_s)),
                    absl::StrCat("running; manager ", JobAddress(job))});
  }
  for (const auto& [path, job] : ended) {
    const std::string marks = MarksThatAreThere(job);
    rows.push_back({Printable(job.job()), absl::StrCat("since ", TimeOf(job.started_unix_s())),
                    absl::StrCat(HowItEnded(job, time(nullptr)), marks.empty() ? "" : "; marks in ",
                                 Printable(marks, kShownLineBytes))});
  }
  size_t width = 0;
  for (const auto& row : rows) width = std::max(width, ColumnsOf(row[0]));
  for (const auto& row : rows) {
    std::cout << row[0] << std::string(width - ColumnsOf(row[0]), ' ') << "  " << row[1] << "  " << row[2] << "\n";
  }
  if (rows.empty()) std::cout << "no job of this user runs on this machine, and none that ended is kept\n";
  std::cout.flush();
  return absl::OkStatus();
}

absl::Status Remove(const std::string& name) {
  int removed = 0;
  for (const proto::KeptJob& one : proto::ListEndedJobs()) {
    if (name != "all" && one.job.job() != FullJobName(name)) continue;
    if (absl::Status status = proto::RemoveEndedJob(one); !status.ok()) return status;
    ++removed;
    const std::string marks = MarksThatAreThere(one.job);
    if (marks.empty()) continue;
    std::cout << "removed what was kept of " << Printable(one.job.job()) << "; its marks stay in "
              << Printable(marks, kShownLineBytes) << "\n";
  }
  if (removed == 0 && name != "all") return absl::NotFoundError(absl::StrCat("no job '", name, "' that ended is kept"));
  std::cout.flush();
  return absl::OkStatus();
}

class JobsCommand : public Command {
 public:
  void AddFlags(Flags& flags) override {
    flags.AddPositional("ACTION", options_.action, "list, or remove what is kept of a job that has ended")
        .ShowDefault();
    flags.AddPositional("JOB", options_.job, "to remove: the name of a job, or all");
    flags.Add("--json", options_.json, "print one JSON array");
  }

  absl::StatusOr<bool> Run() override {
    const bool removes = options_.action == "remove";
    if (!removes && options_.action != "list") {
      return absl::InvalidArgumentError(absl::StrCat("'", options_.action, "' is not list or remove"));
    }
    if (removes == options_.job.empty()) {
      return absl::InvalidArgumentError(removes ? "remove: the name of a job, or all, is needed"
                                                : absl::StrCat("list takes no job, not '", options_.job, "'"));
    }
    if (absl::Status status = removes ? Remove(options_.job) : List(options_); !status.ok()) return status;
    return true;
  }

 private:
  JobsOptions options_;
};

}  // namespace

std::unique_ptr<Command> MakeJobsCommand() { return std::make_unique<JobsCommand>(); }

}  // namespace taskd::commands
