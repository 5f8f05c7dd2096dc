#include "agent/commands/goodput.h"

#include <chrono>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "agent/commands/control_client.h"
#include "agent/commands/ended_job.h"
#include "agent/commands/folder_diagnosis.h"
#include "agent/commands/folder_ledger.h"
#include "agent/commands/job_flags.h"
#include "common/printable.h"
#include "common/utf8.h"
#include "ledger/kept.h"
#include "ledger/render.h"
#include "proto/channel.h"
#include "readers/diagnose_sources.h"
#include "readers/ledger_files.h"
#include "taskd/v1/ledger.grpc.pb.h"

namespace taskd::commands {
namespace {

struct GoodputOptions {
  JobSource source;
  std::string ledger;     // a folder that attempts share
  std::string state_dir;  // a manager's
  bool json = false;
  int incidents = 10;
  proto::Security security;
};

constexpr std::chrono::milliseconds kAnswerTimeout{5000};

absl::Status Print(const GoodputOptions& options, const ledger::Report& report, const std::string& job) {
  if (options.json) {
    std::cout << ledger::RenderJson(report, job) << std::endl;
  } else {
    std::cout << ledger::RenderText(report, job, static_cast<size_t>(options.incidents)) << std::flush;
  }
  return std::cout ? absl::OkStatus() : absl::UnavailableError("stdout cannot be written");
}

absl::Status FromFiles(const GoodputOptions& options) {
  SeenSteps seen(options.source);
  absl::StatusOr<readers::SourcesDiagnosis> read =
      DiagnoseFolder(options.source, [&](int rank, const StepFold& fold) { seen.Add(rank, fold); });
  if (!read.ok()) return read.status();
  SayChoice("goodput", *read);
  if (!HaveSteps(*read, seen)) return absl::InvalidArgumentError(LacksEverywhere(*read, "no step that has ended"));
  absl::StatusOr<ledger::Report> report = LedgerOfFolder(options.source, *read, seen);
  if (!report.ok()) return report.status();
  return Print(options, *report, read->name);
}

// What managers have kept: as of when they wrote it.
absl::Status FromKept(const GoodputOptions& options) {
  const bool shared = !options.ledger.empty();
  const auto named = [&](const absl::Status& status) {
    return absl::Status(status.code(), absl::StrCat(shared ? "--ledger: " : "--state-dir: ", status.message()));
  };
  std::string note;
  absl::StatusOr<std::vector<readers::LedgerFile>> ledgers =
      shared ? readers::ListLedgers(options.ledger) : readers::ListStateLedgers(options.state_dir, &note);
  if (!ledgers.ok()) return named(ledgers.status());
  if (!note.empty()) std::cerr << "taskd goodput: --state-dir: " << Printable(note) << std::endl;
  absl::StatusOr<ledger::KeptLedger> kept = readers::ChooseLedger(*ledgers, options.source.job);
  if (!kept.ok()) return named(kept.status());
  return Print(options, kept->kept.report, kept->job);
}

// `whose` names in errors whom the answer is of.
absl::Status PrintAnswer(const GoodputOptions& options, const std::string& json, const std::string& whose) {
  std::string job;
  absl::StatusOr<ledger::Report> report = ledger::ReadJson(json, &job);
  if (!report.ok()) return absl::UnavailableError(absl::StrCat(whose, ": ", report.status().message()));
  if (!options.json) return Print(options, *report, job);
  std::cout << json << std::endl;
  return std::cout ? absl::OkStatus() : absl::UnavailableError("stdout cannot be written");
}

absl::Status FromManager(const GoodputOptions& options) {
  absl::StatusOr<ControlClient> client =
      ControlClient::Make(options.source.manager, options.source.job, options.security);
  if (std::optional<v1::EndedJob> ended =
          AskEndedJob(client.status(), options.source.job, options.json ? std::cerr : std::cout)) {
    return PrintAnswer(options, ended->ledger(), ended->job());
  }
  if (!client.ok()) return client.status();
  v1::GetLedgerRequest request;
  request.set_job(ValidUtf8(options.source.job));
  v1::LedgerReply reply;
  grpc::ClientContext context;
  client->SetTimeout(context, kAnswerTimeout);
  const grpc::Status called = v1::Ledger::NewStub(client->channel())->GetLedger(&context, request, &reply);
  if (!called.ok()) return absl::UnavailableError(client->Describe(called));
  return PrintAnswer(options, reply.json(), absl::StrCat("manager ", client->manager()));
}

class GoodputCommand : public Command {
 public:
  void AddFlags(Flags& flags) override {
    options_.source.AddFlags(flags);
    ledger_ = flags.Add("--ledger", options_.ledger, "a folder of ledgers that attempts share, instead of a manager");
    state_dir_ = flags.Add("--state-dir", options_.state_dir, "a manager's state, instead of the manager");
    flags.Add("--json", options_.json, "print one JSON object");
    flags.Add("--incidents", options_.incidents, "how many incidents to list, those first that cost most [10]");
    AddTlsFlags(flags, options_.security);
  }

  absl::StatusOr<bool> Run() override {
    if (absl::Status status = Choose(); !status.ok()) return status;
    if (options_.incidents < 0) {
      return absl::InvalidArgumentError(absl::StrCat("--incidents: ", options_.incidents, " is below 0"));
    }
    options_.security.secret = TokenOfEnvironment();
    const bool kept = !options_.ledger.empty() || !options_.state_dir.empty();
    absl::Status status = kept                           ? FromKept(options_)
                          : options_.source.from.empty() ? FromManager(options_)
                                                         : FromFiles(options_);
    if (!status.ok()) return status;
    return true;
  }

 private:
  // One of the four. What stands in the environment is the job's, and gives way to a flag.
  absl::Status Choose() {
    const bool ledger = ledger_->on_command_line(), state_dir = state_dir_->on_command_line();
    if (!ledger) options_.ledger.clear();
    if (!state_dir) options_.state_dir.clear();
    if (!ledger && !state_dir) return options_.source.Choose();
    if (ledger && state_dir)
      return absl::InvalidArgumentError("--ledger and --state-dir: only one of them can be asked");
    return options_.source.ChooseNone(ledger ? "--ledger" : "--state-dir");
  }

  GoodputOptions options_;
  std::optional<Flag> ledger_, state_dir_;
};

}  // namespace

std::unique_ptr<Command> MakeGoodputCommand() { return std::make_unique<GoodputCommand>(); }

}  // namespace taskd::commands
