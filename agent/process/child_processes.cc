#include "agent/process/child_processes.h"

#include <signal.h>
#include <sys/wait.h>

#include <utility>

#include "agent/process/spawn.h"

namespace taskd::process {

absl::StatusOr<pid_t> ChildProcesses::Start(const std::vector<std::string>& argv,
                                            const std::map<std::string, std::string>& environment, Done done, int out,
                                            int err, int in, bool spared) {
  absl::StatusOr<pid_t> pid = Spawn(argv, environment, {.in = in, .out = out, .err = err});
  if (!pid.ok()) return pid.status();
  if (spared) group_->Spare(*pid);
  running_[*pid] = std::move(done);
  return pid;
}

bool ChildProcesses::OnExit(pid_t pid, int wait_status) {
  auto found = running_.find(pid);
  if (found == running_.end()) return false;
  const Done done = std::move(found->second);
  running_.erase(found);
  done(WIFSIGNALED(wait_status) ? 128 + WTERMSIG(wait_status) : WEXITSTATUS(wait_status));
  return true;
}

void ChildProcesses::Signal(pid_t pid, int signal) const {
  if (Runs(pid)) kill(-pid, signal);
}

}  // namespace taskd::process
