#include "agent/run/launcher.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <iostream>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "agent/process/guard.h"
#include "agent/process/resolver.h"
#include "agent/process/signals.h"
#include "agent/process/worker_group.h"
#include "agent/run/agent_line.h"
#include "agent/run/failure_report.h"
#include "agent/run/rendezvous_client.h"
#include "agent/run/rendezvous_setup.h"
#include "agent/run/root.h"
#include "agent/run/worker_env.h"
#include "common/job_secret.h"
#include "common/log.h"
#include "common/printable.h"
#include "common/unique_fd.h"
#include "fmt/format.h"
#include "nlohmann/json.hpp"

namespace taskd {
namespace {

constexpr double kNsPerS = 1e9;
constexpr int64_t kFirstWaitingLineNs = 10'000'000'000;
constexpr int64_t kWaitingLineNs = 60'000'000'000;
constexpr double kAloneMarginS = 10;

void Say(std::string line) {
  std::replace(line.begin(), line.end(), '\n', ' ');
  std::cerr << "taskd run: " << Printable(line, kShownLineBytes) << std::endl;
}

int64_t RealtimeNs() {
  timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  return now.tv_sec * 1'000'000'000LL + now.tv_nsec;
}

std::string SignalName(int signal) {
  const char* name = sigabbrev_np(signal);
  return name == nullptr ? fmt::format("signal {}", signal) : fmt::format("SIG{}", name);
}

std::string NodeHost(const RunOptions& options) {
  if (!options.local_addr.empty()) return options.local_addr;
  char name[HOST_NAME_MAX + 1] = {};
  return gethostname(name, sizeof(name) - 1) == 0 && name[0] != 0 ? name : "localhost";
}

class Launcher {
 public:
  Launcher(RunOptions options, std::map<std::string, std::string> environment, LauncherHooks hooks)
      : options_(std::move(options)), hooks_(std::move(hooks)) {
    context_.environment = std::move(environment);
    if (auto token = context_.environment.find("TASKD_TOKEN"); token != context_.environment.end()) {
      secret_ = token->second;
    }
  }

  int Run();

 private:
  enum class Phase : uint8_t { kJoining, kRunning, kStopping, kEnding, kDone };

  void FindHost();
  void HostAndJoin();
  void Join(HostPort root, bool hosts_store);
  void SetSecret(const std::string& secret);

  void OnMessage(RootMessage message);
  void On(WaitingMessage message);
  void On(StartMessage message);
  void On(StopMessage message);
  void On(EndMessage message);
  void On(RefusedMessage message);
  void On(CollectMessage message);
  void On(PingMessage) {}  // the client's

  HostPort TierUpstream(const Assignment& assignment) const;
  absl::Status PrepareFirstStart(const Assignment& assignment);
  absl::Status StartRanks(const Assignment& assignment);
  absl::Status StartWorkers(const Assignment& assignment, const std::vector<WorkerSpec>& workers);
  void SpareOthers();
  void OnExit(const WorkerExit& exit);
  void OnStopped();
  void OnSignal(int signal);

  // What the manager may ask the node's agent for; `held_` between an end and a start.
  AgentOperations Operations();
  void KillRanks(AgentOperations::Done done);
  absl::Status StartHeldRanks(const std::vector<int>& local_ranks);
  absl::Status AskForRestart();
  void SayWaiting();
  void Event(nlohmann::json event);

  // The job is over here: ranks are ended, `line` is said, and the program ends with `code`. The first call decides.
  void EndWith(int code, std::string line, std::vector<RankFailure> failures = {}, int signal = SIGTERM);
  void Finish();

  RunOptions options_;
  const LauncherHooks hooks_;
  WorkerContext context_;
  HostPort endpoint_;
  EventLoop loop_;
  std::unique_ptr<Guard> guard_;
  UniqueFd signals_;
  Resolver resolver_{&loop_};
  StoreHost store_{options_.store_memory_limit_mb > 0 ? static_cast<uint64_t>(options_.store_memory_limit_mb) << 20
                                                      : DefaultStoreMemoryBytes()};
  std::string secret_;  // of the job; empty: not known yet
  bool secret_known_ = false;
  bool hosts_store_ = false;
  int tier_port_ = 0;
  std::string why_not_here_;  // the endpoint is this machine, but its port was taken
  std::unique_ptr<RendezvousClient> client_;
  std::unique_ptr<WorkerGroup> group_;

  Phase phase_ = Phase::kJoining;
  std::optional<Assignment> assignment_;  // of the current round
  bool prepared_ = false;
  int left_ = 0;                                      // ranks of the round that have not succeeded
  std::map<int, AgentOperations::RankState> states_;  // of the round, by local rank
  bool held_ = false;                                 // the manager has ended the ranks: that is no failure
  std::vector<AgentOperations::Done> when_stopped_;
  std::unique_ptr<AgentLine> agent_line_;
  std::string waiting_;
  int exit_code_ = 1;
  std::string last_line_;
  std::vector<RankFailure> failures_;
};

// ---- Beginning

int Launcher::Run() {
  for (const std::string& warning : options_.warnings) spdlog::warn("{}", warning);
  absl::StatusOr<HostPort> endpoint = ParseHostPort("--rdzv-endpoint", options_.rdzv_endpoint);
  if (!endpoint.ok()) {
    Say(std::string(endpoint.status().message()));
    return 2;
  }
  endpoint_ = *std::move(endpoint);
  context_.host = NodeHost(options_);
  std::vector<int> taken = options_.signals_to_handle;
  taken.insert(taken.end(), {SIGUSR1, SIGUSR2});
  absl::StatusOr<UniqueFd> signals = WatchSignals(&loop_, taken, [this](int signal) { OnSignal(signal); });
  if (!signals.ok()) {
    Say(std::string(signals.status().message()));
    return 1;
  }
  signals_ = *std::move(signals);
  context_.cookie = NewCookie();
  absl::StatusOr<std::unique_ptr<Guard>> guard = Guard::Start(context_.cookie);
  if (!guard.ok()) {
    Say(std::string(guard.status().message()));
    return 1;
  }
  guard_ = *std::move(guard);

  WorkerGroup::Callbacks callbacks;
  callbacks.on_exit = [this](const WorkerExit& exit) { OnExit(exit); };
  callbacks.on_stopped = [this] { OnStopped(); };
  callbacks.on_other_exit = [this](pid_t pid, int wait_status) {
    if (!hooks_.on_other_exit || phase_ == Phase::kDone) return;
    hooks_.on_other_exit(pid, wait_status);
    SpareOthers();
  };
  group_ = WorkerGroup::Create(&loop_, static_cast<int64_t>(options_.shutdown_timeout_s * kNsPerS), callbacks);
  group_->Spare(guard_->pid());

  loop_.RunAfter(kFirstWaitingLineNs, [this] { SayWaiting(); });
  loop_.Post([this] { FindHost(); });
  loop_.Run();

  agent_line_.reset();
  client_.reset();
  group_.reset();
  return exit_code_;
}

// Who hosts the store: node rank 0; without node ranks whoever says so, else the machine that the endpoint names.
void Launcher::FindHost() {
  if (options_.standalone) {
    HostAndJoin();
    return;
  }
  if (HasNodeRanks(options_)) {
    if (options_.node_rank == 0) {
      HostAndJoin();
    } else {
      Join(endpoint_, false);
    }
    return;
  }
  if (auto is_host = options_.rdzv_conf.find("is_host"); is_host != options_.rdzv_conf.end()) {
    const std::string value = absl::AsciiStrToLower(is_host->second);
    if (value == "true" || value == "1" || value == "yes" || value == "t" || value == "y") {
      HostAndJoin();
    } else {
      Join(endpoint_, false);
    }
    return;
  }
  resolver_.Resolve(endpoint_, [this](absl::StatusOr<std::vector<SocketAddress>> addresses) {
    if (phase_ != Phase::kJoining) return;
    if (IsThisMachine(endpoint_.host, addresses.ok() ? *addresses : std::vector<SocketAddress>())) {
      HostAndJoin();
    } else {
      Join(endpoint_, false);
    }
  });
}

void Launcher::HostAndJoin() {
  // A job of one node has nobody to serve on other addresses when its own is a loopback one.
  HostPort listen = endpoint_;
  const bool alone = options_.max_nodes == 1 && IsLoopback(endpoint_);
  if (listen.host == "localhost") listen.host = "127.0.0.1";
  absl::Status status = store_.ListenRoot(listen, !alone);
  if (absl::IsAlreadyExists(status) && !HasNodeRanks(options_)) {
    why_not_here_ = std::string(status.message());
    Join(endpoint_, false);
    return;
  }
  if (!status.ok()) {
    EndWith(1, std::string(status.message()));
    return;
  }
  hosts_store_ = true;
  const bool given = !secret_.empty();
  SetSecret(given ? secret_ : NewSecret());
  endpoint_.port = store_.root_port();
  std::string manager = options_.manager == "off" ? "" : options_.manager;
  if (options_.manager.empty() && hooks_.start_manager) {
    manager = hooks_.start_manager();
    SpareOthers();
  }
  if (hooks_.control) {
    hooks_.control({[this](int id) { store_.CollectStacks(id); },
                    [this](const std::string& reason) { store_.Restart(reason); },
                    [this](const std::string& reason) { store_.EndJob(reason); }});
  }
  Rendezvous::Options with = RendezvousOptions(options_, manager);
  with.secret = secret_;
  store_.ServeRoot(std::move(with), {hooks_.on_event, hooks_.on_stacks}, /*peers_prove=*/given);
  Join({alone ? listen.host : "127.0.0.1", endpoint_.port}, true);
}

void Launcher::SetSecret(const std::string& secret) {
  secret_ = secret;
  if (!std::exchange(secret_known_, true) && hooks_.on_secret) hooks_.on_secret(secret_);
}

void Launcher::Join(HostPort root, bool hosts_store) {
  if (options_.tiered) {
    absl::StatusOr<int> port = store_.ServeTier(options_.store_fan_out > 0);
    if (!port.ok()) return EndWith(1, std::string(port.status().message()));
    tier_port_ = *port;
  }
  NodeInfo info = DescribeNode(options_, context_.host);
  info.hosts_store = hosts_store;
  info.tier_port = options_.store_fan_out > 0 ? tier_port_ : 0;
  RendezvousClient::Callbacks callbacks;
  callbacks.received = [this](RootMessage message) { OnMessage(std::move(message)); };
  callbacks.failed = [this](const std::string& why) {
    EndWith(1, why_not_here_.empty() || assignment_ ? why : why_not_here_ + "; " + why);
  };
  client_ = std::make_unique<RendezvousClient>(&loop_, std::move(root), std::move(info), secret_,
                                               RendezvousOptions(options_, "").join_timeout_ns, std::move(callbacks));
  client_->Start();
}

// ---- What the rendezvous says

void Launcher::OnMessage(RootMessage message) {
  if (phase_ == Phase::kEnding || phase_ == Phase::kDone) return;
  std::visit([this](auto& one) { On(std::move(one)); }, message);
}

void Launcher::On(WaitingMessage message) { waiting_ = std::move(message.text); }

void Launcher::SayWaiting() {
  if (phase_ == Phase::kJoining) {
    if (client_ == nullptr || !client_->connected()) {
      const std::string why = client_ == nullptr ? "" : client_->last_error();
      spdlog::warn("waiting for node 0's launcher at {}{}", FormatHostPort(endpoint_), why.empty() ? "" : ": " + why);
    } else if (!waiting_.empty()) {
      spdlog::warn("waiting: {}", waiting_);
    }
  }
  loop_.RunAfter(kWaitingLineNs, [this] { SayWaiting(); });
}

void Launcher::On(StartMessage message) {
  if (phase_ != Phase::kJoining) return;
  assignment_ = std::move(message.assignment);
  phase_ = Phase::kRunning;
  waiting_.clear();
  absl::Status status = prepared_ ? absl::OkStatus() : PrepareFirstStart(*assignment_);
  if (status.ok()) status = StartRanks(*assignment_);
  if (status.ok()) return;
  WorkerExit exit;
  exit.rank = assignment_->rank_base;
  exit.code = 1;
  exit.time_ns = RealtimeNs();
  exit.error_message = std::string(status.message());
  Say(exit.error_message);
  client_->Send(FailedMessage{assignment_->round, exit, ""});
}

absl::Status Launcher::PrepareFirstStart(const Assignment& assignment) {
  auto temporary = context_.environment.find("TMPDIR");
  absl::StatusOr<LogFolder> logs =
      CreateLogFolder(options_, temporary == context_.environment.end() ? "" : temporary->second);
  if (!logs.ok()) return logs.status();
  context_.logs = *std::move(logs);
  context_.master_addr = endpoint_.host;
  context_.master_port = endpoint_.port;
  if (options_.tiered) {
    context_.master_addr = "127.0.0.1";
    context_.master_port = tier_port_;
  }
  SetSecret(assignment.secret);
  if (hooks_.before_first_start) {
    hooks_.before_first_start(assignment);
    SpareOthers();
  }
  prepared_ = true;
  return absl::OkStatus();
}

// The root as this node reaches it, or another node's tier. One that is on the root's machine came to it by loopback.
HostPort Launcher::TierUpstream(const Assignment& assignment) const {
  const HostPort root = hosts_store_ ? HostPort{"127.0.0.1", endpoint_.port} : endpoint_;
  if (assignment.tier.empty()) return root;
  absl::StatusOr<HostPort> tier = ParseHostPort("tier", assignment.tier);
  if (!tier.ok()) return root;
  return IsLoopback(*tier) ? HostPort{root.host, tier->port} : *tier;
}

void Launcher::SpareOthers() {
  if (!hooks_.spare_pids) return;
  for (pid_t pid : hooks_.spare_pids()) group_->Spare(pid);
}

absl::Status Launcher::StartRanks(const Assignment& assignment) {
  if (options_.tiered) store_.SetUpstream(TierUpstream(assignment));
  if (hooks_.rank_environment) context_.extra = hooks_.rank_environment(assignment);
  absl::StatusOr<std::vector<WorkerSpec>> workers = BuildWorkers(options_, assignment, context_);
  if (!workers.ok()) return workers.status();
  if (auto socket = context_.extra.find("TASKD_SOCKET"); socket != context_.extra.end() && agent_line_ == nullptr) {
    agent_line_ = std::make_unique<AgentLine>(&loop_, socket->second, Operations());
  }
  held_ = false;
  states_.clear();
  for (const WorkerSpec& worker : *workers) states_[worker.local_rank].global_rank = worker.rank;
  return StartWorkers(assignment, *workers);
}

absl::Status Launcher::StartWorkers(const Assignment& assignment, const std::vector<WorkerSpec>& workers) {
  left_ = static_cast<int>(workers.size());
  if (absl::Status status = group_->Start(workers); !status.ok()) return status;
  for (const auto& [local_rank, pid] : group_->pids()) {
    states_[local_rank].pid = pid;
    states_[local_rank].exit_code.reset();
    Event({{"event", "started"}, {"rank", assignment.rank_base + local_rank}, {"pid", pid}});
  }
  return absl::OkStatus();
}

void Launcher::On(StopMessage message) {
  if (phase_ != Phase::kRunning || message.round != assignment_->round) return;
  spdlog::warn("ranks are restarted: {}", message.reason);
  phase_ = Phase::kStopping;
  group_->Stop(SIGTERM);
}

void Launcher::On(EndMessage message) {
  if (options_.tiered) store_.ExpectEnd();
  EndWith(message.exit_code, message.reason, std::move(message.failures));
}

void Launcher::On(RefusedMessage message) {
  EndWith(1, fmt::format("refused by the launcher at {}: {}", FormatHostPort(endpoint_), message.text));
}

void Launcher::On(CollectMessage message) {
  if (hooks_.collect_stacks) client_->Send(StacksMessage{message.id, hooks_.collect_stacks(group_->pids())});
}

// ---- What the ranks and people do

void Launcher::OnExit(const WorkerExit& exit) {
  if (!assignment_) return;
  states_[exit.local_rank].exit_code = exit.code;
  Event({{"event", "exited"}, {"rank", exit.rank}, {"pid", exit.pid}, {"code", exit.code}, {"signal", exit.signal}});
  if (phase_ != Phase::kRunning) return;
  if (!exit.ok()) {
    std::string folder;
    if (!context_.logs.path.empty()) {
      folder = fmt::format("{}/attempt_{}/{}", context_.logs.path, assignment_->restart_count, exit.local_rank);
      std::error_code error;
      if (std::filesystem::is_empty(folder, error) || error) folder.clear();
    }
    client_->Send(FailedMessage{assignment_->round, exit, std::move(folder)});
  } else if (--left_ == 0) {
    client_->Send(SucceededMessage{assignment_->round});
  }
}

void Launcher::OnStopped() {
  for (auto& [local_rank, state] : states_) {
    if (!state.exit_code) state.exit_code = 128 + SIGTERM;
  }
  for (const AgentOperations::Done& done : std::exchange(when_stopped_, {})) done(absl::OkStatus());
  if (phase_ == Phase::kStopping) {
    phase_ = Phase::kJoining;
    client_->Send(StoppedMessage{assignment_->round});
  } else if (phase_ == Phase::kEnding) {
    Finish();
  }
}

AgentOperations Launcher::Operations() {
  AgentOperations operations;
  operations.kill_ranks = [this](AgentOperations::Done done) { KillRanks(std::move(done)); };
  operations.start_ranks = [this](const std::vector<int>& local_ranks, const AgentOperations::Done& done) {
    done(StartHeldRanks(local_ranks));
  };
  operations.state = [this] { return states_; };
  operations.restart = [this](const AgentOperations::Done& done) { done(AskForRestart()); };
  return operations;
}

void Launcher::KillRanks(AgentOperations::Done done) {
  if (phase_ != Phase::kRunning || left_ == 0) {
    return done(absl::FailedPreconditionError("the ranks of this node do not run now"));
  }
  if (!held_) spdlog::warn("ranks are ended: the manager asks for it (KILL_WORKER)");
  held_ = true;
  when_stopped_.push_back(std::move(done));
  group_->Stop(SIGTERM);
}

absl::Status Launcher::StartHeldRanks(const std::vector<int>& local_ranks) {
  if (phase_ != Phase::kRunning || !held_) {
    return absl::FailedPreconditionError("ranks are started by the manager only after it has ended them (KILL_WORKER)");
  }
  if (!when_stopped_.empty()) return absl::FailedPreconditionError("the ranks are still being ended");
  absl::StatusOr<std::vector<WorkerSpec>> workers = BuildWorkers(options_, *assignment_, context_);
  if (!workers.ok()) return workers.status();
  if (!local_ranks.empty()) {
    std::erase_if(*workers, [&](const WorkerSpec& worker) {
      return std::find(local_ranks.begin(), local_ranks.end(), worker.local_rank) == local_ranks.end();
    });
  }
  spdlog::warn("{} ranks are started: the manager asks for it", workers->size());
  absl::Status status = StartWorkers(*assignment_, *workers);
  held_ = !status.ok();
  return status;
}

absl::Status Launcher::AskForRestart() {
  if (!hosts_store_) return absl::FailedPreconditionError("RESTART is done by the launcher of node 0");
  if (phase_ != Phase::kRunning) return absl::FailedPreconditionError("the ranks of this node do not run now");
  if (assignment_->restart_count >= options_.max_restarts) {
    return absl::FailedPreconditionError(fmt::format("no restart is left (--max-restarts {})", options_.max_restarts));
  }
  store_.Restart("the manager asks for it (RESTART)");
  return absl::OkStatus();
}

void Launcher::OnSignal(int signal) {
  const std::vector<int>& ending = options_.signals_to_handle;
  if (std::find(ending.begin(), ending.end(), signal) == ending.end()) {
    group_->Signal(signal);
    return;
  }
  switch (phase_) {
    case Phase::kJoining:
    case Phase::kRunning:
    case Phase::kStopping:
      spdlog::warn("{}: the job is ended", SignalName(signal));
      if (client_ != nullptr) client_->Send(LeaveMessage{signal});
      EndWith(128 + signal, "", {}, signal);
      break;
    case Phase::kEnding:  // again: no patience left
      exit_code_ = 128 + signal;
      group_->Stop(SIGKILL);
      break;
    case Phase::kDone:  // only waits for other nodes
      loop_.Stop();
      break;
  }
}

void Launcher::Event(nlohmann::json event) {
  if (client_ == nullptr || !assignment_) return;
  event["round"] = assignment_->round;
  event["node"] = assignment_->group_rank;
  event["time_ns"] = RealtimeNs();
  client_->Send(EventMessage{event.dump()});
}

// ---- End

void Launcher::EndWith(int code, std::string line, std::vector<RankFailure> failures, int signal) {
  if (phase_ == Phase::kEnding || phase_ == Phase::kDone) return;
  const bool stops_already = phase_ == Phase::kStopping;
  phase_ = Phase::kEnding;
  exit_code_ = code;
  last_line_ = std::move(line);
  failures_ = std::move(failures);
  if (stops_already) {
    if (signal != SIGTERM) group_->Signal(signal);
  } else {
    group_->Stop(signal);
  }
}

void Launcher::Finish() {
  phase_ = Phase::kDone;
  agent_line_.reset();
  if (!failures_.empty()) {
    std::cerr << FailureReport(options_.program, failures_) << std::flush;
    auto copy = context_.environment.find("TORCHELASTIC_ERROR_FILE");
    if (copy != context_.environment.end() && !copy->second.empty()) {
      if (absl::Status status = WriteErrorFile(copy->second, failures_.front()); !status.ok()) {
        spdlog::warn("{}", status.message());
      }
    }
  }
  if (!last_line_.empty()) Say(last_line_);
  RemoveEmptyFolders(context_.logs);
  if (hooks_.at_end) hooks_.at_end();
  if (client_ != nullptr) client_->Close();
  // The other nodes' ranks still use the store, or are being ended.
  store_.WhenAlone([this] { loop_.Stop(); });
  loop_.RunAfter(static_cast<int64_t>((options_.shutdown_timeout_s + kAloneMarginS) * kNsPerS),
                 [this] { loop_.Stop(); });
}

}  // namespace

int RunLauncher(RunOptions options, std::map<std::string, std::string> environment, LauncherHooks hooks) {
  return Launcher(std::move(options), std::move(environment), std::move(hooks)).Run();
}

}  // namespace taskd
