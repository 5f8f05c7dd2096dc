// What the ranks of a node are started with: environment, command, log files. As torchrun does it.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "agent/process/worker_group.h"
#include "agent/run/numa_binding.h"
#include "agent/run/options.h"
#include "agent/run/rendezvous_messages.h"

namespace taskd::run {

struct LogFolder {
  std::string path;        // <log-dir>/<rdzv-id>_<random>; empty: no files at all, as with --log-dir /dev/null
  bool temporary = false;  // --log-dir was not given
};

// Creates the folder, and --log-dir where that is missing. `temporary_dir`: where it goes without --log-dir ("": /tmp,
// else /dev/shm, else there is none where no stream is to go to a file: a read-only root is no reason not to train).
// UNAVAILABLE names the folder that cannot be created, and why. Of the run's id only what is harmless in a file name is
// taken over.
absl::StatusOr<LogFolder> CreateLogFolder(const RunOptions& options, const std::string& temporary_dir);

// Removes what holds no file below a temporary folder. For the end of a launcher that has nothing to show.
void RemoveEmptyFolders(const LogFolder& folder);

// Where the ranks of this launcher are. A launcher has a node of its own, unless it is a task (TaskPlace): then nodes are
// told apart by their hosts, and numbered in the order of the ranks.
struct NodePlace {
  int node = 0;
  int nodes = 1;
  int first_local_rank = 0;
  int local_world_size = 0;
};
NodePlace PlaceOnNode(const RunOptions& options, const Assignment& assignment);
// The node of that launcher.
int NodeOf(const RunOptions& options, const Assignment& assignment, int group_rank);

struct WorkerContext {
  std::map<std::string, std::string> environment;  // the launcher's own
  LogFolder logs;
  std::string host;         // of this node, as ${node} in prefixes
  std::string master_addr;  // MASTER_ADDR and MASTER_PORT of the ranks
  int master_port = 0;
  bool has_torch2 = false;                   // HasTorch2
  std::string cookie;                        // the guard's (guard.h); empty: none
  std::vector<CpuSet> cpus;                  // by local rank, as NumaBinding has them
  std::map<std::string, std::string> extra;  // added last, wins over everything
};

// One spec a local rank, in order; creates `attempt_<restart count>/<local rank>` in the log folder and removes an
// error file that is there. UNAVAILABLE: a folder cannot be created. INVALID_ARGUMENT: --virtual-local-rank with fewer
// visible devices than ranks.
absl::StatusOr<std::vector<process::WorkerSpec>> BuildWorkers(const RunOptions& options, const Assignment& assignment,
                                                              const WorkerContext& context);

}  // namespace taskd::run
