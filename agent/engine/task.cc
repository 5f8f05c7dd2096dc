#include "agent/engine/task.h"

#include <algorithm>
#include <initializer_list>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/utf8.h"

namespace taskd::engine {
namespace {

constexpr int kMaxPort = 65535;
constexpr int kFirstPort = 20000;
constexpr uint64_t kPorts = 10000;
constexpr int kUsualPort = 29500;  // of --master-port
constexpr int kMaxAncestors = 64;

// The variables of one way to start ranks.
struct MpiVariables {
  const char* name;  // for people
  const char* rank;
  std::initializer_list<const char*> world_size;
  std::initializer_list<const char*> local_rank;
  std::initializer_list<const char*> local_world_size;
};

const MpiVariables kOpenMpi = {"Open MPI",
                               "OMPI_COMM_WORLD_RANK",
                               {"OMPI_COMM_WORLD_SIZE"},
                               {"OMPI_COMM_WORLD_LOCAL_RANK"},
                               {"OMPI_COMM_WORLD_LOCAL_SIZE"}};
// PMIx tells the rest by calls, not by variables. Who starts ranks with it has variables of its own.
const MpiVariables kPmix = {"PMIx",
                            "PMIX_RANK",
                            {"PMIX_SIZE", "SLURM_STEP_NUM_TASKS", "WORLD_SIZE"},
                            {"PMIX_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID", "LOCAL_RANK"},
                            {"PMIX_LOCAL_SIZE", "MPI_LOCALNRANKS", "LOCAL_WORLD_SIZE"}};
const MpiVariables kPmi = {"PMI",
                           "PMI_RANK",
                           {"PMI_SIZE", "SLURM_STEP_NUM_TASKS"},
                           {"MPI_LOCALRANKID", "PMI_LOCAL_RANK", "SLURM_LOCALID"},
                           {"MPI_LOCALNRANKS", "PMI_LOCAL_SIZE"}};

const MpiVariables* FindMpi(const Environment& environment) {
  for (const MpiVariables* one : {&kOpenMpi, &kPmix, &kPmi}) {
    if (!ValueOf(environment, one->rank).empty()) return one;
  }
  return nullptr;
}

// The first of them that is set has to be a number from `least` to `most`.
absl::StatusOr<int> Number(const Environment& environment, std::initializer_list<const char*> variables, int least,
                           int most, const char* launcher) {
  for (const char* variable : variables) {
    const std::string value = ValueOf(environment, variable);
    if (value.empty()) continue;
    int number = 0;
    if (absl::SimpleAtoi(value, &number) && number >= least && number <= most) return number;
    return absl::InvalidArgumentError(
        absl::StrCat(variable, " '", CutUtf8(value, 80), "': a number from ", least, " to ", most));
  }
  return absl::InvalidArgumentError(
      absl::StrCat(*variables.begin(), ": it is not set in this rank of ", launcher, ", and nothing else tells it"));
}

// The process that has started the job's ranks on this node: the nearest ancestor that is itself no rank. What stands
// between (a shell, numactl) has the rank's variables. 0: it cannot be told.
int StarterOfRanks(const EngineMachine& machine, absl::string_view rank_variable) {
  std::string pid = "self";
  for (int i = 0; i < kMaxAncestors; ++i) {
    const std::string stat = machine.read_file(absl::StrCat("/proc/", pid, "/stat"));
    const std::vector<std::string> fields =
        absl::StrSplit(stat.substr(std::min(stat.size(), stat.rfind(')') + 1)), ' ', absl::SkipEmpty());
    if (fields.size() < 2) return 0;
    pid = fields[1];  // the parent's
    int number = 0;
    if (!absl::SimpleAtoi(pid, &number) || number <= 1) return number;
    const std::string variables = machine.read_file(absl::StrCat("/proc/", pid, "/environ"));
    const std::string wanted = absl::StrCat(rank_variable, "=");
    if (variables.rfind(wanted, 0) != 0 && variables.find(std::string(1, '\0') + wanted) == std::string::npos) {
      return number;
    }
  }
  return 0;
}

}  // namespace

uint64_t StableHash(absl::string_view text) {
  uint64_t hash = 0xcbf29ce484222325;  // FNV-1a
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return hash;
}

int MasterPort(absl::string_view name) { return kFirstPort + static_cast<int>(StableHash(name) % kPorts); }

absl::Status TakeUsersMaster(const Environment& environment, Task* task) {
  for (const char* prefix : {"PET_", "TASKD_", ""}) {
    const std::string host = ValueOf(environment, absl::StrCat(prefix, "MASTER_ADDR"));
    if (host.empty()) continue;
    task->master_addr = host;
    break;
  }
  for (const char* prefix : {"PET_", "TASKD_", ""}) {
    const std::string variable = absl::StrCat(prefix, "MASTER_PORT");
    const std::string port = ValueOf(environment, variable);
    if (port.empty()) continue;
    if (!absl::SimpleAtoi(port, &task->master_port) || task->master_port < 1 || task->master_port > kMaxPort) {
      return absl::InvalidArgumentError(
          absl::StrCat(variable, " '", CutUtf8(port, 80), "': a port, a number from 1 to ", kMaxPort));
    }
    task->master_ports = 1;
    break;
  }
  return absl::OkStatus();
}

bool IsMpiRank(const Environment& environment) {
  if (!ValueOf(environment, kOpenMpi.rank).empty()) return true;
  const MpiVariables* mpi = FindMpi(environment);
  if (mpi == nullptr) return false;
  // srun gives its tasks a rank of PMI or PMIx, where the cluster has it so. An mpiexec's differs as soon as it starts
  // two on a node, and has a local rank.
  const bool under_srun =
      !ValueOf(environment, "SLURM_STEP_ID").empty() && !ValueOf(environment, "SLURM_PROCID").empty();
  return !under_srun || !ValueOf(environment, "MPI_LOCALRANKID").empty();
}

absl::StatusOr<Task> TaskByMpi(const Environment& environment, const EngineMachine& machine) {
  const MpiVariables* mpi = FindMpi(environment);
  if (mpi == nullptr) {
    return absl::InvalidArgumentError(
        "OMPI_COMM_WORLD_RANK, PMIX_RANK, PMI_RANK: none is set: this is no rank of mpirun's");
  }
  Task task;
  absl::StatusOr<int> number = Number(environment, mpi->world_size, 1, kMaxTasks, mpi->name);
  if (!number.ok()) return number.status();
  task.world_size = *number;
  number = Number(environment, {mpi->rank}, 0, task.world_size - 1, mpi->name);
  if (!number.ok()) return number.status();
  task.rank = *number;
  number = Number(environment, mpi->local_world_size, 1, task.world_size, mpi->name);
  if (!number.ok()) return number.status();
  task.local_world_size = *number;
  number = Number(environment, mpi->local_rank, 0, task.local_world_size - 1, mpi->name);
  if (!number.ok()) return number.status();
  task.local_rank = *number;

  task.rank_source = mpi->rank;
  task.one_node = task.local_world_size == task.world_size;
  if (task.one_node) task.tasks_per_node = {task.world_size};
  if (task.one_node) task.node = 0;
  // One for all ranks of an mpirun: PMIx's name of the job, else who has started the ranks of this only node.
  std::string name = ValueOf(environment, "PMIX_NAMESPACE");
  if (name.empty()) name = ValueOf(environment, "OMPI_MCA_ess_base_jobid");
  if (name.empty() && task.one_node) {
    if (const int starter = StarterOfRanks(machine, mpi->rank); starter > 0) name = absl::StrCat("pid-", starter);
  }
  task.where = absl::StrCat(mpi->name, name.empty() ? "" : " job ", name);
  if (task.one_node) task.master_addr = "127.0.0.1";
  task.master_port = name.empty() ? kUsualPort : MasterPort(name);
  task.master_ports = name.empty() ? 1 : kMasterPorts;
  if (absl::Status status = TakeUsersMaster(environment, &task); !status.ok()) return status;
  if (task.master_addr.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "MASTER_ADDR: it is not set, and ", mpi->name, " does not tell on which of the nodes rank 0 runs (",
        task.local_world_size, " of ", task.world_size, " ranks are on this one): set it to that node's name"));
  }
  task.run_id = absl::StrCat("mpi-", name.empty() ? absl::StrCat(task.master_addr, "-", task.master_port) : name);
  return task;
}

}  // namespace taskd::engine
