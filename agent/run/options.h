// The command line of `taskd run`: torchrun's.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "agent/engine/placement.h"
#include "policy/options.h"

namespace taskd::run {

// Bits: 1 stdout, 2 stderr.
struct StreamChoice {
  int all = 0;
  std::map<int, int> by_local_rank;  // wins over `all`
  int Of(int local_rank) const {
    auto found = by_local_rank.find(local_rank);
    return found == by_local_rank.end() ? (by_local_rank.empty() ? all : 0) : found->second;
  }
};

// This launcher is one of those that srun or mpirun has started for each rank of a job: several may be on a node. It has
// one rank; the nodes of its rendezvous are those launchers, and --node-rank is the rank.
struct TaskPlace {
  int local_rank = 0;
  int local_world_size = 1;
  int nodes = 0;      // on which the tasks are; 0: not known before they have met
  bool even = false;  // each of these nodes has local_world_size of them, the first node the first ones
};

// Of --node-timeout. Node 0 pings each 2 s.
inline constexpr double kLeastNodeTimeoutS = 5;
inline constexpr double kMostNodeTimeoutS = 86400;

struct RunOptions {
  int min_nodes = 1;
  int max_nodes = 1;
  int procs_per_node = 1;
  int node_rank = 0;
  bool node_rank_given = false;
  std::string rdzv_backend = "static";  // static, c10d, parallel
  // Always HOST:PORT once parsed, IPv6 in brackets. --standalone: localhost:0. c10d: port 29400 unless given. static
  // and parallel: master_addr:master_port, which are set from an endpoint that was given.
  std::string rdzv_endpoint;
  std::string rdzv_id = "none";  // --standalone: a random one
  std::map<std::string, std::string> rdzv_conf;
  bool standalone = false;
  std::string master_addr = "127.0.0.1";  // IPv6 without brackets
  int master_port = 29500;
  std::string local_addr;
  int max_restarts = 0;
  double monitor_interval_s = 0.1;
  std::string role = "default";
  std::string log_dir;  // empty: a temporary folder
  StreamChoice redirects;
  StreamChoice tee;
  std::vector<int> local_ranks_filter;  // empty: all
  std::vector<int> signals_to_handle;   // numbers
  bool signals_named = false;           // by the user: also those that the launcher was started to ignore
  double shutdown_timeout_s = 30;
  double node_timeout_s = 0;  // of silence, after which a node is lost; 0: not given
  bool tiered = false;
  int store_memory_limit_mb = 0;  // of each store, in MiB; 0: DefaultStoreMemoryBytes()
  int store_fan_out = 0;          // tiers that one store above serves; 0: no tiers of tiers

  std::string manager;          // HOST:PORT of one that runs; empty: node 0 starts one; "off": none, and no proxy
  std::string marks;            // kinds that are recorded from the start (ParseKinds in common/switch.h); empty: none
  std::string ledger;           // folder that the job's attempts share, absolute; empty: none
  policy::OptionTexts on_slow;  // for the manager; checked
  std::string hang_action = "report";  // report, restart, stop
  double hang_factor = 10;             // no step for so many times the usual; 0: never
  bool ras = true;                     // in a hang NCCL's RAS is asked

  bool dry_run = false;  // say what would be started, and start nothing

  // By the scheduler (agent/engine/placement.h).
  std::string placed_by;          // "Slurm job 4711 step 0"; empty: its values are not used
  std::string node_rank_by;       // what gave the node rank: "SLURM_NODEID"
  int master_ports = 1;           // from master_port on: the first that is free is taken
  bool master_is_node_0 = false;  // master_addr is node 0's own name, as the scheduler has it
  std::string job;                // namespace/name, TASKD_JOB where that is not set; empty: not known
  std::string task_id;            // likewise

  std::optional<TaskPlace> task;

  bool no_taskd = false;  // no manager, no proxy, nothing preloaded; `manager` is then "off"

  std::string numa_binding;         // node, socket, exclusive, core-complex; empty: none
  bool virtual_local_rank = false;  // every rank has LOCAL_RANK 0 and sees its own device only

  // At most one of the three.
  bool module = false;  // -m
  bool no_python = false;
  bool run_path = false;
  std::string program;  // SCRIPT, module or command
  std::vector<std::string> arguments;

  std::vector<std::string> warnings;  // lines to log: options that were accepted and have no effect
};

// `arguments`: after `taskd run`. `environment`: for PET_*, TASKD_*, TORCH_ELASTIC_SHUTDOWN_TIMEOUT, and the devices'
// visibility. The command line wins over PET_*, that over TASKD_*. Everything after SCRIPT belongs to the script. After
// `--`, a name that ends in .py is a script; anything else a command (no_python), unless -m or --run-path says what it
// is. What neither says comes from the scheduler (placed_words.h), of whose machine `machine` gives the facts.
// INVALID_ARGUMENT: one line with what, the value and the rule. `help` is set to the text of --help if that was asked.
absl::StatusOr<RunOptions> ParseRunOptions(const std::vector<std::string>& arguments,
                                           const std::map<std::string, std::string>& environment, std::string* help,
                                           const engine::EngineMachine& machine = engine::ThisMachine());

// What the launcher will do, as one line: "under Slurm job 4711 step 0: 3 nodes, node rank by SLURM_NODEID, master
// n1:23711". `master_port`: where it is by now.
std::string PlacementLine(const RunOptions& options, int master_port);

// For --dry-run: that line, or what there is without a scheduler, and what each rank would run; several lines.
std::string DryRunText(const RunOptions& options);

}  // namespace taskd::run
