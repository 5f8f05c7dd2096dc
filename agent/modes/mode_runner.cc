#include "agent/modes/mode_runner.h"

#include <chrono>
#include <filesystem>
#include <functional>
#include <memory>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/modes/node_end.h"
#include "agent/modes/node_parts.h"
#include "agent/modes/node_setup.h"
#include "agent/modes/start_steps.h"
#include "agent/process/exit_code.h"
#include "agent/process/run_line.h"
#include "common/log_file.h"

namespace taskd::modes {
namespace {

bool HasFolder(const std::string& path) {
  std::error_code error;
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  return folder.empty() || std::filesystem::is_directory(folder, error);
}

class ModeRunner {
 public:
  explicit ModeRunner(ModeRun run) : parts_(std::move(run)) {
    parts_.wait_is_over = [this](const std::string& line) { end_.OnWaitIsOver(line); };
  }
  int Run();

 private:
  absl::Status Check(bool* has_plan);
  absl::Status Meet();
  process::WorkerGroup::Callbacks OfProcesses();
  JobMember::Callbacks OfMember();
  void OnOtherExit(pid_t pid, int wait_status);
  void OnDaemonExit(pid_t pid, int wait_status);

  NodeParts parts_;
  NodeEnd end_{&parts_, [this] { steps_.Stop(); }};
  StartSteps steps_{&parts_, &end_, [this] { return Meet(); }};
};

int ModeRunner::Run() {
  bool has_plan = false;
  if (absl::Status status = Check(&has_plan); !status.ok()) {
    process::PrintRunLine(std::string(status.message()));
    return process::kWrongUsage;
  }
  absl::Status status = PrepareProcesses(
      &parts_, [this](int signal) { return end_.OnSignal(signal); }, OfProcesses());
  if (!status.ok()) {
    process::PrintRunLine(std::string(status.message()));
    return 1;
  }
  parts_.loop.Post([this, has_plan] { steps_.Begin(has_plan); });
  parts_.loop.Run();
  steps_.Stop();
  parts_.ray.reset();
  parts_.mpi.reset();
  parts_.member.reset();
  parts_.group.reset();
  parts_.daemons.reset();
  return end_.exit_code();
}

// What would be wrong on every try. A rank table that the platform has not written or finished is waited for; a folder
// that is not there is a mistake.
absl::Status ModeRunner::Check(bool* has_plan) {
  absl::StatusOr<ModePlan> plan = MakePlan(parts_);
  *has_plan = plan.ok();
  TakeLogVariables(parts_.run.environment, absl::StrCat("agent-", plan.ok() ? plan->index : 0, ".log"));
  if (!plan.ok()) {
    const bool may_come =
        absl::IsFailedPrecondition(plan.status()) ||
        (absl::IsNotFound(plan.status()) && HasFolder(ValueOf(parts_.run.environment, "RANK_TABLE_FILE")));
    return may_come ? absl::OkStatus() : plan.status();
  }
  parts_.plan = *std::move(plan);
  return CheckPorts(parts_.plan);
}

absl::Status ModeRunner::Meet() {
  if (absl::Status status = StartDaemons(&parts_); !status.ok()) return status;
  parts_.member = std::make_unique<JobMember>(&parts_.loop, &parts_.plan, OfMember());
  if (parts_.plan.mode == Mode::kMpi || parts_.plan.mode == Mode::kHorovod) {
    absl::Status status = StartMpi(&parts_, [this](const std::string& why) { end_.NodeEnded(1, why); });
    if (!status.ok()) return status;
  }
  return JoinJob(parts_);
}

process::WorkerGroup::Callbacks ModeRunner::OfProcesses() {
  process::WorkerGroup::Callbacks callbacks;
  callbacks.on_exit = [this](const process::WorkerExit& exit) { end_.OnCommandExit(exit); };
  callbacks.on_stopped = [this] { end_.OnStopped(); };
  callbacks.on_other_exit = [this](pid_t pid, int wait_status) { OnOtherExit(pid, wait_status); };
  return callbacks;
}

JobMember::Callbacks ModeRunner::OfMember() {
  JobMember::Callbacks callbacks;
  callbacks.state = [this] {
    end_.OnJobState();
    steps_.OnJobState();
  };
  callbacks.end = [this](int code, const std::string& reason) { end_.EndWith(code, code == 0 ? "" : reason); };
  callbacks.failed = [this](const std::string& why) { end_.OnRefused(why); };
  callbacks.mpirun = [this](const v1::MpirunCall& call) {
    if (parts_.mpi) parts_.mpi->On(call);
  };
  callbacks.remote = [this](const v1::RemoteCommand& command) {
    // The manager sends commands only to nodes with --remote-start; the node does not rely on that.
    if (parts_.mpi && parts_.UsesTaskdRsh() && !end_.ending()) parts_.mpi->On(command);
  };
  return callbacks;
}

void ModeRunner::OnDaemonExit(pid_t pid, int wait_status) {
  const std::optional<std::chrono::milliseconds> again = parts_.daemons->OnExit(pid, wait_status);
  if (!again) return;
  parts_.loop.RunAfter(std::chrono::nanoseconds(*again).count(), [this, pid] {
    parts_.daemons->StartAgain(pid);
    for (pid_t one : parts_.daemons->pids()) parts_.group->Spare(one);
  });
}

void ModeRunner::OnOtherExit(pid_t pid, int wait_status) {
  if (parts_.children->OnExit(pid, wait_status)) return;
  if (parts_.daemons && process::EndedByStopSignal(wait_status)) {
    const int64_t delay_ns = std::chrono::nanoseconds(process::kAfterStopSignal).count();
    parts_.loop.RunAfter(delay_ns, [this, pid, wait_status] { OnDaemonExit(pid, wait_status); });
  } else if (parts_.daemons) {
    OnDaemonExit(pid, wait_status);
  }
  const std::string why = parts_.ray ? parts_.ray->WhyEnded(pid) : "";
  if (!why.empty()) end_.NodeEnded(1, why);
}

}  // namespace

int RunMode(ModeRun run) { return ModeRunner(std::move(run)).Run(); }

}  // namespace taskd::modes
