#include "agent/commands/status.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <iostream>
#include <string>
#include <string_view>
#include <thread>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "agent/commands/control_client.h"
#include "agent/commands/status_table.h"
#include "proto/channel.h"
#include "proto/status_json.h"

namespace taskd::commands {
namespace {

struct StatusOptions {
  std::string manager;  // HOST:PORT; empty: the only job of this user here, or `job`
  std::string job;      // namespace/name; empty: whatever job the manager has
  bool all = false;     // a line for each rank of a large job, too
  bool json = false;
  bool watch = false;  // again each second until SIGINT or SIGTERM ends the process; with json one object a line
  proto::Security security;
};

constexpr std::chrono::milliseconds kTimeout{5000};
constexpr int kFewRanks = 32;  // that a terminal has room for, a line each

const char* StateName(const v1::SupervisionStatus& supervision) {
  switch (supervision.state()) {
    case v1::SupervisionStatus::RUNNING:
      return "running";
    case v1::SupervisionStatus::RESTARTING:
      return "restarting";
    case v1::SupervisionStatus::HUNG:
      return "hung";
    case v1::SupervisionStatus::ENDED:
      return "ended";
    default:
      return "unknown";  // no launcher has reported
  }
}

std::string KindName(const v1::SupervisionEvent& event) {
  return absl::AsciiStrToLower(v1::SupervisionEvent::Kind_Name(event.kind()));
}

// The newest few; --json has all.
void PrintSupervision(const v1::SupervisionStatus& supervision) {
  if (supervision.state() == v1::SupervisionStatus::UNKNOWN && supervision.events_size() == 0) return;
  std::cout << "job is " << StateName(supervision) << "  restarts: " << supervision.restarts()
            << "  ranks ended: " << supervision.rank_exits();
  if (supervision.hung_ranks() != 0) std::cout << "  hung: " << supervision.hung_ranks();
  std::cout << "\n";
  constexpr int kShown = 5;
  for (int i = std::max(0, supervision.events_size() - kShown); i < supervision.events_size(); ++i) {
    const v1::SupervisionEvent& event = supervision.events(i);
    std::cout << "  "
              << absl::FormatTime("%Y-%m-%d %H:%M:%S", absl::FromUnixNanos(event.time_ns()), absl::LocalTimeZone())
              << " " << KindName(event);
    if (event.rank() >= 0) std::cout << " rank " << event.rank();
    if (event.node() >= 0) std::cout << " node " << event.node();
    if (event.signal() != 0) {
      std::cout << " signal " << event.signal();
    } else if (event.kind() == v1::SupervisionEvent::EXITED || event.kind() == v1::SupervisionEvent::ENDED) {
      std::cout << " code " << event.code();
    }
    // Stacks have many lines; the first has the number of groups.
    std::string_view message = event.message();
    if (!message.empty()) std::cout << ": " << Printable(std::string(message.substr(0, message.find('\n'))));
    std::cout << "\n";
  }
}

// `all`: a line for each rank, however many there are.
void PrintTable(const v1::JobStatus& status, bool all) {
  std::cout << "job: " << (status.job().empty() ? "(any)" : Printable(status.job()));
  if (!status.task_id().empty()) std::cout << "  task: " << Printable(status.task_id());
  std::cout << absl::StrFormat("  manager up: %.0f s\nwanted: %s (revision %d)\n", status.uptime_s(),
                               KindsText(status.wanted().kinds()), status.wanted().revision());
  int ranks = 0, attached = 0;
  for (const v1::NodeStatus& node : status.nodes()) {
    ranks += node.ranks_size();
    for (const v1::RankStatus& rank : node.ranks()) attached += node.connected() && rank.attached() ? 1 : 0;
  }
  std::cout << "nodes: " << status.nodes_size() << "  ranks: " << attached << " attached of " << ranks << " known";
  if (status.expected_ranks() != 0) std::cout << ", " << status.expected_ranks() << " expected";
  std::cout << "\n";
  PrintSupervision(status.supervision());
  std::cout << "diagnosis: " << Printable(status.diagnosis().headline(), kShownLineBytes) << "\n";
  std::cout << (all || ranks <= kFewRanks ? ListRanks(status) : SumUpRanks(status)) << std::flush;
}

// Prints to stdout. INVALID_ARGUMENT: wrong usage; any other error: the manager did not answer.
absl::Status RunStatus(const StatusOptions& options) {
  absl::StatusOr<ControlClient> client = ControlClient::Make(options.manager, options.job, options.security);
  if (!client.ok()) return client.status();
  bool terminal = isatty(STDOUT_FILENO) != 0;
  bool reached = false;
  while (true) {
    grpc::ClientContext context;
    client->SetTimeout(context, kTimeout);
    v1::JobStatus status;
    grpc::Status called = ReadParts(client->stub().StatusInParts(&context, {}), &status);
    if (called.ok()) {
      if (!options.job.empty() && !status.job().empty() && status.job() != options.job) {
        return absl::UnavailableError(absl::StrCat("manager ", client->manager(), " has job '", Printable(status.job()),
                                                   "', not '", options.job, "'"));
      }
      if (options.watch && terminal && !options.json) std::cout << "\033[H\033[2J";
      if (options.json) {
        std::cout << proto::RenderStatusJson(status) << std::endl;
      } else {
        PrintTable(status, options.all);
      }
      reached = true;
      if (!std::cout) return absl::UnavailableError("stdout cannot be written");
    } else if (!options.watch || !reached) {
      return absl::UnavailableError(client->Describe(called));
    } else {
      // A manager that restarts comes back; whoever watches wants to see it.
      std::cerr << "taskd status: " << client->Describe(called) << std::endl;
    }
    if (!options.watch) return absl::OkStatus();
    std::this_thread::sleep_for(std::chrono::seconds(1));
  }
}

class StatusCommand : public Command {
 public:
  void AddFlags(Flags& flags) override {
    flags.Add("--manager", options_.manager,
              "HOST:PORT of the manager [the only job that this user runs on this machine]");
    flags.Add("--job", options_.job,
              "NAMESPACE/NAME; without --manager the job to find, a manager with another one is refused");
    flags.Add("--all", options_.all,
              "a line for each rank; else those of one state are summed up, of more than 32 ranks");
    flags.Add("--json", options_.json, "print one JSON object");
    flags.Add("--watch", options_.watch, "again each second until interrupted");
    flags.Add("--tls-dir", options_.security.tls_dir, "ca.crt, tls.crt, tls.key for mutual TLS");
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
