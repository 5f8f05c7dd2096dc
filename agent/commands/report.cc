#include "agent/commands/report.h"

#include <chrono>
#include <iostream>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "agent/commands/control_client.h"
#include "agent/commands/output_file.h"
#include "agent/commands/progress.h"
#include "common/realtime.h"
#include "common/utf8.h"
#include "diagnosis/diagnose_files.h"
#include "diagnosis/mark_directory.h"
#include "diagnosis/render.h"
#include "proto/channel.h"
#include "view/history.h"
#include "view/report_page.h"

namespace taskd::commands {
namespace {

struct ReportOptions {
  std::string from;     // folder of mark files; empty: ask the manager
  std::string manager;  // HOST:PORT; empty: the only job of this user here, or `job`
  std::string job;      // of a manager: refuses any other job's; of files: the report's name [the folder's]
  std::string output = "taskd-report.html";  // "-": stdout
  proto::Security security;
};

struct Report {
  std::string html;
  std::string headline;
};

constexpr std::chrono::milliseconds kTimeout{20000};

absl::StatusOr<Report> FromFiles(const ReportOptions& options) {
  absl::StatusOr<diagnosis::MarkDirectory> directory = diagnosis::ListMarkDirectory(options.from);
  if (!directory.ok()) return absl::InvalidArgumentError(absl::StrCat("--from: ", directory.status().message()));
  Progress progress;
  view::History history;
  absl::StatusOr<diagnosis::Report> report = diagnosis::DiagnoseFiles(
      *directory, ReadingThreads(), [&](uint64_t done, uint64_t all) { progress.Show("reading marks", done, all); },
      nullptr, [&](int rank, const StepFold& fold) { history.Add(rank, fold, fold.end_ns); });
  progress.Clear();
  if (!report.ok()) return absl::InvalidArgumentError(absl::StrCat("--from: ", report.status().message()));
  view::ReportPage page;
  page.job = options.job.empty() ? directory->task : options.job;
  page.source = absl::StrCat("the mark files in ", options.from);
  page.version = TASKD_VERSION;
  page.made_ns = RealtimeNs();
  page.report = *std::move(report);
  return Report{view::RenderReportPage(page, history), diagnosis::WriteHeadline(page.report)};
}

absl::StatusOr<Report> FromManager(const ReportOptions& options) {
  absl::StatusOr<ControlClient> client = ControlClient::Make(options.manager, options.job, options.security);
  if (!client.ok()) return client.status();
  v1::GetReportPageRequest request;
  request.set_job(ValidUtf8(options.job));
  v1::ReportPage page;
  grpc::ClientContext context;
  client->SetTimeout(context, kTimeout);
  const grpc::Status called = client->stub().GetReportPage(&context, request, &page);
  if (!called.ok()) return absl::UnavailableError(client->Describe(called));
  return Report{std::move(*page.mutable_html()), std::move(*page.mutable_headline())};
}

// INVALID_ARGUMENT: wrong usage, or a folder without marks; any other error: the manager did not answer, or the file
// could not be written, and is as it was.
absl::Status RunReport(const ReportOptions& options) {
  if (options.output.empty()) return absl::InvalidArgumentError("-o: a file is needed, or - for stdout");
  absl::StatusOr<OutputFile> file = OutputFile::Create(options.output);
  if (!file.ok()) return absl::InvalidArgumentError(absl::StrCat("-o: ", file.status().message()));
  absl::StatusOr<Report> report = options.from.empty() ? FromManager(options) : FromFiles(options);
  if (!report.ok()) return report.status();
  absl::Status status = file->Write(report->html);
  if (status.ok()) status = file->Commit();
  if (!status.ok()) return status;
  if (options.output != "-") {
    std::cout << options.output << ": " << Printable(report->headline, kShownLineBytes)
              << "; open it in any browser, or attach it to a ticket" << std::endl;
  }
  return absl::OkStatus();
}

class ReportCommand : public Command {
 public:
  void AddFlags(Flags& flags) override {
    from_ = flags.Add("--from", options_.from, "a task's folder of mark files, instead of a manager");
    manager_ = flags.Add("--manager", options_.manager,
                         "HOST:PORT of the manager [the only job that this user runs on this machine]");
    flags.Add("--job", options_.job,
              "NAMESPACE/NAME; without --manager the job to find, a manager refuses any other one; of files the name");
    flags.Add("-o,--output", options_.output, "where it goes, - for stdout")
        .FromEnvironment({"TASKD_OUTPUT"})
        .ShowDefault();
    flags.Add("--tls-dir", options_.security.tls_dir, "ca.crt, tls.crt, tls.key for mutual TLS");
    flags.Add("--tls-name", options_.security.tls_name, kTlsNameHelp);
  }

  absl::StatusOr<bool> Run() override {
    // In the environment both may stand; a flag wins over them.
    if (manager_->on_command_line()) {
      if (from_->on_command_line()) {
        return absl::InvalidArgumentError("--from and --manager: only one of them can be asked");
      }
      options_.from.clear();
    }
    options_.security.secret = TokenOfEnvironment();
    if (absl::Status status = RunReport(options_); !status.ok()) return status;
    return true;
  }

 private:
  ReportOptions options_;
  std::optional<Flag> from_;
  std::optional<Flag> manager_;
};

}  // namespace

std::unique_ptr<Command> MakeReportCommand() { return std::make_unique<ReportCommand>(); }

}  // namespace taskd::commands
