// A process that a scheduler or an MPI launcher has started as one rank of a job: what it says of that rank. Pure, as
// placement.h.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "agent/engine/placement.h"
#include "common/environment.h"

namespace taskd::engine {

struct Task {
  std::string where;  // for people: "Slurm job 4711 step 0"; empty: this is no task
  std::string rank_source;
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;
  int local_world_size = 1;
  std::vector<std::string> hosts;   // of the nodes, as Slurm calls them; empty: not known
  std::vector<int> tasks_per_node;  // likewise
  int node = -1;                    // this one's index in them
  bool one_node = false;
  // Where task 0 is to serve the store: the first port that is free of so many.
  std::string master_addr;
  int master_port = 0;
  int master_ports = 1;
  std::string run_id;            // the same for all tasks, and for no other job's
  std::string shutdown_timeout;  // seconds; empty: not known
  std::string job;               // as Placement's
  std::string task_id;
  std::vector<std::string> warnings;
};

// What is set in a task that srun has started, also the only one of its node. The user's MASTER_ADDR and MASTER_PORT
// (and PET_..., TASKD_..., which win) stay. INVALID_ARGUMENT as PlaceBySlurm, and where variables of the step are missing.
absl::StatusOr<Task> TaskBySlurm(const Environment& environment, const EngineMachine& machine);

// Whether srun has started several tasks on a node of this step.
bool SlurmHasSeveralTasksOnANode(const Environment& environment);

// By the variables of Open MPI, PMIx and PMI (MPICH, Intel MPI), in this order. Where rank 0 runs they do not say: a job
// of several nodes needs the user's MASTER_ADDR.
absl::StatusOr<Task> TaskByMpi(const Environment& environment, const EngineMachine& machine);

// Whether this process is a rank that an MPI launcher has started. Under Slurm the tasks of srun may have a rank of PMI
// as well, which is no MPI launcher's.
bool IsMpiRank(const Environment& environment);

// For both: the user's choice of where the ranks meet, over `task`'s. INVALID_ARGUMENT: a MASTER_PORT that is none.
absl::Status TakeUsersMaster(const Environment& environment, Task* task);

// The same on every node, whatever it was compiled with.
uint64_t StableHash(absl::string_view text);

inline constexpr int kMaxTasks = 131072;
// Where a job that is called `name` meets: the first port that is free, of so many from this one on.
int MasterPort(absl::string_view name);
inline constexpr int kMasterPorts = 16;

}  // namespace taskd::engine
