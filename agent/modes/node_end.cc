#include "agent/modes/node_end.h"

#include <signal.h>

#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/process/run_line.h"
#include "agent/process/signals.h"

namespace taskd::modes {
namespace {

constexpr int64_t kNsPerS = 1'000'000'000;
constexpr int64_t kEndAnswerNs = 5 * kNsPerS;  // of the manager, after this node has failed
constexpr int64_t kRemoteEndNs = 4 * kNsPerS;
constexpr int64_t kOthersEndNs = 20 * kNsPerS;  // node 0 keeps the manager for them
constexpr int64_t kLateNs = 10 * kNsPerS;       // and for those that have not come before the job ended

// A scheduler that signals kills later, Kubernetes and Slurm after 30 s: whatever hangs, the node is done before. The
// processes have kGraceNs (node_setup.cc) of it.
constexpr int64_t kOthersAfterSignalNs = 5 * kNsPerS;
constexpr std::chrono::seconds kAllAfterSignal{24};

bool IsPassedOn(int signal) { return signal == SIGUSR1 || signal == SIGUSR2; }

}  // namespace

NodeEnd::NodeEnd(NodeParts* parts, std::function<void()> stop_starting)
    : parts_(parts), stop_starting_(std::move(stop_starting)) {}

// ---- This node's part

void NodeEnd::CommandRuns(size_t processes) {
  phase_ = Phase::kRunning;
  left_ = processes;
}

void NodeEnd::OnCommandExit(const process::WorkerExit& exit) {
  if (phase_ != Phase::kRunning || own_code_) return;
  --left_;
  if (exit.ok()) {
    if (left_ == 0) NodeEnded(0, "");
    return;
  }
  const ModePlan& plan = parts_->plan;
  const std::string program = plan.processes.back().argv.front();
  const std::string what =
      plan.mode == Mode::kAscend ? absl::StrCat("process ", exit.local_rank, " (", program, ")") : program;
  NodeEnded(exit.code, exit.signal != 0 ? absl::StrCat(what, " was ended by signal ", exit.signal)
                                        : absl::StrCat(what, " has ended with code ", exit.code,
                                                       parts_->mpi ? parts_->mpi->Why(exit.code) : ""));
}

void NodeEnd::NodeEnded(int code, const std::string& reason) {
  if (ended()) return;
  own_code_ = code;
  stop_starting_();
  parts_->patience.End();
  if (parts_->mpi && phase_ == Phase::kRunning) parts_->mpi->CommandEnded(code);
  JobMember* member = parts_->member.get();
  if (member != nullptr) member->Ended(code, reason);
  if (member == nullptr || !member->has_manager()) return EndWith(code, reason);
  if (code != 0) {
    // The other nodes are notified first; then all end with the job's code, which may be another node's.
    parts_->group->Signal(SIGTERM);
    return SetTimer(kEndAnswerNs, [this, code, reason] { EndWith(code, reason); });
  }
  if (!member->all_joined()) parts_->patience.Begin([member] { return member->Missing(); });
}

void NodeEnd::OnJobState() {
  if (done()) return EndIfAlone();
  if (own_code_ && parts_->member->all_joined()) parts_->patience.End();
}

void NodeEnd::OnRefused(const std::string& why) { EndWith(own_code_.value_or(0) != 0 ? *own_code_ : 1, why); }

void NodeEnd::OnWaitIsOver(const std::string& line) {
  // Who has waited for the manager in vain need not wait for its answer, too.
  const JobMember* member = parts_->member.get();
  const bool nobody_answers = member != nullptr && member->has_manager() && !member->connected();
  own_code_ || nobody_answers ? EndWith(1, line) : NodeEnded(1, line);
}

process::SignalWatch::IfAlone NodeEnd::OnSignal(int signal) {
  if (IsPassedOn(signal)) return [this, signal] { parts_->group->Signal(signal); };
  // Schedulers repeat themselves, Slurm within milliseconds. Only who means this process has no patience left.
  if (std::exchange(signalled_, true)) return [this, signal] { NoPatience(signal); };
  if (ending()) return nullptr;  // another node's signal was faster
  if (parts_->daemons) parts_->daemons->EndBy(std::chrono::steady_clock::now() + kAllAfterSignal);
  first_signal_ = 0;
  EndWith(128 + signal, absl::StrCat(process::SignalName(signal), ": the job is ended"), signal);
  return [this] {
    first_signal_ = SIGTERM;
    if (phase_ != Phase::kEnding) return;
    stops_all_ ? parts_->group->Stop(SIGTERM) : parts_->group->Signal(SIGTERM);
  };
}

void NodeEnd::NoPatience(int signal) {
  if (phase_ == Phase::kEnding) {
    exit_code_ = 128 + signal;
    parts_->group->Stop(SIGKILL);
  } else if (phase_ == Phase::kDone) {
    parts_->loop.Stop();
  }
}

// ---- The job's end

// First what runs for other nodes, or what CMD does not end; then the processes of this node.
void NodeEnd::EndWith(int code, std::string line, int signal) {
  if (ending()) return;
  phase_ = Phase::kEnding;
  exit_code_ = code;
  last_line_ = std::move(line);
  if (parts_->daemons) parts_->daemons->ExpectEnd();
  CancelTimers();
  stop_starting_();
  if (parts_->member) parts_->member->Ended(code, last_line_, signal);
  if (parts_->mpi) parts_->mpi->StopWaiting();
  if (parts_->mpi && parts_->mpi->EndRemote([this] { StopAll(); })) {
    parts_->group->Signal(first_signal_);
    return SetTimer(kRemoteEndNs, [this] { StopAll(); });
  }
  if (parts_->ray && parts_->ray->started()) {
    parts_->group->Signal(first_signal_);
    if (parts_->ray->Stop([this] { StopAll(); })) return;
  }
  StopAll();
}

void NodeEnd::StopAll() {
  CancelTimers();
  stops_all_ = true;
  parts_->group->Stop(first_signal_);
}

void NodeEnd::OnStopped() {
  if (phase_ != Phase::kEnding) return;
  phase_ = Phase::kDone;
  if (parts_->mpi) parts_->mpi->End();
  if (!last_line_.empty()) process::PrintRunLine(last_line_);
  // The other nodes, late ones included, still have to be notified of how the job ended.
  if (parts_->hosts_manager && parts_->member) {
    const int64_t others_ns = parts_->member->all_joined() ? kOthersEndNs : kLateNs;
    parts_->loop.RunAfter(signalled_ ? kOthersAfterSignalNs : others_ns, [this] { parts_->loop.Stop(); });
  }
  EndIfAlone();
}

void NodeEnd::EndIfAlone() {
  const JobMember* member = parts_->member.get();
  if (!parts_->hosts_manager || member == nullptr || (member->all_joined() && member->alone())) parts_->loop.Stop();
}

void NodeEnd::SetTimer(int64_t delay_ns, std::function<void()> callback) {
  timer_ = parts_->loop.RunAfter(delay_ns, std::move(callback));
}

void NodeEnd::CancelTimers() {
  parts_->patience.End();
  if (timer_) parts_->loop.Cancel(*timer_);
  timer_.reset();
}

}  // namespace taskd::modes
