#include "agent/run/launcher.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <climits>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "agent/process/daemons.h"
#include "agent/process/resolver.h"
#include "agent/process/run_line.h"
#include "agent/process/signals.h"
#include "agent/run/failure_report.h"
#include "agent/run/launched_ranks.h"
#include "agent/run/rendezvous_client.h"
#include "agent/run/rendezvous_setup.h"
#include "agent/run/store_host.h"
#include "agent/run/termination_log.h"
#include "agent/run/worker_env.h"
#include "common/environment.h"
#include "common/job_secret.h"
#include "common/log.h"
#include "common/realtime.h"
#include "common/storage_thread.h"
#include "common/unique_fd.h"
#include "fmt/format.h"

namespace taskd::run {
namespace {

constexpr double kNsPerS = 1e9;
constexpr int64_t kFirstWaitingLineNs = 10'000'000'000;
constexpr int64_t kWaitingLineNs = 60'000'000'000;
constexpr double kAloneMarginS = 10;
constexpr int64_t kOtherTasksNs = 20'000'000;
constexpr int64_t kProxyEndNs = 6'000'000'000;  // what it allows itself for storage that hangs
// A scheduler signals the launchers of all nodes within this time. Who hears of the job's end from another node before
// that would end its ranks by a second signal.
constexpr int64_t kAllNodesNs = 1'000'000'000;

// From a signal to this launcher on, at the latest: its ranks are gone the shutdown time-out later, killed ones shortly
// after that, and this process kEndS after the time-out. A scheduler's own SIGKILL has to come later.
constexpr double kKilledS = 2;
constexpr double kOthersS = 4;
constexpr double kEndS = 7;
constexpr std::chrono::milliseconds kLastFiles{1000};  // for the error file, where the storage does not answer

std::string NodeHost(const RunOptions& options) {
  if (!options.local_addr.empty()) return options.local_addr;
  char name[HOST_NAME_MAX + 1] = {};
  return gethostname(name, sizeof(name) - 1) == 0 && name[0] != 0 ? name : "localhost";
}

RunOptions LeaveIgnoredSignals(RunOptions options) {
  if (!options.signals_named) options.signals_to_handle = process::NotIgnored(std::move(options.signals_to_handle));
  return options;
}

// Nothing was started.
void SayWhyNot(const std::string& why) {
  process::PrintRunLine(why);
  WriteTerminationLog(TerminationMessage(why, {}));
}

class Launcher {
 public:
  Launcher(RunOptions options, std::map<std::string, std::string> environment, LauncherObserver& observer)
      : options_(LeaveIgnoredSignals(std::move(options))),
        environment_(std::move(environment)),
        observer_(observer),
        secret_(ValueOf(environment_, "TASKD_TOKEN")) {}

  int Run();

 private:
  enum class Phase : uint8_t { kJoining, kRunning, kStopping, kEnding, kDone };

  absl::Status Prepare();
  LaunchedRanks::Callbacks OfRanks();
  void OnOtherExit(pid_t pid, int wait_status);
  void FindHost();
  bool IsOneNode() const { return options_.max_nodes == 1 || (options_.task && options_.task->nodes == 1); }
  void CheckThatRanksGetHere(const std::vector<process::SocketAddress>& addresses);
  void CheckThatThisIsTheMaster();
  void HostAndJoin();
  void ServeRoot();
  void StartManager();
  void Join(HostPort root);
  void SetSecret(const std::string& secret);

  void OnMessage(RootMessage message);
  void On(WaitingMessage message);
  void On(StartMessage message);
  void On(StopMessage message);
  void On(EndMessage message);
  void On(RefusedMessage message);
  void On(CollectMessage message);
  void On(const LookMessage& message);
  void On(PingMessage) {}  // the client's

  HostPort TierUpstream(const Assignment& assignment) const;
  absl::Status PrepareFirstStart(const Assignment& assignment);
  absl::Status StartRanks(const Assignment& assignment);
  void SpareOthers();
  void OnStopped();
  process::SignalWatch::IfAlone OnSignal(int signal);
  process::SignalWatch::IfAlone EndBySignal(int signal);
  void BeginDeadline();
  void NoPatience(int signal);
  void Leave(int signal);
  absl::Status Restart();  // the manager asks for it
  void PrintWaiting();

  // The job is over here: ends the ranks, prints `line`, and exits with `code`. The first call wins.
  void EndWith(int code, std::string line, std::vector<RankFailure> failures = {}, int signal = SIGTERM);
  void Finish();
  void ReportFailures();
  void LeaveTerminationLog();
  void LeaveJobWhenDone();
  void LeaveJob();
  void AwaitProxy();
  void After(double seconds, EventLoop::Callback callback);
  // Of the tasks of a job one speaks for all, and else one for those of its node.
  bool SpeaksForJob() const { return !options_.task || options_.node_rank == 0; }
  bool SpeaksForNode() const { return !options_.task || options_.task->local_rank == 0; }

  const RunOptions options_;
  const std::map<std::string, std::string> environment_;
  LauncherObserver& observer_;
  std::string host_;  // this node, as people call it
  HostPort endpoint_;
  StorageThread files_{kLastFiles};  // this thread obeys signals
  EventLoop loop_;
  std::unique_ptr<process::SignalWatch> signals_;
  process::Resolver resolver_{&loop_};
  StoreHost store_{options_.store_memory_limit_mb > 0 ? static_cast<uint64_t>(options_.store_memory_limit_mb) << 20
                                                      : store::DefaultStoreMemoryBytes(),
                   ValueOf(environment_, "TASKD_TOKEN")};
  std::string secret_;  // of the job; empty: not known yet
  bool secret_known_ = false;
  bool hosts_store_ = false;
  std::string nonce_;            // where it does: by this the root knows its own launcher
  bool manager_is_due_ = false;  // the same: it is to start the job's manager
  int tier_port_ = 0;
  std::string why_not_here_;  // the endpoint is this machine, but its port was taken
  std::unique_ptr<RendezvousClient> client_;
  std::unique_ptr<LaunchedRanks> ranks_;

  Phase phase_ = Phase::kJoining;
  std::optional<Assignment> assignment_;  // of the current round
  bool prepared_ = false;
  std::string waiting_;
  int exit_code_ = 1;
  std::string last_line_;
  std::vector<RankFailure> failures_;
  std::vector<RankFailure> own_failures_;  // of this round and node; for a node 0 that reports nothing any more
  bool root_lost_ = false;
  int64_t ranks_started_ns_ = 0;
  bool signalled_ = false;          // a signal that ends has come to this process
  std::optional<int> leaves_with_;  // a signal of which the other nodes are not told yet
  bool left_ = false;
};

// ---- Beginning

int Launcher::Run() {
  if (SpeaksForJob()) {
    for (const std::string& warning : options_.warnings) spdlog::warn("{}", warning);
  }
  absl::StatusOr<HostPort> endpoint = ParseHostPort("--rdzv-endpoint", options_.rdzv_endpoint);
  if (!endpoint.ok()) {
    SayWhyNot(std::string(endpoint.status().message()));
    return 2;
  }
  endpoint_ = *std::move(endpoint);
  if (absl::Status prepared = Prepare(); !prepared.ok()) {
    SayWhyNot(std::string(prepared.message()));
    return 1;
  }
  loop_.RunAfter(kFirstWaitingLineNs, [this] { PrintWaiting(); });
  loop_.Post([this] { FindHost(); });
  loop_.Run();

  observer_.OnEnd();
  ranks_->CloseAgentLine();
  client_.reset();
  ranks_.reset();
  return exit_code_;
}

absl::Status Launcher::Prepare() {
  host_ = NodeHost(options_);
  std::vector<int> taken = options_.signals_to_handle;
  for (int signal : process::NotIgnored({SIGUSR1, SIGUSR2})) taken.push_back(signal);
  absl::StatusOr<std::unique_ptr<process::SignalWatch>> signals =
      process::SignalWatch::Create(&loop_, taken, [this](int signal) { return OnSignal(signal); });
  if (!signals.ok()) return signals.status();
  signals_ = *std::move(signals);
  absl::StatusOr<std::unique_ptr<LaunchedRanks>> ranks =
      LaunchedRanks::Create(&loop_, &options_, environment_, host_, OfRanks());
  if (!ranks.ok()) return ranks.status();
  ranks_ = *std::move(ranks);
  signals_->CompareWith(ranks_->guard());
  return absl::OkStatus();
}

LaunchedRanks::Callbacks Launcher::OfRanks() {
  LaunchedRanks::Callbacks callbacks;
  callbacks.event = [this](const LauncherEvent& event) { client_->Send(EventMessage{event}); };
  callbacks.failed = [this](const process::WorkerExit& exit, std::string log_folder) {
    own_failures_.push_back({exit, host_, assignment_->group_rank, log_folder});
    client_->Send(FailedMessage{assignment_->round, exit, std::move(log_folder)});
  };
  callbacks.succeeded = [this] { client_->Send(SucceededMessage{assignment_->round}); };
  callbacks.stopped = [this] { OnStopped(); };
  callbacks.other_exit = [this](pid_t pid, int wait_status) {
    const bool ends = phase_ == Phase::kEnding || phase_ == Phase::kDone;
    if (!ends && process::EndedByStopSignal(wait_status)) {
      const int64_t delay_ns = std::chrono::nanoseconds(process::kAfterStopSignal).count();
      loop_.RunAfter(delay_ns, [this, pid, wait_status] { OnOtherExit(pid, wait_status); });
    } else {
      OnOtherExit(pid, wait_status);
    }
  };
  callbacks.restart = [this] { return Restart(); };
  return callbacks;
}

void Launcher::OnOtherExit(pid_t pid, int wait_status) {
  const std::optional<std::chrono::milliseconds> again = observer_.OnOtherExit(pid, wait_status);
  if (phase_ == Phase::kDone) return LeaveJobWhenDone();
  if (!again) return;
  loop_.RunAfter(std::chrono::nanoseconds(*again).count(), [this, pid] {
    observer_.StartAgain(pid);
    SpareOthers();
  });
}

void Launcher::FindHost() {
  if (const std::optional<bool> hosts = HostsStore(options_)) {
    if (*hosts && options_.master_is_node_0) CheckThatThisIsTheMaster();
    return *hosts ? HostAndJoin() : Join(endpoint_);
  }
  resolver_.Resolve(endpoint_, [this](absl::StatusOr<std::vector<process::SocketAddress>> addresses) {
    if (phase_ != Phase::kJoining) return;
    const std::vector<process::SocketAddress> found =
        addresses.ok() ? *std::move(addresses) : std::vector<process::SocketAddress>();
    if (process::IsThisMachine(endpoint_.host, found)) {
      CheckThatRanksGetHere(found);
      HostAndJoin();
    } else {
      Join(endpoint_);
    }
  });
}

// The machine's own name may resolve to nothing here, or to an address that is not here. Ranks, whose master it would be,
// would try for as long as their time-out.
void Launcher::CheckThatRanksGetHere(const std::vector<process::SocketAddress>& addresses) {
  if (endpoint_.host == "localhost" || options_.tiered || process::IsThisMachine("", addresses)) return;
  if (IsOneNode()) {
    spdlog::info("{} does not resolve to this machine: ranks get 127.0.0.1 as master", endpoint_.host);
    endpoint_.host = "127.0.0.1";
  } else if (addresses.empty()) {
    spdlog::warn(
        "{}, the master of the ranks, does not resolve on this machine: name an address, or a name that every node "
        "resolves",
        endpoint_.host);
  }
}

// A shell may have the variables of a step that was elsewhere. Ranks, which are told the master's name, would not get there.
void Launcher::CheckThatThisIsTheMaster() {
  resolver_.Resolve(endpoint_, [this](absl::StatusOr<std::vector<process::SocketAddress>> addresses) {
    if (!addresses.ok() || process::IsThisMachine(endpoint_.host, *addresses)) return;
    spdlog::warn(
        "{}, where node 0 of {} is to be, is not this machine ({}): variables of another job? unset SLURM_STEP_ID to "
        "run without them",
        endpoint_.host, options_.placed_by, host_);
  });
}

void Launcher::HostAndJoin() {
  // A job of one node with a loopback address need not listen on other addresses.
  HostPort listen = endpoint_;
  const bool alone = IsOneNode() && IsLoopback(endpoint_);
  if (listen.host == "localhost") listen.host = "127.0.0.1";
  absl::Status status = store_.ListenRoot(listen, !alone);
  for (int next = 1; absl::IsAlreadyExists(status) && next < options_.master_ports; ++next) {
    listen.port = endpoint_.port + next;
    status = store_.ListenRoot(listen, !alone);
  }
  if (absl::IsAlreadyExists(status) && options_.master_ports > 1) {
    return EndWith(1, fmt::format("no port is free from {} to {} (--master-port names another): {}", endpoint_.port,
                                  listen.port, status.message()));
  }
  if (absl::IsAlreadyExists(status) && !HasNodeRanks(options_)) {
    why_not_here_ = std::string(status.message());
    return Join(endpoint_);
  }
  if (absl::IsAlreadyExists(status)) {
    const bool is_ours = absl::EndsWith(status.message(), "(taskd)");
    return EndWith(1, fmt::format("{}{} (--master-port names another{})", status.message(),
                                  is_ours ? ", another launcher, which may be about to end" : "",
                                  IsOneNode() ? ", --standalone takes a free one" : ""));
  }
  if (!status.ok()) return EndWith(1, std::string(status.message()));
  hosts_store_ = true;
  endpoint_.port = store_.root_port();
  if (!options_.placed_by.empty()) process::PrintRunLine(PlacementLine(options_, endpoint_.port));
  ServeRoot();
  Join({alone ? listen.host : "127.0.0.1", endpoint_.port});
}

void Launcher::ServeRoot() {
  const bool given = !secret_.empty();
  SetSecret(given ? secret_ : NewSecret());
  nonce_ = NewSecret();
  manager_is_due_ = options_.manager.empty();
  observer_.OnHosting({[this](int id) { store_.CollectStacks(id); },
                       [this](const LookMessage& message) { store_.Look(message); },
                       [this](const std::string& reason) { store_.Restart(reason); },
                       [this](const std::string& reason) { store_.EndJob(reason); }});
  Rendezvous::Options with = RendezvousOptions(options_, options_.manager == "off" ? "" : options_.manager);
  with.secret = secret_;
  with.nonce = nonce_;
  with.awaits_manager = manager_is_due_;
  if (options_.manager != "off") with.mark_folder = observer_.ChooseMarkFolder();
  StoreHost::Callbacks callbacks;
  callbacks.on_event = [this](const LauncherEvent& event) { observer_.OnEvent(event); };
  callbacks.on_waiting = [this](const std::string& waits_for) { observer_.OnWaiting(waits_for); };
  callbacks.on_stacks = [this](int id, const std::string& text) { observer_.OnStacks(id, text); };
  callbacks.on_evidence = [this](int hang, const std::string& text) { observer_.OnEvidence(hang, text); };
  store_.ServeRoot(std::move(with), std::move(callbacks), /*peers_prove=*/given);
}

// Starts the job's manager; every node gets its address in its Assignment. This node has joined before: the start takes
// seconds, in which only other launchers could join.
void Launcher::StartManager() {
  const std::string manager = observer_.StartManager();
  SpareOthers();
  store_.SetManager(manager);
}

void Launcher::SetSecret(const std::string& secret) {
  secret_ = secret;
  if (!std::exchange(secret_known_, true)) observer_.OnSecret(secret_);
}

void Launcher::Join(HostPort root) {
  if (options_.tiered) {
    absl::StatusOr<int> port = store_.ServeTier(options_.store_fan_out > 0);
    if (!port.ok()) return EndWith(1, std::string(port.status().message()));
    tier_port_ = *port;
  }
  NodeInfo info = DescribeNode(options_, host_);
  info.nonce = nonce_;
  info.tier_port = options_.store_fan_out > 0 ? tier_port_ : 0;
  RendezvousClient::Callbacks callbacks;
  callbacks.received = [this](RootMessage message) { OnMessage(std::move(message)); };
  callbacks.failed = [this](const std::string& why) {
    root_lost_ = true;
    EndWith(1, why_not_here_.empty() || assignment_ ? why : why_not_here_ + "; " + why);
  };
  const Rendezvous::Options with = RendezvousOptions(options_, "");
  client_ = std::make_unique<RendezvousClient>(&loop_, std::move(root), std::move(info), secret_, with.join_timeout_ns,
                                               with.silence_ns, std::move(callbacks),
                                               hosts_store_ ? 1 : options_.master_ports);
  client_->Start();
}

// ---- Messages from the rendezvous

void Launcher::OnMessage(RootMessage message) {
  if (phase_ == Phase::kEnding || phase_ == Phase::kDone) return;
  std::visit([this](auto& one) { On(std::move(one)); }, message);
}

void Launcher::On(WaitingMessage message) {
  waiting_ = std::move(message.text);
  if (std::exchange(manager_is_due_, false)) StartManager();
}

void Launcher::PrintWaiting() {
  if (phase_ == Phase::kJoining && SpeaksForNode()) {
    if (client_ == nullptr || !client_->connected()) {
      const std::string why = client_ == nullptr ? "" : client_->last_error();
      spdlog::warn("waiting for node 0's launcher at {}{}", FormatHostPort(endpoint_), why.empty() ? "" : ": " + why);
    } else if (!waiting_.empty() && SpeaksForJob()) {
      spdlog::warn("waiting: {}", waiting_);
    }
  }
  loop_.RunAfter(kWaitingLineNs, [this] { PrintWaiting(); });
}

void Launcher::On(StartMessage message) {
  if (phase_ != Phase::kJoining) return;
  assignment_ = std::move(message.assignment);
  if (!hosts_store_) endpoint_.port = client_->port();
  phase_ = Phase::kRunning;
  waiting_.clear();
  absl::Status status = prepared_ ? absl::OkStatus() : PrepareFirstStart(*assignment_);
  if (status.ok()) status = StartRanks(*assignment_);
  if (status.ok()) return;
  process::WorkerExit exit;
  exit.rank = assignment_->rank_base;
  exit.code = 1;
  exit.time_ns = RealtimeNs();
  exit.error_message = std::string(status.message());
  process::PrintRunLine(exit.error_message);
  client_->Send(FailedMessage{assignment_->round, exit, ""});
}

absl::Status Launcher::PrepareFirstStart(const Assignment& assignment) {
  absl::Status status = ranks_->Prepare(options_.tiered ? HostPort{"127.0.0.1", tier_port_} : endpoint_);
  if (!status.ok()) return status;
  SetSecret(assignment.secret);
  prepared_ = true;
  return absl::OkStatus();
}

// The root as this node reaches it, or another node's tier. One that is on the root's machine came to it by loopback.
HostPort Launcher::TierUpstream(const Assignment& assignment) const {
  HostPort root = hosts_store_ ? HostPort{"127.0.0.1", endpoint_.port} : endpoint_;
  if (assignment.tier.empty()) return root;
  absl::StatusOr<HostPort> tier = ParseHostPort("tier", assignment.tier);
  if (!tier.ok()) return root;
  return IsLoopback(*tier) ? HostPort{root.host, tier->port} : *tier;
}

void Launcher::SpareOthers() {
  for (pid_t pid : observer_.SparePids()) ranks_->Spare(pid);
}

absl::Status Launcher::StartRanks(const Assignment& assignment) {
  own_failures_.clear();
  ranks_started_ns_ = EventLoop::NowNs();
  observer_.BeforeStart(assignment);
  SpareOthers();
  if (options_.tiered) store_.SetUpstream(TierUpstream(assignment), assignment.node_timeout_ms);
  return ranks_->Start(assignment, observer_.RankEnvironment(assignment));
}

void Launcher::On(StopMessage message) {
  if (phase_ != Phase::kRunning || message.round != assignment_->round) return;
  if (SpeaksForJob()) spdlog::warn("ranks are restarted: {}", message.reason);
  phase_ = Phase::kStopping;
  ranks_->Stop(SIGTERM);
}

void Launcher::On(EndMessage message) {
  if (options_.tiered) store_.ExpectEnd();
  EndWith(message.exit_code, SpeaksForNode() ? message.reason : "", std::move(message.failures));
}

void Launcher::On(RefusedMessage message) {
  EndWith(1, fmt::format("refused by the launcher at {}: {}", FormatHostPort(endpoint_), message.text));
}

void Launcher::On(CollectMessage message) {
  std::optional<std::string> stacks = observer_.CollectStacks(ranks_->pids());
  if (stacks) client_->Send(StacksMessage{message.id, *std::move(stacks)});
}

void Launcher::On(const LookMessage& message) {
  std::optional<std::string> evidence = observer_.Look(message, ranks_->pids());
  if (evidence) client_->Send(EvidenceMessage{message.hang, *std::move(evidence)});
}

// ---- What the ranks and people do

void Launcher::OnStopped() {
  if (phase_ == Phase::kStopping) {
    phase_ = Phase::kJoining;
    client_->Send(StoppedMessage{assignment_->round});
  } else if (phase_ == Phase::kEnding) {
    Finish();
  }
}

absl::Status Launcher::Restart() {
  if (!hosts_store_) return absl::FailedPreconditionError("RESTART is done by the launcher of node 0");
  if (phase_ != Phase::kRunning) return absl::FailedPreconditionError("the ranks of this node do not run now");
  if (assignment_->restart_count >= options_.max_restarts) {
    return absl::FailedPreconditionError(fmt::format("no restart is left (--max-restarts {})", options_.max_restarts));
  }
  store_.Restart("the manager asks for it (RESTART)");
  return absl::OkStatus();
}

// ---- Signals

process::SignalWatch::IfAlone Launcher::OnSignal(int signal) {
  const std::vector<int>& ending = options_.signals_to_handle;
  if (std::find(ending.begin(), ending.end(), signal) == ending.end()) {
    return [this, signal] { ranks_->Signal(signal); };
  }
  // Schedulers repeat themselves, Slurm within milliseconds. Only who means this process has no patience left.
  if (std::exchange(signalled_, true)) return [this, signal] { NoPatience(signal); };
  BeginDeadline();
  if (phase_ == Phase::kEnding || phase_ == Phase::kDone) return nullptr;  // another node's signal was faster
  return EndBySignal(signal);
}

// The ranks may have had the signal; and then the launchers of other nodes, and their ranks, are having it now.
process::SignalWatch::IfAlone Launcher::EndBySignal(int signal) {
  const bool sent = phase_ == Phase::kStopping && signal == SIGTERM;
  // Who signals every process may have missed one that was just being started.
  const bool young = EventLoop::NowNs() - ranks_started_ns_ < kAllNodesNs;
  leaves_with_ = signal;
  loop_.RunAfter(kAllNodesNs, [this] {
    if (leaves_with_) Leave(*leaves_with_);
  });
  if (SpeaksForJob()) spdlog::warn("{}: the job is ended", process::SignalName(signal));
  // After Ctrl-C the launcher prints its line once more, below the output of the ranks.
  const bool is_last = signal == SIGINT && SpeaksForJob();
  EndWith(128 + signal, is_last ? "interrupted, and all ranks have ended" : "", {}, young ? signal : 0);
  return [this, signal, pass_on = !sent && !young] {
    Leave(signal);
    if (pass_on && phase_ == Phase::kEnding) ranks_->Stop(signal);
  };
}

void Launcher::BeginDeadline() {
  observer_.OnDeadline(EventLoop::NowNs() + static_cast<int64_t>((options_.shutdown_timeout_s + kEndS) * kNsPerS));
  After(options_.shutdown_timeout_s + kKilledS, [this] { Finish(); });
  After(options_.shutdown_timeout_s + kOthersS, [this] { loop_.Stop(); });
}

void Launcher::NoPatience(int signal) {
  if (phase_ == Phase::kEnding) {
    exit_code_ = 128 + signal;
    ranks_->Stop(SIGKILL);
  } else if (phase_ == Phase::kDone) {  // only waits for the proxy and other nodes
    loop_.Stop();
  }
}

void Launcher::Leave(int signal) {
  leaves_with_.reset();
  if (client_ != nullptr) client_->Send(LeaveMessage{signal});
  LeaveJobWhenDone();
}

// ---- End

void Launcher::EndWith(int code, std::string line, std::vector<RankFailure> failures, int signal) {
  if (phase_ == Phase::kEnding || phase_ == Phase::kDone) return;
  const bool stops_already = phase_ == Phase::kStopping;
  phase_ = Phase::kEnding;
  exit_code_ = code;
  last_line_ = std::move(line);
  failures_ = std::move(failures);
  observer_.OnEnding();
  if (stops_already) {
    if (signal != SIGTERM) ranks_->Signal(signal);
  } else {
    ranks_->Stop(signal);
  }
}

// Nothing of the ranks runs any more, or they do not end even though they were killed. What people have to know comes
// first: whatever follows may be cut short.
void Launcher::Finish() {
  if (phase_ != Phase::kEnding) return;
  phase_ = Phase::kDone;
  ranks_->CloseAgentLine();
  // A task's result is its rank's own, where that has one.
  if (options_.task && ranks_->ended_by_itself()) exit_code_ = *ranks_->ended_by_itself();
  ReportFailures();
  if (!last_line_.empty()) process::PrintRunLine(last_line_);
  LeaveTerminationLog();
  RemoveEmptyFolders(ranks_->logs());
  if (options_.task) {
    After(options_.shutdown_timeout_s + kAloneMarginS, [this] { LeaveJob(); });
    return AwaitProxy();
  }
  if (observer_.EndProxy()) {
    loop_.RunAfter(kProxyEndNs, [this] { LeaveJob(); });
  }
  LeaveJobWhenDone();
}

// That of a node's tasks ends after the last of them, of which only asking tells.
void Launcher::AwaitProxy() {
  LeaveJobWhenDone();
  if (!left_) loop_.RunAfter(kOtherTasksNs, [this] { AwaitProxy(); });
}

void Launcher::LeaveTerminationLog() {
  const std::string text = TerminationMessage(last_line_, failures_);
  // Who has the error file written there reads JSON.
  const bool is_error_file = !failures_.empty() && ValueOf(environment_, "TORCHELASTIC_ERROR_FILE") == kTerminationLog;
  if (exit_code_ != 0 && !text.empty() && !is_error_file) {
    files_.Do([text] {
      WriteTerminationLog(text);
      return nullptr;
    });
  }
}

void Launcher::ReportFailures() {
  // The report once for the job. Where node 0's launcher is lost, each node says what it knows.
  if (failures_.empty() && root_lost_) failures_ = own_failures_;
  if (failures_.empty()) return;
  for (RankFailure& failure : failures_) {
    if (assignment_) failure.group_rank = NodeOf(options_, *assignment_, failure.group_rank);
  }
  if (hosts_store_ || root_lost_) {
    WriteToStderr(FailureReport(options_.program, failures_));
  } else if (!options_.task) {
    last_line_ += "; the report is on node 0";
  }
  const std::string copy = ValueOf(environment_, "TORCHELASTIC_ERROR_FILE");
  if (copy.empty()) return;
  files_.Do([copy, failure = failures_.front()]() -> StorageThread::Report {
    absl::Status status = WriteErrorFile(copy, failure);
    if (status.ok()) return nullptr;
    return [status] { spdlog::warn("{}", status.message()); };
  });
}

// The proxy's last folds are for the manager, which lives as long as any node has not left.
void Launcher::LeaveJobWhenDone() {
  if (phase_ == Phase::kDone && !leaves_with_ && !observer_.EndProxy()) LeaveJob();
}

void Launcher::LeaveJob() {
  if (std::exchange(left_, true)) return;
  if (client_ != nullptr) client_->Close();
  // The other nodes' ranks still use the store, or are being ended.
  store_.WhenAlone([this] { loop_.Stop(); });
  After(options_.shutdown_timeout_s + kAloneMarginS, [this] { loop_.Stop(); });
}

void Launcher::After(double seconds, EventLoop::Callback callback) {
  loop_.RunAfter(static_cast<int64_t>(seconds * kNsPerS), std::move(callback));
}

}  // namespace

int RunLauncher(RunOptions options, std::map<std::string, std::string> environment, LauncherObserver& observer) {
  return Launcher(std::move(options), std::move(environment), observer).Run();
}

}  // namespace taskd::run
