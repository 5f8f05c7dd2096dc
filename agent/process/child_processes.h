// Programs that a mode runs beside CMD: `ray start`, sshd, a look at ssh, what mpirun asks for from another node.
#pragma once

#include <sys/types.h>

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "agent/process/worker_group.h"

namespace taskd::process {

// On the loop's thread. The group waits for all children of this process and hands the ends of these on to OnExit.
class ChildProcesses {
 public:
  // `code`: 128 + signal where a signal ended it.
  using Done = std::function<void(int code)>;

  // `group` outlives this.
  explicit ChildProcesses(WorkerGroup* group) : group_(group) {}

  // As Spawn(); not ended by this object. `spared`: nor by the group, with what its ranks leave behind.
  absl::StatusOr<pid_t> Start(const std::vector<std::string>& argv,
                              const std::map<std::string, std::string>& environment, Done done, int out = -1,
                              int err = -1, int in = -1, bool spared = true);
  // True: it was one of these, and `done` was called.
  bool OnExit(pid_t pid, int wait_status);
  // To the process group of one that runs; `done` is called all the same.
  void Signal(pid_t pid, int signal) const;
  bool Runs(pid_t pid) const { return running_.contains(pid); }

 private:
  WorkerGroup* const group_;
  std::map<pid_t, Done> running_;
};

}  // namespace taskd::process
