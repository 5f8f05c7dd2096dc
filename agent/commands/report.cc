#include "agent/commands/report.h"

#include <chrono>
#include <filesystem>
#include <iostream>
#include <optional>
#include <string>
#include <system_error>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "agent/commands/control_client.h"
#include "agent/commands/ended_job.h"
#include "agent/commands/folder_diagnosis.h"
#include "agent/commands/folder_ledger.h"
#include "agent/commands/job_flags.h"
#include "agent/commands/output_file.h"
#include "common/realtime.h"
#include "common/utf8.h"
#include "diagnosis/render.h"
#include "proto/channel.h"
#include "readers/diagnose_sources.h"
#include "view/history.h"
#include "view/report_page.h"

namespace taskd::commands {
namespace {

struct ReportOptions {
  JobSource source;
  std::string output = "taskd-report.html";  // "-": stdout
  proto::Security security;
};

struct Report {
  std::string html;
  std::string headline;
};

constexpr std::chrono::milliseconds kReportTimeout{20000};

absl::StatusOr<Report> FromFiles(const ReportOptions& options) {
  view::History history;
  SeenSteps seen(options.source);
  absl::StatusOr<readers::SourcesDiagnosis> diagnosed =
      DiagnoseFolder(options.source, [&](int rank, const StepFold& fold) {
        history.Add(rank, fold, fold.end_ns);
        seen.Add(rank, fold);
      });
  if (!diagnosed.ok()) return diagnosed.status();
  SayChoice("report", *diagnosed);
  view::ReportPage page;
  if (HaveSteps(*diagnosed, seen)) {
    absl::StatusOr<ledger::Report> goodput = LedgerOfFolder(options.source, *diagnosed, seen);
    if (!goodput.ok()) return goodput.status();
    page.goodput = *std::move(goodput);
  }
  page.job = diagnosed->name;
  page.source =
      absl::StrCat(diagnosed->sources.empty() ? "the mark files in " : "the files in ", options.source.from[0]);
  if (options.source.from.size() > 1) absl::StrAppend(&page.source, " and ", options.source.from.size() - 1, " more");
  page.version = TASKD_VERSION;
  page.made_ns = RealtimeNs();
  page.report = std::move(diagnosed->report);
  std::string headline = diagnosis::WriteHeadline(page.report);
  if (diagnosed->hang) {
    page.hang = diagnosed->hang->text;
    page.stacks = diagnosed->hang->frames;
    headline = absl::StrCat("hung: ", page.hang);
  }
  return Report{view::RenderReportPage(page, history), std::move(headline)};
}

absl::StatusOr<Report> FromManager(const ReportOptions& options) {
  absl::StatusOr<ControlClient> client =
      ControlClient::Make(options.source.manager, options.source.job, options.security);
  if (std::optional<v1::EndedJob> ended =
          AskEndedJob(client.status(), options.source.job, options.output == "-" ? std::cerr : std::cout)) {
    v1::ReportPage* page = ended->mutable_report();
    return Report{std::move(*page->mutable_html()), std::move(*page->mutable_headline())};
  }
  if (!client.ok()) return client.status();
  v1::GetReportPageRequest request;
  request.set_job(ValidUtf8(options.source.job));
  v1::ReportPage page;
  grpc::ClientContext context;
  client->SetTimeout(context, kReportTimeout);
  const grpc::Status called = client->stub().GetReportPage(&context, request, &page);
  if (!called.ok()) return absl::UnavailableError(client->Describe(called));
  return Report{std::move(*page.mutable_html()), std::move(*page.mutable_headline())};
}

// INVALID_ARGUMENT: wrong usage, or a folder without marks; any other error: the manager did not answer, or the file
// could not be written, and is as it was.
absl::Status RunReport(const ReportOptions& options) {
  if (options.output.empty()) return absl::InvalidArgumentError("-o: a file is needed, or - for stdout");
  std::error_code error;
  const bool replaces = options.output != "-" && std::filesystem::is_regular_file(options.output, error);
  absl::StatusOr<OutputFile> file = OutputFile::Create(options.output);
  if (!file.ok()) return absl::InvalidArgumentError(absl::StrCat("-o: ", file.status().message()));
  absl::StatusOr<Report> report = options.source.from.empty() ? FromManager(options) : FromFiles(options);
  if (!report.ok()) return report.status();
  absl::Status status = file->Write(report->html);
  if (status.ok()) status = file->Commit();
  if (!status.ok()) return status;
  if (options.output != "-") {
    std::cout << options.output << (replaces ? " (replaced): " : ": ") << Printable(report->headline, kShownLineBytes)
              << "; open it in any browser, or attach it to a ticket" << std::endl;
  }
  return absl::OkStatus();
}

class ReportCommand : public Command {
 public:
  void AddFlags(Flags& flags) override {
    options_.source.AddFlags(flags);
    flags.Add("-o,--output", options_.output, "where it goes, - for stdout")
        .FromEnvironment({"TASKD_OUTPUT"})
        .ShowDefault();
    AddTlsFlags(flags, options_.security);
  }

  absl::StatusOr<bool> Run() override {
    if (absl::Status status = options_.source.Choose(); !status.ok()) return status;
    options_.security.secret = TokenOfEnvironment();
    if (absl::Status status = RunReport(options_); !status.ok()) return status;
    return true;
  }

 private:
  ReportOptions options_;
};

}  // namespace

std::unique_ptr<Command> MakeReportCommand() { return std::make_unique<ReportCommand>(); }

}  // namespace taskd::commands
