#include "agent/commands/diagnose.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <ctime>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "agent/commands/control_client.h"
#include "agent/commands/ended_job.h"
#include "agent/commands/folder_diagnosis.h"
#include "agent/commands/job_flags.h"
#include "common/printable.h"
#include "common/utf8.h"
#include "diagnosis/rank_place.h"
#include "diagnosis/rank_trace.h"
#include "diagnosis/render.h"
#include "proto/channel.h"
#include "proto/diagnosis_messages.h"
#include "readers/diagnose_sources.h"
#include "readers/render_sources.h"
#include "taskd/v1/diagnosis.grpc.pb.h"

namespace taskd::commands {
namespace {

struct DiagnoseOptions {
  JobSource source;
  bool json = false;   // one object a line
  bool watch = false;  // of a manager: each new report, until the job has ended, or SIGINT or SIGTERM came
  double wait_s = 0;   // of a manager: for an answer, at most kMaxWaitS
  int why = -1;        // only what was decided of this rank; -1: the report
  proto::Security security;
};

constexpr std::chrono::milliseconds kCallTimeout{5000}, kPause{500};
constexpr double kMaxWaitS = 7 * 86400;

absl::Status Print(const std::string& text) {
  std::cout << text << std::flush;
  return std::cout ? absl::OkStatus() : absl::UnavailableError("stdout cannot be written");
}

// For what is said beside the answer.
std::ostream& Notes(const DiagnoseOptions& options) { return options.json ? std::cerr : std::cout; }

absl::Status FromFiles(const DiagnoseOptions& options) {
  absl::StatusOr<readers::SourcesDiagnosis> diagnosed = DiagnoseFolder(options.source);
  if (!diagnosed.ok()) return diagnosed.status();
  SayChoice("diagnose", *diagnosed);
  const std::string& job = diagnosed->name;
  return Print(options.json ? readers::RenderJson(*diagnosed, job) + "\n" : readers::RenderText(*diagnosed, job));
}

absl::Status PrintTrace(const DiagnoseOptions& options, const absl::StatusOr<diagnosis::RankTrace>& trace) {
  if (!trace.ok()) return absl::InvalidArgumentError(absl::StrCat("--why: ", trace.status().message()));
  return Print(options.json ? RenderTraceJson(*trace) + "\n" : RenderTraceText(*trace));
}

// Asks the steps of mark files first and then the other sources. The first that knows the rank answers.
absl::Status WhyFromFiles(const DiagnoseOptions& options) {
  std::optional<absl::StatusOr<diagnosis::RankTrace>> trace;
  const auto ask = [&](const diagnosis::Engine& engine) {
    if (!trace || !trace->ok()) trace = engine.Why(options.why);
  };
  const absl::StatusOr<readers::SourcesDiagnosis> diagnosed = DiagnoseFolder(options.source, nullptr, ask);
  if (!diagnosed.ok()) return diagnosed.status();
  SayChoice("diagnose", *diagnosed);
  if (!trace) return absl::InvalidArgumentError(LacksEverywhere(*diagnosed, "no step"));
  return PrintTrace(options, *trace);
}

absl::Status WhyFromManager(const DiagnoseOptions& options) {
  absl::StatusOr<ControlClient> client =
      ControlClient::Make(options.source.manager, options.source.job, options.security);
  if (const std::optional<v1::EndedJob> ended = AskEndedJob(client.status(), options.source.job, Notes(options))) {
    absl::StatusOr<std::string> folder = CheckMarkFolder(ended->mark_folder());
    if (!folder.ok()) return folder.status();
    DiagnoseOptions left = options;
    left.source.from = {*std::move(folder)};
    return WhyFromFiles(left);
  }
  if (!client.ok()) return client.status();
  v1::WhyRequest request;
  request.set_job(ValidUtf8(options.source.job));
  request.set_rank(options.why);
  v1::RankTrace message;
  grpc::ClientContext context;
  client->SetTimeout(context, kCallTimeout);
  const grpc::Status called = v1::Diagnosis::NewStub(client->channel())->Why(&context, request, &message);
  if (called.error_code() == grpc::StatusCode::OUT_OF_RANGE) {
    return PrintTrace(options, absl::NotFoundError(Printable(called.error_message())));
  }
  if (!called.ok()) return absl::UnavailableError(client->Describe(called));
  const absl::StatusOr<diagnosis::RankTrace> trace = proto::ReadTrace(message);
  if (!trace.ok()) {
    return absl::UnavailableError(absl::StrCat("manager ", client->manager(), ": ", trace.status().message()));
  }
  return PrintTrace(options, trace);
}

// "0, 2, 5-9 and 3 more"
std::vector<int> RanksOf(const std::string& ranges) {
  std::vector<int> ranks;
  const std::vector<std::string> parts = absl::StrSplit(ranges.substr(0, ranges.find(" and ")), ", ");
  for (const std::string& part : parts) {
    const std::pair<std::string, std::string> ends = absl::StrSplit(part, absl::MaxSplits('-', 1));
    int first = 0, last = 0;
    if (!absl::SimpleAtoi(ends.first, &first)) continue;
    if (!absl::SimpleAtoi(ends.second, &last)) last = first;
    for (int rank = first; rank <= std::min(last, diagnosis::kMaxRanks); ++rank) ranks.push_back(rank);
  }
  return ranks;
}

// A live hang, to be rendered as one from files.
readers::SourcesDiagnosis HungJob(diagnosis::Report report, const v1::HangEvidence& message) {
  readers::SourcesDiagnosis hung;
  hung.report = std::move(report);
  diagnosis::Hang& hang = hung.hang.emplace();
  hang.origins.assign(message.origins().begin(), message.origins().end());
  hang.kind = message.kind();
  hang.group = message.group();
  hang.operation = message.operation();
  hang.since_ns = message.since_ns();
  hang.waiting = RanksOf(message.waiting());
  hang.frames = absl::StrJoin(message.frames(), "\n");
  hang.text = std::string(absl::StripPrefix(message.text(), "hang: "));  // the state says it
  for (const std::string& note : message.notes()) {
    hung.report.notes.push_back({diagnosis::NoteKind::kNoData, note});
  }
  for (const v1::EvidenceSource& source : message.sources()) {
    hung.sources.push_back(
        {source.path(), readers::FormatNamed(source.format()), source.rank(), source.records(), source.note()});
  }
  return hung;
}

absl::Status PrintMessage(const DiagnoseOptions& options, const std::string& manager,
                          const v1::DiagnosisReport& message) {
  absl::StatusOr<diagnosis::Report> report = proto::ReadReport(message);
  if (!report.ok()) return absl::UnavailableError(absl::StrCat("manager ", manager, ": ", report.status().message()));
  if (message.has_hang()) {
    const readers::SourcesDiagnosis hung = HungJob(*std::move(report), message.hang());
    return Print(options.json ? readers::RenderJson(hung, message.job()) + "\n"
                              : readers::RenderText(hung, message.job()));
  }
  return Print(options.json ? diagnosis::RenderJson(*report, message.job()) + "\n"
                            : diagnosis::RenderText(*report, message.job()));
}

// The next report, of one part or of many.
bool ReadWatched(grpc::ClientReader<v1::DiagnosisReport>& reports, v1::DiagnosisReport* whole) {
  whole->Clear();
  v1::DiagnosisReport part;
  do {
    if (!reports.Read(&part)) return false;
    whole->MergeFrom(part);
  } while (part.more());
  return true;
}

bool HasAnswer(const v1::DiagnosisReport& message) {
  return message.has_hang() || message.state() != v1::DiagnosisReport::UNKNOWN;
}

// Two reports that differ in numbers only have the same text: state, open verdicts and kinds of notes.
std::string AnswerOf(const v1::DiagnosisReport& message) {
  std::string answer = absl::StrCat(message.state(), message.has_hang() ? " hung" : "");
  for (const v1::Verdict& verdict : message.verdicts()) {
    if (verdict.open()) absl::StrAppend(&answer, " ", verdict.id());
  }
  for (const v1::Note& note : message.notes()) absl::StrAppend(&answer, " ", note.kind());
  return answer;
}

// Prints the first report that has an answer, or when the time is over the one that is there. False: it has none.
absl::StatusOr<bool> WaitForAnswer(const DiagnoseOptions& options) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(std::llround(options.wait_s * 1000));
  const auto find = [&] {
    return ControlClient::Await(options.source.manager, options.source.job, options.security, until);
  };
  v1::GetReportRequest request;
  request.set_job(ValidUtf8(options.source.job));
  for (absl::StatusOr<ControlClient> client = find();;) {
    if (!client.ok()) return client.status();
    v1::DiagnosisReport message;
    grpc::ClientContext context;
    client->SetTimeout(context, kCallTimeout);
    const grpc::Status called =
        ReadParts(v1::Diagnosis::NewStub(client->channel())->ReportInParts(&context, request), &message);
    const auto now = std::chrono::steady_clock::now();
    if (called.ok() && (HasAnswer(message) || now >= until)) {
      if (absl::Status printed = PrintMessage(options, client->manager(), message); !printed.ok()) return printed;
      return HasAnswer(message);
    }
    const bool may_come = called.ok() || called.error_code() == grpc::StatusCode::UNAVAILABLE ||
                          called.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED;
    if (!may_come || now >= until) return absl::UnavailableError(client->Describe(called));
    std::this_thread::sleep_until(std::min(until, now + kPause));
    if (!called.ok()) client = find();  // it may have another secret
  }
}

// Prints the present report, or with --watch each one until the manager goes away. Sets `reached` to its job once it has
// answered.
grpc::Status AskOnce(const DiagnoseOptions& options, const ControlClient& client, v1::Diagnosis::Stub& stub,
                     std::optional<std::string>& reached, absl::Status& printed) {
  v1::GetReportRequest request;
  request.set_job(ValidUtf8(options.source.job));
  v1::DiagnosisReport message;
  grpc::ClientContext context;
  client.SetTimeout(context, kCallTimeout);
  grpc::Status called = ReadParts(stub.ReportInParts(&context, request), &message);
  if (!called.ok()) return called;
  reached = message.job();
  if (!options.watch) {
    printed = PrintMessage(options, client.manager(), message);
    return called;
  }
  grpc::ClientContext watched;
  request.set_in_parts(true);
  auto reports = stub.WatchReports(&watched, request);
  bool clear = isatty(STDOUT_FILENO) != 0 && !options.json;
  std::string answer;
  while (ReadWatched(*reports, &message)) {
    if (clear) {
      std::cout << "\033[H\033[2J";
    } else if (!options.json) {
      const std::string before = std::exchange(answer, AnswerOf(message));
      if (before == answer) continue;
      if (!before.empty()) std::cout << "\n";
    }
    printed = PrintMessage(options, client.manager(), message);
    if (!printed.ok()) {
      watched.TryCancel();
      break;
    }
  }
  return reports->Finish();
}

absl::Status FromManager(const DiagnoseOptions& options) {
  absl::StatusOr<ControlClient> client =
      ControlClient::Make(options.source.manager, options.source.job, options.security);
  if (std::optional<v1::EndedJob> ended = AskEndedJob(client.status(), options.source.job, Notes(options))) {
    return PrintMessage(options, "", ended->diagnosis());
  }
  if (!client.ok()) return client.status();
  std::unique_ptr<v1::Diagnosis::Stub> stub = v1::Diagnosis::NewStub(client->channel());
  const int64_t begun_unix_s = time(nullptr);
  std::optional<std::string> reached;
  while (true) {
    absl::Status printed;
    grpc::Status called = AskOnce(options, *client, *stub, reached, printed);
    if (!printed.ok() || (called.ok() && !options.watch)) return printed;
    // A manager that restarts comes back; whoever watches wants to see it.
    bool again = options.watch && reached &&
                 (called.ok() || called.error_code() == grpc::StatusCode::UNAVAILABLE ||
                  called.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED);
    if (!again) return absl::UnavailableError(client->Describe(called));
    // It may have another secret.
    absl::StatusOr<ControlClient> found =
        ControlClient::Make(options.source.manager, options.source.job, options.security);
    if (!called.ok()) {
      if (std::optional<v1::EndedJob> ended = AskEndedSince(begun_unix_s, *reached, Notes(options))) {
        return PrintMessage(options, "", ended->diagnosis());
      }
      std::cerr << "taskd diagnose: " << client->Describe(called) << std::endl;
    }
    std::this_thread::sleep_for(std::chrono::seconds(1));
    if (!found.ok()) continue;
    client = std::move(found);
    stub = v1::Diagnosis::NewStub(client->channel());
  }
}

// Prints to stdout. False: the time to wait was over. INVALID_ARGUMENT: wrong usage, or files of no known format; any
// other error: the manager did not answer, or nothing could be read.
absl::StatusOr<bool> RunDiagnose(const DiagnoseOptions& options) {
  if (!(options.wait_s >= 0 && options.wait_s <= kMaxWaitS)) {
    return absl::InvalidArgumentError(absl::StrCat("--wait: ", options.wait_s, " is not 0 to ", kMaxWaitS, " s"));
  }
  if (options.watch && options.wait_s > 0) return absl::InvalidArgumentError("--watch and --wait: only one of them");
  if (!options.source.from.empty() && (options.watch || options.wait_s > 0)) {
    return absl::InvalidArgumentError(
        absl::StrCat(options.watch ? "--watch" : "--wait", ": needs a manager, files do not change"));
  }
  if (options.why >= 0) {
    if (options.watch || options.wait_s > 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("--why and ", options.watch ? "--watch" : "--wait", ": only one of them"));
    }
    absl::Status done = options.source.from.empty() ? WhyFromManager(options) : WhyFromFiles(options);
    if (!done.ok()) return done;
    return true;
  }
  if (options.wait_s > 0) return WaitForAnswer(options);
  absl::Status done = options.source.from.empty() ? FromManager(options) : FromFiles(options);
  if (!done.ok()) return done;
  return true;
}

class DiagnoseCommand : public Command {
 public:
  void AddFlags(Flags& flags) override {
    options_.source.AddFlags(flags);
    flags.Add("--json", options_.json, "print one JSON object");
    flags.Add("--watch", options_.watch,
              "go on until the job ends: on a terminal each new report, else each that changes the answer");
    flags.Add("--wait", options_.wait_s, "seconds to wait for an answer; without one in that time the exit code is 1");
    flags
        .Add("--why", options_.why,
             "a rank: what each detector measured of it, what it decided, and what is missing for a verdict")
        .Range(0, diagnosis::kMaxRanks - 1);
    AddTlsFlags(flags, options_.security);
  }

  absl::StatusOr<bool> Run() override {
    if (absl::Status status = options_.source.Choose(); !status.ok()) return status;
    options_.security.secret = TokenOfEnvironment();
    return RunDiagnose(options_);
  }

 private:
  DiagnoseOptions options_;
};

}  // namespace

std::unique_ptr<Command> MakeDiagnoseCommand() { return std::make_unique<DiagnoseCommand>(); }

}  // namespace taskd::commands
