#include "agent/commands/status.h"

#include <algorithm>
#include <chrono>
#include <climits>
#include <ctime>
#include <iostream>
#include <optional>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "agent/commands/control_client.h"
#include "agent/commands/ended_job.h"
#include "agent/commands/job_flags.h"
#include "agent/commands/status_table.h"
#include "agent/commands/watch_screen.h"
#include "agent/commands/watch_terminal.h"
#include "common/printable.h"
#include "proto/channel.h"
#include "proto/status_json.h"

namespace taskd::commands {
namespace {

struct StatusOptions {
  std::string manager;  // HOST:PORT; empty: the only job of this user here, or `job`
  std::string job;      // namespace/name; empty: whatever job the manager has
  bool all = false;     // a line for each rank of a large job, too
  bool json = false;
  bool watch = false;  // again until the job has ended, or SIGINT or SIGTERM came; with json one object a line
  proto::Security security;
};

constexpr std::chrono::milliseconds kTimeout{5000}, kInterval{1000}, kMaxInterval{30000};
constexpr int kFewRanks = 32;  // that a terminal has room for, a line each

// The ranks of so many at most have a line each.
int MostListed(const StatusOptions& options) { return options.all ? INT_MAX : kFewRanks; }

// `is_kept`: of a job that has ended, whose manager has ended too.
absl::Status Print(const StatusOptions& options, const v1::JobStatus& status, bool is_kept = false) {
  if (options.json) {
    std::cout << proto::RenderStatusJson(status) << std::endl;
  } else {
    std::cout << RenderStatus(status, MostListed(options), is_kept) << std::flush;
  }
  return std::cout ? absl::OkStatus() : absl::UnavailableError("stdout cannot be written");
}

// On a terminal, until q is pressed.
class Screen {
 public:
  explicit Screen(bool all_ranks) : all_ranks_(all_ranks) {}

  absl::Status Draw(const v1::JobStatus& status, const v1::Heatmap& map) {
    const std::string details = RenderStatus(status, all_ranks_ ? INT_MAX : 0);
    shown_ = DrawScreen(status, map, details, WatchTerminal::Size(), terminal_.greys());
    return Show(shown_);
  }

  // Above what was last seen.
  absl::Status Complain(const std::string& what) const {
    const auto columns = static_cast<size_t>(WatchTerminal::Size().columns);
    return Show(absl::StrCat(Printable(what, columns - std::min<size_t>(columns, 3)), "\n", shown_));
  }

  bool Wait(std::chrono::milliseconds time) const { return terminal_.Wait(time); }

 private:
  absl::Status Show(const std::string& screen) const {
    return terminal_.Show(screen) ? absl::OkStatus() : absl::UnavailableError("stdout cannot be written");
  }

  const bool all_ranks_;
  const WatchTerminal terminal_;
  std::string shown_;
};

// `map`: null, where nobody draws it.
grpc::Status Ask(const ControlClient& client, v1::JobStatus* status, v1::Heatmap* map) {
  grpc::ClientContext context;
  ControlClient::SetTimeout(context, kTimeout);
  grpc::Status called = ReadParts(client.stub().StatusInParts(&context, {}), status);
  if (!called.ok() || map == nullptr) return called;
  grpc::ClientContext drawn;
  ControlClient::SetTimeout(drawn, kTimeout);
  return client.stub().GetHeatmap(&drawn, HeatmapThatFits(WatchTerminal::Size()), map);
}

// Of the answer to a question, until the next one: a large job is asked less often.
std::chrono::milliseconds Pause(std::chrono::steady_clock::duration answered) {
  constexpr int kShare = 20;
  return std::clamp(std::chrono::duration_cast<std::chrono::milliseconds>(kShare * answered), kInterval, kMaxInterval);
}

// Prints to stdout. INVALID_ARGUMENT: wrong usage; any other error: the manager did not answer.
absl::Status RunStatus(const StatusOptions& options) {
  absl::StatusOr<ControlClient> client = ControlClient::Make(options.manager, options.job, options.security);
  if (std::optional<v1::EndedJob> ended =
          AskEndedJob(client.status(), options.job, options.json ? std::cerr : std::cout)) {
    return Print(options, ended->status(), true);
  }
  if (!client.ok()) return client.status();
  const bool draws = options.watch && !options.json && WatchTerminal::IsThere();
  std::optional<Screen> screen;  // once there is an answer
  bool reached = false;
  std::string job = options.job;
  const int64_t begun_unix_s = time(nullptr);
  const auto end = [&job] {
    std::cerr << "taskd status: job " << Printable(job) << " has ended" << std::endl;
    return absl::OkStatus();
  };
  while (true) {
    const auto asked = std::chrono::steady_clock::now();
    v1::JobStatus status;
    v1::Heatmap map;
    const grpc::Status called = Ask(*client, &status, draws ? &map : nullptr);
    if (called.ok()) {
      if (!options.job.empty() && !status.job().empty() && status.job() != options.job) {
        return absl::UnavailableError(absl::StrCat("manager ", client->manager(), " has job '", Printable(status.job()),
                                                   "', not '", options.job, "'"));
      }
      if (draws && !reached) screen.emplace(options.all);
      reached = true;
      job = status.job();
      absl::Status shown = draws ? screen->Draw(status, map) : Print(options, status);
      if (!shown.ok() || !options.watch) return shown;
      if (!draws && status.supervision().state() == v1::SupervisionStatus::ENDED) return end();
    } else if (!options.watch || !reached) {
      return absl::UnavailableError(client->Describe(called));
    } else if (!draws && HasEndedSince(job, begun_unix_s)) {
      return end();
    } else {
      const std::string complaint = client->Describe(called);
      if (draws) {
        if (absl::Status shown = screen->Complain(complaint); !shown.ok()) return shown;
      } else {
        std::cerr << "taskd status: " << complaint << std::endl;
      }
      // A manager that restarts comes back, maybe with another secret; whoever watches wants to see it.
      absl::StatusOr<ControlClient> again = ControlClient::Make(options.manager, options.job, options.security);
      if (again.ok()) client = std::move(again);
    }
    const std::chrono::milliseconds pause = called.ok() ? Pause(std::chrono::steady_clock::now() - asked) : kInterval;
    if (!draws) {
      std::this_thread::sleep_for(pause);
    } else if (!screen->Wait(pause)) {
      return absl::OkStatus();
    }
  }
}

class StatusCommand : public Command {
 public:
  void AddFlags(Flags& flags) override {
    flags.Add("--manager", options_.manager, kManagerHelp);
    flags
        .Add("--job", options_.job,
             "NAMESPACE/NAME; without --manager the job to find, a manager with another one is refused")
        .JobName();
    flags.Add("--all", options_.all,
              "a line for each rank; else those of one state are summed up, of more than 32 ranks");
    flags.Add("--json", options_.json, "print one JSON object");
    flags.Add("--watch", options_.watch,
              "again each second, until the job ends; on a terminal with the open verdicts and a heat map, until q is "
              "pressed");
    AddTlsFlags(flags, options_.security);
  }

  absl::StatusOr<bool> Run() override {
    options_.security.secret = TokenOfEnvironment();
    if (absl::Status status = RunStatus(options_); !status.ok()) return status;
    return true;
  }

 private:
  StatusOptions options_;
};

}  // namespace

std::unique_ptr<Command> MakeStatusCommand() { return std::make_unique<StatusCommand>(); }

}  // namespace taskd::commands
