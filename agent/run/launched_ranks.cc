#include "agent/run/launched_ranks.h"

#include <signal.h>

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/str_join.h"
#include "agent/run/torch_version.h"
#include "common/environment.h"
#include "common/log.h"
#include "common/realtime.h"
#include "fmt/format.h"

namespace taskd::run {
namespace {

constexpr double kNsPerS = 1e9;

}  // namespace

// ---- Beginning

LaunchedRanks::LaunchedRanks(EventLoop* loop, const RunOptions* options, Callbacks callbacks)
    : loop_(loop), options_(options), callbacks_(std::move(callbacks)) {
  process::WorkerGroup::Callbacks of_group;
  of_group.on_exit = [this](const process::WorkerExit& exit) { OnExit(exit); };
  of_group.on_stopped = [this] { OnStopped(); };
  of_group.on_other_exit = callbacks_.other_exit;
  of_group.on_left_behind = [](const std::vector<std::string>& names) {
    spdlog::warn("ending processes that ranks left running: {}", absl::StrJoin(names, ", "));
  };
  group_ = process::WorkerGroup::Create(loop, static_cast<int64_t>(options->shutdown_timeout_s * kNsPerS), of_group);
}

absl::StatusOr<std::unique_ptr<LaunchedRanks>> LaunchedRanks::Create(EventLoop* loop, const RunOptions* options,
                                                                     std::map<std::string, std::string> environment,
                                                                     std::string host, Callbacks callbacks) {
  NumaBinding binding;
  if (!options->numa_binding.empty()) {
    const int local_world_size = options->task ? options->task->local_world_size : options->procs_per_node;
    absl::StatusOr<NumaBinding> bound =
        BindRanks(options->numa_binding, ReadNumaMachine("/", AllowedCpus(), environment), local_world_size);
    if (!bound.ok()) return bound.status();
    binding = *std::move(bound);
    if (!binding.warning.empty()) spdlog::warn("{}", binding.warning);
  }
  const std::string cookie = process::NewCookie();
  absl::StatusOr<std::unique_ptr<process::Guard>> guard = process::Guard::Start(cookie);
  if (!guard.ok()) return guard.status();
  std::unique_ptr<LaunchedRanks> ranks(new LaunchedRanks(loop, options, std::move(callbacks)));
  ranks->guard_ = *std::move(guard);
  ranks->group_->Spare(ranks->guard_->pid());
  ranks->context_.has_torch2 = HasTorch2(environment);
  ranks->context_.environment = std::move(environment);
  ranks->context_.host = std::move(host);
  ranks->context_.cpus = std::move(binding.cpus);
  ranks->context_.cookie = cookie;
  return ranks;
}

absl::Status LaunchedRanks::Prepare(const HostPort& store) {
  absl::StatusOr<LogFolder> logs = CreateLogFolder(*options_, ValueOf(context_.environment, "TMPDIR"));
  if (!logs.ok()) return logs.status();
  context_.logs = *std::move(logs);
  context_.master_addr = store.host;
  context_.master_port = store.port;
  return absl::OkStatus();
}

// ---- The ranks of a round

absl::Status LaunchedRanks::Start(const Assignment& assignment, std::map<std::string, std::string> extra) {
  assignment_ = assignment;
  running_ = true;
  ended_by_itself_.reset();
  context_.extra = std::move(extra);
  absl::StatusOr<std::vector<process::WorkerSpec>> workers = BuildWorkers(*options_, assignment, context_);
  if (!workers.ok()) return workers.status();
  if (auto socket = context_.extra.find("TASKD_SOCKET"); socket != context_.extra.end() && agent_line_ == nullptr) {
    agent_line_ = std::make_unique<AgentLine>(loop_, socket->second, Operations());
  }
  held_ = false;
  states_.clear();
  for (const process::WorkerSpec& worker : *workers) states_[worker.local_rank].global_rank = worker.rank;
  return StartWorkers(*workers);
}

absl::Status LaunchedRanks::StartWorkers(const std::vector<process::WorkerSpec>& workers) {
  left_ = static_cast<int>(workers.size());
  if (absl::Status status = group_->Start(workers); !status.ok()) return status;
  for (const auto& [local_rank, pid] : group_->pids()) {
    states_[local_rank].pid = pid;
    states_[local_rank].exit_code.reset();
    LauncherEvent event;
    event.kind = LauncherEvent::Kind::kStarted;
    event.rank = states_[local_rank].global_rank;
    event.pid = pid;
    Report(std::move(event));
  }
  return absl::OkStatus();
}

void LaunchedRanks::OnExit(const process::WorkerExit& exit) {
  states_[exit.local_rank].exit_code = exit.code;
  LauncherEvent event;
  event.kind = LauncherEvent::Kind::kExited;
  event.rank = exit.rank;
  event.pid = exit.pid;
  event.code = exit.code;
  event.signal = exit.signal;
  event.reason = exit.killed_by;
  Report(std::move(event));
  if (!running_) return;
  ended_by_itself_ = exit.code;
  if (!exit.ok()) {
    callbacks_.failed(exit, LogFolderOf(exit.local_rank));
  } else if (--left_ == 0) {
    callbacks_.succeeded();
  }
}

// Of this attempt; empty where the rank has written nothing.
std::string LaunchedRanks::LogFolderOf(int local_rank) const {
  if (context_.logs.path.empty()) return "";
  std::string folder = fmt::format("{}/attempt_{}/{}", context_.logs.path, assignment_.restart_count, local_rank);
  std::error_code error;
  if (std::filesystem::is_empty(folder, error) || error) return "";
  return folder;
}

void LaunchedRanks::Stop(int first_signal) {
  running_ = false;
  group_->Stop(first_signal);
}

void LaunchedRanks::OnStopped() {
  for (auto& [local_rank, state] : states_) {
    if (!state.exit_code) state.exit_code = 128 + SIGTERM;
  }
  for (const AgentOperations::Done& done : std::exchange(when_stopped_, {})) done(absl::OkStatus());
  callbacks_.stopped();
}

void LaunchedRanks::Report(LauncherEvent event) {
  event.round = assignment_.round;
  event.node = PlaceOnNode(*options_, assignment_).node;
  event.time_ns = RealtimeNs();
  callbacks_.event(event);
}

// ---- What the manager asks for

AgentOperations LaunchedRanks::Operations() {
  AgentOperations operations;
  operations.kill_ranks = [this](AgentOperations::Done done) { EndForManager(std::move(done)); };
  operations.start_ranks = [this](const std::vector<int>& local_ranks, const AgentOperations::Done& done) {
    done(StartForManager(local_ranks));
  };
  operations.state = [this] { return states_; };
  operations.restart = [this](const AgentOperations::Done& done) { done(callbacks_.restart()); };
  return operations;
}

void LaunchedRanks::EndForManager(AgentOperations::Done done) {
  if (!running_ || left_ == 0) return done(absl::FailedPreconditionError("the ranks of this node do not run now"));
  if (!held_) spdlog::warn("ranks are ended: the manager asks for it (KILL_WORKER)");
  held_ = true;
  when_stopped_.push_back(std::move(done));
  group_->Stop(SIGTERM);
}

absl::Status LaunchedRanks::StartForManager(const std::vector<int>& local_ranks) {
  if (!running_ || !held_) {
    return absl::FailedPreconditionError("ranks are started by the manager only after it has ended them (KILL_WORKER)");
  }
  if (!when_stopped_.empty()) return absl::FailedPreconditionError("the ranks are still being ended");
  absl::StatusOr<std::vector<process::WorkerSpec>> workers = BuildWorkers(*options_, assignment_, context_);
  if (!workers.ok()) return workers.status();
  if (!local_ranks.empty()) {
    std::erase_if(*workers, [&](const process::WorkerSpec& worker) {
      return std::find(local_ranks.begin(), local_ranks.end(), worker.local_rank) == local_ranks.end();
    });
  }
  spdlog::warn("{} ranks are started: the manager asks for it", workers->size());
  absl::Status status = StartWorkers(*workers);
  held_ = !status.ok();
  return status;
}

}  // namespace taskd::run
