// The training processes of one node: started together, watched, and ended together with everything that they started.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "agent/process/worker_exit.h"
#include "common/event_loop.h"

namespace taskd::process {

// Where a stream of a rank goes. With a file and the console both: teed.
struct StreamSink {
  std::string file;     // empty: none
  bool console = true;  // the launcher's own stdout or stderr
  // Of each line on the console, ${local_rank} and ${rank} for those who wrote it: one, or all of an equal line
  // (equal_lines.h). With a prefix lines are whole. Empty and no file: passed straight through.
  std::string prefix;
};

struct WorkerSpec {
  int local_rank = 0;
  int rank = 0;
  std::vector<std::string> argv;                   // argv[0] is looked up in PATH of `environment`
  std::map<std::string, std::string> environment;  // whole
  StreamSink out;
  StreamSink err;
  std::set<int> cpus;      // that it may run on; empty: the launcher's
  std::string error_file;  // TORCHELASTIC_ERROR_FILE; read when the rank has failed
};

// On the loop's thread. SIGCHLD must be blocked; the group waits for every child of this process (it is the reaper of
// what its ranks leave behind), so no other code may: exits of other children are reported to `on_other_exit`.
class WorkerGroup {
 public:
  struct Callbacks {
    // Each rank's end, in the order in which they ended; not for those that Stop() ended.
    std::function<void(const WorkerExit&)> on_exit;
    std::function<void()> on_stopped;  // after Stop(): nothing of the ranks runs any more, all output is written
    // A child that is not a rank (the proxy, the manager).
    std::function<void(pid_t pid, int wait_status)> on_other_exit;
    // All ranks have ended with 0, and these processes of theirs ("sh (pid 7)") did not end by themselves: they are ended.
    std::function<void(const std::vector<std::string>& names)> on_left_behind;
  };

  virtual ~WorkerGroup() = default;  // kills what still runs

  // `grace_ns`: between SIGTERM and SIGKILL.
  static std::unique_ptr<WorkerGroup> Create(EventLoop* loop, int64_t grace_ns, Callbacks callbacks);

  // Children of this process that are not ranks and are not to be ended with them.
  virtual void Spare(pid_t pid) = 0;

  // All or none. Any error names the rank, what was to be executed, and the system's reason. Not while ranks run.
  virtual absl::Status Start(const std::vector<WorkerSpec>& workers) = 0;
  virtual std::map<int, pid_t> pids() const = 0;  // local rank -> pid, of those that run
  virtual void Signal(int signal) = 0;            // to each rank's process, and to none of its children
  // SIGTERM (`first_signal`) to each rank's process alone: its data loaders live while it saves. Once it has ended, what
  // is left of its process group gets the signal, as the program behind a shell script. SIGKILL to all after the grace;
  // then to the processes that they left behind.
  // If all ranks ended with 0, the processes that they left behind first get a moment to end by themselves
  // (on_left_behind).
  // Without ranks: on_stopped comes soon all the same. A second call with SIGKILL shortens the grace.
  virtual void Stop(int first_signal) = 0;
};

}  // namespace taskd::process
