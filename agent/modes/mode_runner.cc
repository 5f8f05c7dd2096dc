#include "agent/modes/mode_runner.h"

#include <arpa/inet.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iostream>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "agent/modes/job_member.h"
#include "agent/modes/mpi/mpi_node.h"
#include "agent/modes/node_files.h"
#include "agent/modes/patience.h"
#include "agent/modes/reach.h"
#include "agent/modes/route_step.h"
#include "agent/process/child_processes.h"
#include "agent/process/daemons.h"
#include "agent/process/guard.h"
#include "agent/process/process_tree.h"
#include "agent/process/signals.h"
#include "agent/process/worker_group.h"
#include "common/address.h"
#include "common/event_loop.h"
#include "common/job_file.h"
#include "common/job_secret.h"
#include "common/listen.h"
#include "common/log.h"
#include "common/printable.h"
#include "common/unique_fd.h"

namespace taskd {
namespace {

constexpr int64_t kNsPerS = 1'000'000'000;
constexpr int64_t kGraceNs = 10 * kNsPerS;  // between SIGTERM and SIGKILL
constexpr int64_t kRankTablePollNs = kNsPerS;
constexpr int64_t kEndAnswerNs = 5 * kNsPerS;  // of the manager, after this node has failed
constexpr int64_t kRayStopNs = 8 * kNsPerS;
constexpr int64_t kRemoteEndNs = 4 * kNsPerS;
constexpr int64_t kOthersEndNs = 20 * kNsPerS;  // node 0 keeps the manager for them
constexpr int64_t kLateNs = 10 * kNsPerS;       // and for those that have not come before the job ended
constexpr int kWrongUsage = 2;

constexpr int kEndingSignals[] = {SIGTERM, SIGINT, SIGHUP, SIGQUIT};
constexpr int kPassedSignals[] = {SIGUSR1, SIGUSR2};

void Say(std::string line) {
  std::replace(line.begin(), line.end(), '\n', ' ');
  std::cerr << "taskd run: " << Printable(line, kShownLineBytes) << std::endl;
}

bool IsAddress(const std::string& host) {
  in6_addr any;
  return inet_pton(AF_INET, host.c_str(), &any) == 1 || inet_pton(AF_INET6, host.c_str(), &any) == 1;
}

bool HasFolder(const std::string& path) {
  std::error_code error;
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  return folder.empty() || std::filesystem::is_directory(folder, error);
}

class ModeRunner {
 public:
  explicit ModeRunner(ModeRun run) : run_(std::move(run)) {}
  int Run();

 private:
  enum class Phase : uint8_t { kStarting, kRunning, kEnding, kDone };

  // Before the loop.
  absl::StatusOr<ModePlan> Plan();
  absl::Status CheckPorts() const;
  absl::Status Prepare();

  // Step by step until CMD runs; each ends with the next.
  void WaitForRankTable();
  void WaitForNames();
  void Meet();
  void WaitForOthers();
  void WaitForRemoteStart();
  void PlanRoute();
  absl::Status TakeRoute(const std::string& folder);
  void StartRay();
  void RayStarted(int code);
  void StartCommand();

  void ChooseSecret();
  std::string SecretOfManager() const;
  absl::Status StartDaemons();
  absl::Status Join();
  Environment CommandEnvironment(const Environment& of_mode) const;
  bool UsesTaskdRsh() const;

  void OnExit(const WorkerExit& exit);
  void OnOtherExit(pid_t pid, int wait_status);
  void OnSignal(int signal);
  void OnState();
  void NodeEnded(int code, const std::string& reason);  // this node's part is over
  void WaitIsOver(const std::string& line);
  // The job is over: whatever still runs here is ended, `line` is said, and the program ends with `code`.
  void EndWith(int code, std::string line);
  void StopAll();
  void OnStopped();
  void EndIfAlone();
  void CancelTimers();

  bool ending() const { return phase_ == Phase::kEnding || phase_ == Phase::kDone; }

  ModeRun run_;
  ModePlan plan_;
  std::string rank_table_missing_;  // why there is no plan yet
  std::map<std::string, std::string> addresses_;

  EventLoop loop_;
  UniqueFd signals_;
  std::unique_ptr<Guard> guard_;
  std::string cookie_;
  std::unique_ptr<WorkerGroup> group_;
  std::unique_ptr<ChildProcesses> children_;
  std::unique_ptr<Daemons> daemons_;
  bool hosts_manager_ = false;
  std::string dial_;  // the manager, as this node reaches it
  std::unique_ptr<JobMember> member_;
  std::unique_ptr<MpiNode> mpi_;

  Patience patience_{&loop_, run_.options.wait_s, [this](const std::string& line) { WaitIsOver(line); }};
  std::unique_ptr<NameWait> names_;
  std::unique_ptr<PortWait> head_;
  bool waits_for_others_ = false;
  std::optional<EventLoop::TimerId> table_timer_, end_timer_;

  Phase phase_ = Phase::kStarting;
  size_t left_ = 0;  // processes of CMD that have not ended
  std::optional<int> own_code_;
  std::map<pid_t, std::string> ray_processes_;
  bool ray_started_ = false;
  int exit_code_ = 1;
  std::string last_line_;
};

// ---- Before the loop

absl::StatusOr<ModePlan> ModeRunner::Plan() {
  ModeMachine machine = run_.machine;
  machine.ipv4 = [this](const std::string& host) {
    if (IsAddress(host)) return host;
    auto found = addresses_.find(host);
    return found == addresses_.end() ? std::string() : found->second;
  };
  return PlanMode(run_.options, run_.environment, machine);
}

absl::Status ModeRunner::CheckPorts() const {
  for (const ClaimedPort& claimed : plan_.binds) {
    absl::StatusOr<UniqueFd> socket = ListenTcp({"", claimed.port}, true);
    if (!absl::IsAlreadyExists(socket.status()) || !IsListenedOn(claimed.port)) continue;
    const std::string holder = HolderOfPort(claimed.port);
    return absl::InvalidArgumentError(
        absl::StrCat(claimed.variable, " '", claimed.port, "': the port is listened on already",
                     holder.empty() ? "" : absl::StrCat(" by ", holder), "; this node's command has to listen there"));
  }
  return absl::OkStatus();
}

absl::Status ModeRunner::Prepare() {
  std::vector<int> taken(std::begin(kEndingSignals), std::end(kEndingSignals));
  taken.insert(taken.end(), std::begin(kPassedSignals), std::end(kPassedSignals));
  absl::StatusOr<UniqueFd> signals = WatchSignals(&loop_, taken, [this](int signal) { OnSignal(signal); });
  if (!signals.ok()) return signals.status();
  signals_ = *std::move(signals);
  cookie_ = NewCookie();
  absl::StatusOr<std::unique_ptr<Guard>> guard = Guard::Start(cookie_);
  if (!guard.ok()) return guard.status();
  guard_ = *std::move(guard);
  WorkerGroup::Callbacks callbacks;
  callbacks.on_exit = [this](const WorkerExit& exit) { OnExit(exit); };
  callbacks.on_stopped = [this] { OnStopped(); };
  callbacks.on_other_exit = [this](pid_t pid, int wait_status) { OnOtherExit(pid, wait_status); };
  group_ = WorkerGroup::Create(&loop_, kGraceNs, callbacks);
  group_->Spare(guard_->pid());
  children_ = std::make_unique<ChildProcesses>(group_.get());
  return absl::OkStatus();
}

int ModeRunner::Run() {
  absl::StatusOr<ModePlan> plan = Plan();
  // A rank table that the platform has not written or finished is waited for; a folder that is not there is a mistake.
  const bool table_may_come = absl::IsFailedPrecondition(plan.status()) ||
                              (absl::IsNotFound(plan.status()) && HasFolder(run_.environment["RANK_TABLE_FILE"]));
  absl::Status status = table_may_come ? absl::OkStatus() : plan.status();
  if (plan.ok()) {
    plan_ = *std::move(plan);
    status = CheckPorts();
  }
  if (!status.ok()) {
    Say(std::string(status.message()));
    return kWrongUsage;
  }
  if (absl::Status prepared = Prepare(); !prepared.ok()) {
    Say(std::string(prepared.message()));
    return 1;
  }
  loop_.Post([this, table_may_come] { table_may_come ? WaitForRankTable() : WaitForNames(); });
  loop_.Run();
  mpi_.reset();
  member_.reset();
  group_.reset();
  daemons_.reset();
  return exit_code_;
}

// ---- Step by step

void ModeRunner::WaitForRankTable() {
  absl::StatusOr<ModePlan> plan = Plan();
  if (absl::IsNotFound(plan.status()) || absl::IsFailedPrecondition(plan.status())) {
    rank_table_missing_ = std::string(plan.status().message());
    if (!patience_.waits()) patience_.Begin([this] { return rank_table_missing_; });
    table_timer_ = loop_.RunAfter(kRankTablePollNs, [this] { WaitForRankTable(); });
    return;
  }
  patience_.End();
  if (!plan.ok()) return EndWith(kWrongUsage, std::string(plan.status().message()));
  plan_ = *std::move(plan);
  WaitForNames();
}

void ModeRunner::WaitForNames() {
  if (plan_.unresolved.empty()) return Meet();
  const std::set<std::string> names(plan_.unresolved.begin(), plan_.unresolved.end());
  patience_.Begin([this] { return names_->missing(); });
  names_ = std::make_unique<NameWait>(&loop_, std::vector<std::string>(names.begin(), names.end()),
                                      [this](std::map<std::string, std::string> found) {
                                        patience_.End();
                                        names_.reset();
                                        addresses_ = std::move(found);
                                        absl::StatusOr<ModePlan> plan = Plan();
                                        if (!plan.ok())
                                          return EndWith(kWrongUsage, std::string(plan.status().message()));
                                        plan_ = *std::move(plan);
                                        Meet();
                                      });
}

// The daemons of this node, and the way to the other nodes.
void ModeRunner::Meet() {
  for (const std::string& warning : plan_.warnings) spdlog::warn("{}", warning);
  spdlog::info("mode {} (platform {}): node {} of {}, {}", ModeName(plan_.mode), PlatformName(plan_.platform),
               plan_.index, plan_.nodes.size(), plan_.role);
  absl::Status status = StartDaemons();
  if (status.ok()) status = Join();
  if (!status.ok()) return EndWith(1, std::string(status.message()));
  plan_.mode == Mode::kRay ? StartRay() : WaitForOthers();
}

void ModeRunner::WaitForOthers() {
  if (member_->MayStart()) return WaitForRemoteStart();
  waits_for_others_ = true;
  patience_.Begin([this] { return member_->Missing(); });
}

void ModeRunner::OnState() {
  if (phase_ == Phase::kDone) return EndIfAlone();
  if (own_code_ && member_->all_joined()) patience_.End();
  if (!waits_for_others_ || !member_->MayStart()) return;
  waits_for_others_ = false;
  patience_.End();
  WaitForRemoteStart();
}

void ModeRunner::WaitForRemoteStart() {
  if (!mpi_) return PlanRoute();
  patience_.Begin([this] { return mpi_->Missing(); });
  mpi_->WaitForOthers([this] {
    patience_.End();
    StartCommand();
  });
}

void ModeRunner::PlanRoute() {
  if (!run_.options.route) return StartCommand();
  if (daemons_->folder().empty()) return NodeEnded(1, "no folder of this user's own for the route's files");
  RouteStepOptions options;
  options.program = run_.program;
  options.folder = absl::StrCat(daemons_->folder(), "/route");
  options.dial = dial_;
  options.self = RouteSelf(run_.options.self, run_.environment);
  options.rank_table = run_.options.rank_table;
  options.topology = run_.options.topology;
  options.wait_s = run_.options.wait_s;
  absl::Status status = StartRouteStep(options, plan_, CommandEnvironment({}), children_.get(),
                                       [this, folder = options.folder](absl::Status planned) {
                                         if (own_code_ || ending()) return;
                                         if (planned.ok()) planned = TakeRoute(folder);
                                         if (!planned.ok()) return NodeEnded(1, std::string(planned.message()));
                                         StartCommand();
                                       });
  if (!status.ok()) NodeEnded(1, std::string(status.message()));
}

absl::Status ModeRunner::TakeRoute(const std::string& folder) {
  if (plan_.mode == Mode::kAscend) {
    // The same processes with the ranks of the table as it is now.
    run_.environment["RANK_TABLE_FILE"] = absl::StrCat(folder, "/jobstart_routeplan.json");
    absl::StatusOr<ModePlan> plan = Plan();
    if (!plan.ok()) return plan.status();
    plan_.processes = std::move(plan->processes);
  }
  return ApplyRoute(
      folder,
      [this](const std::string& name) {
        auto found = addresses_.find(name);
        return found == addresses_.end() ? name : found->second;
      },
      &plan_);
}

// Node 0's `ray start` comes first; the others' need its port; CMD needs all of them.
void ModeRunner::StartRay() {
  auto start = [this] {
    const ModeProcess& process = plan_.processes.front();
    absl::StatusOr<pid_t> pid =
        children_->Start(process.argv, CommandEnvironment(process.environment), [this](int code) { RayStarted(code); });
    if (!pid.ok()) NodeEnded(1, std::string(pid.status().message()));
  };
  if (plan_.index == 0) return start();
  const HostPort head = {plan_.processes.front().environment["HEAD_ADDR"], plan_.head_port};
  patience_.Begin([this, head] {
    return absl::StrCat("Ray's head at ", FormatHostPort(head), " does not answer (", head_->last_error(), ")");
  });
  head_ = std::make_unique<PortWait>(&loop_, head, [this, start] {
    patience_.End();
    head_.reset();
    start();
  });
}

void ModeRunner::RayStarted(int code) {
  if (phase_ != Phase::kStarting) return;
  if (code != 0) return NodeEnded(code, absl::StrCat("'ray start' has ended with code ", code));
  ray_started_ = true;
  for (const ProcessInfo& process : Descendants(getpid(), {})) {
    std::ifstream file(absl::StrCat("/proc/", process.pid, "/comm"));
    std::string name;
    if (std::getline(file, name) && (name == "raylet" || name == "gcs_server")) ray_processes_[process.pid] = name;
  }
  member_->Ready();
  if (plan_.processes.size() == 1) {  // serves until the job ends
    phase_ = Phase::kRunning;
  } else {
    WaitForOthers();
  }
}

void ModeRunner::StartCommand() {
  for (const PlannedFile& file : plan_.files) {
    if (absl::Status status = WriteWholeFile(file.path, file.content); !status.ok()) {
      return NodeEnded(1, std::string(status.message()));
    }
  }
  phase_ = Phase::kRunning;
  std::vector<WorkerSpec> workers;
  for (size_t i = plan_.mode == Mode::kRay ? 1 : 0; i < plan_.processes.size(); ++i) {
    WorkerSpec& worker = workers.emplace_back();
    worker.local_rank = worker.rank = static_cast<int>(workers.size()) - 1;
    worker.argv = plan_.processes[i].argv;
    worker.environment = CommandEnvironment(plan_.processes[i].environment);
  }
  left_ = workers.size();
  if (mpi_) mpi_->CommandStarts();
  // Also without a process of its own: then the group ends what mpirun leaves behind here.
  if (absl::Status status = group_->Start(workers); !status.ok()) NodeEnded(1, std::string(status.message()));
}

// ---- What else this node runs

// The nodes meet nowhere before they meet at the manager, so none can hand a secret to the others: where the operator
// gave none, what they all know of the job stands in for it. One node has a secret of its own.
void ModeRunner::ChooseSecret() {
  if (!run_.security.tls_dir.empty() || !run_.security.secret.empty()) return;
  run_.security.fallback = plan_.nodes.size() > 1 ? StandInSecret(PlanText(plan_)) : NewSecret();
}

// One that somebody has started before, by himself, may have left another one for this user.
std::string ModeRunner::SecretOfManager() const {
  if (!run_.security.secret.empty()) return run_.security.secret;
  absl::StatusOr<HostPort> address = ParseHostPort("--manager", dial_);
  const std::optional<JobFile> job = address.ok() ? JobAt(*address) : std::nullopt;
  return job ? job->secret : run_.security.fallback;
}

absl::Status ModeRunner::StartDaemons() {
  ChooseSecret();
  DaemonOptions options;
  options.nodes = static_cast<int>(plan_.nodes.size());
  options.procs_per_node = std::max(1, plan_.nodes.front().cards);
  options.environment = run_.environment;
  daemons_ = std::make_unique<Daemons>(std::move(options));
  daemons_->SetSecret(run_.security.secret.empty() ? run_.security.fallback : run_.security.secret);
  std::string manager;
  if (plan_.manager.empty()) {
    manager = daemons_->StartManager("127.0.0.1");
  } else {
    absl::StatusOr<HostPort> reached = ParseHostPort("--manager", plan_.manager);
    if (!reached.ok()) return reached.status();
    dial_ = plan_.manager;
    if (plan_.index == 0) {
      // The node's own name may not resolve here.
      const HostPort here = {IsLoopback(*reached) ? reached->host : "127.0.0.1", reached->port};
      const bool is_here = reached->host == plan_.nodes.front().name || IsThisNode(reached->host);
      if (is_here && !Daemons::Answers(here) && !Daemons::Answers(*reached)) {
        hosts_manager_ = daemons_->StartManagerAt(*reached);
        if (!hosts_manager_) return absl::UnavailableError(absl::StrCat("no manager at ", plan_.manager));
      }
      if (hosts_manager_) dial_ = FormatHostPort(here);
    }
    manager = dial_;
  }
  if (!hosts_manager_ && !plan_.manager.empty()) daemons_->SetSecret(SecretOfManager());
  daemons_->StartProxy(plan_.index, manager);
  for (auto& [name, value] : daemons_->RankEnvironment(manager)) run_.environment[name] = value;
  for (pid_t pid : daemons_->pids()) group_->Spare(pid);
  return absl::OkStatus();
}

absl::Status ModeRunner::Join() {
  JobMember::Callbacks callbacks;
  callbacks.state = [this] { OnState(); };
  callbacks.end = [this](int code, const std::string& reason) { EndWith(code, code == 0 ? "" : reason); };
  callbacks.failed = [this](const std::string& why) { EndWith(own_code_.value_or(0) != 0 ? *own_code_ : 1, why); };
  callbacks.mpirun = [this](const v1::MpirunCall& call) {
    if (mpi_) mpi_->On(call);
  };
  callbacks.remote = [this](const v1::RemoteCommand& command) {
    // The manager sends none to a node that has not said that it takes them; a node does not rely on that.
    if (mpi_ && UsesTaskdRsh() && !ending()) mpi_->On(command);
  };
  member_ = std::make_unique<JobMember>(&loop_, &plan_, std::move(callbacks));
  if (plan_.mode == Mode::kMpi || plan_.mode == Mode::kHorovod) {
    MpiNode::Options options;
    options.program = run_.program;
    options.folder = daemons_->folder();
    options.taskd_rsh = UsesTaskdRsh();
    options.environment = CommandEnvironment({});
    options.addresses = addresses_;
    options.failed = [this](const std::string& why) { NodeEnded(1, why); };
    mpi_ = std::make_unique<MpiNode>(&loop_, children_.get(), member_.get(), &plan_, std::move(options));
    if (absl::Status status = mpi_->Start(); !status.ok()) return status;
  }
  JobMember::Options options;
  options.dial = dial_;
  options.security = run_.security;
  options.run_id = cookie_;
  options.hosts_manager = hosts_manager_;
  options.remote_start = mpi_ != nullptr && UsesTaskdRsh();
  options.addresses = OwnNamesAndAddresses();
  if (plan_.index < static_cast<int>(plan_.nodes.size())) {  // not an evaluator
    const std::string& name = plan_.nodes[static_cast<size_t>(plan_.index)].name;
    options.addresses.push_back(name);
    auto found = addresses_.find(name);
    if (found != addresses_.end()) options.addresses.push_back(found->second);
  }
  return member_->Join(options);
}

bool ModeRunner::UsesTaskdRsh() const {
  if (plan_.manager.empty() || run_.environment.contains("OMPI_MCA_plm_rsh_agent")) return false;  // the user's own way
  const bool has_secret = !run_.security.secret.empty() || !run_.security.tls_dir.empty();
  return run_.options.remote_start == RemoteStart::kTaskd ||
         (run_.options.remote_start == RemoteStart::kAuto && has_secret);
}

Environment ModeRunner::CommandEnvironment(const Environment& of_mode) const {
  Environment result = run_.environment;
  for (const auto& [name, value] : of_mode) result[name] = value;
  if (mpi_) mpi_->AddTo(&result);
  // An outer launcher's guard has to find these, too.
  std::string& cookies = result[kCookieVariable];
  absl::StrAppend(&cookies, cookies.empty() ? "" : ",", cookie_);
  return result;
}

// ---- Ends

void ModeRunner::OnExit(const WorkerExit& exit) {
  if (phase_ != Phase::kRunning || own_code_) return;
  --left_;
  if (exit.ok()) {
    if (left_ == 0) NodeEnded(0, "");
    return;
  }
  const std::string program = plan_.processes.back().argv.front();
  const std::string what =
      plan_.mode == Mode::kAscend ? absl::StrCat("process ", exit.local_rank, " (", program, ")") : program;
  NodeEnded(exit.code, exit.signal != 0
                           ? absl::StrCat(what, " was ended by signal ", exit.signal)
                           : absl::StrCat(what, " has ended with code ", exit.code, mpi_ ? mpi_->Why(exit.code) : ""));
}

void ModeRunner::OnOtherExit(pid_t pid, int wait_status) {
  if (children_->OnExit(pid, wait_status)) return;
  if (daemons_ && phase_ != Phase::kDone) {
    daemons_->OnExit(pid, wait_status);
    for (pid_t one : daemons_->pids()) group_->Spare(one);
  }
  auto ray = ray_processes_.find(pid);
  if (ray != ray_processes_.end()) NodeEnded(1, absl::StrCat("Ray's ", ray->second, " has ended by itself"));
}

void ModeRunner::NodeEnded(int code, const std::string& reason) {
  if (own_code_ || ending()) return;
  own_code_ = code;
  waits_for_others_ = false;
  patience_.End();
  if (mpi_ && phase_ == Phase::kRunning) mpi_->CommandEnded(code);
  if (member_) member_->Ended(code, reason);
  if (!member_ || !member_->has_manager()) return EndWith(code, reason);
  if (code != 0) {
    // The others hear of it first; then everybody ends with the job's code, which may be another node's.
    group_->Signal(SIGTERM);
    end_timer_ = loop_.RunAfter(kEndAnswerNs, [this, code, reason] { EndWith(code, reason); });
    return;
  }
  if (!member_->all_joined()) patience_.Begin([this] { return member_->Missing(); });
}

void ModeRunner::WaitIsOver(const std::string& line) {
  // Who has waited for the manager in vain need not wait for its answer, too.
  const bool nobody_answers = member_ != nullptr && member_->has_manager() && !member_->connected();
  own_code_ || nobody_answers ? EndWith(1, line) : NodeEnded(1, line);
}

void ModeRunner::EndWith(int code, std::string line) {
  if (ending()) return;
  phase_ = Phase::kEnding;
  exit_code_ = code;
  last_line_ = std::move(line);
  CancelTimers();
  names_.reset();
  head_.reset();
  if (member_) member_->Ended(code, last_line_);
  if (mpi_) mpi_->StopWaiting();
  if (mpi_ && mpi_->EndRemote([this] { StopAll(); })) {
    group_->Signal(SIGTERM);
    end_timer_ = loop_.RunAfter(kRemoteEndNs, [this] { StopAll(); });
    return;
  }
  if (!ray_started_) return StopAll();
  group_->Signal(SIGTERM);
  absl::StatusOr<pid_t> pid = children_->Start({"ray", "stop"}, CommandEnvironment(plan_.processes.front().environment),
                                               [this](int) { StopAll(); });
  if (!pid.ok()) return StopAll();
  end_timer_ = loop_.RunAfter(kRayStopNs, [this, pid = *pid] { children_->Signal(pid, SIGKILL); });
}

void ModeRunner::CancelTimers() {
  patience_.End();
  for (std::optional<EventLoop::TimerId>* timer : {&table_timer_, &end_timer_}) {
    if (*timer) loop_.Cancel(**timer);
    timer->reset();
  }
}

void ModeRunner::StopAll() {
  CancelTimers();
  group_->Stop(SIGTERM);
}

void ModeRunner::OnStopped() {
  if (phase_ != Phase::kEnding) return;
  phase_ = Phase::kDone;
  if (mpi_) mpi_->End();
  if (!last_line_.empty()) Say(last_line_);
  // The others still have to hear how the job ended, and those that come late, too.
  if (hosts_manager_ && member_) {
    loop_.RunAfter(member_->all_joined() ? kOthersEndNs : kLateNs, [this] { loop_.Stop(); });
  }
  EndIfAlone();
}

void ModeRunner::EndIfAlone() {
  if (!hosts_manager_ || !member_ || (member_->all_joined() && member_->alone())) loop_.Stop();
}

void ModeRunner::OnSignal(int signal) {
  if (std::find(std::begin(kPassedSignals), std::end(kPassedSignals), signal) != std::end(kPassedSignals)) {
    group_->Signal(signal);
  } else if (phase_ == Phase::kDone) {
    loop_.Stop();
  } else if (phase_ == Phase::kEnding) {  // again: no patience left
    exit_code_ = 128 + signal;
    group_->Stop(SIGKILL);
  } else {
    const char* name = sigabbrev_np(signal);
    EndWith(128 + signal, absl::StrCat("SIG", name == nullptr ? "?" : name, ": the job is ended"));
  }
}

}  // namespace

int RunMode(ModeRun run) { return ModeRunner(std::move(run)).Run(); }

}  // namespace taskd
