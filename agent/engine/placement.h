// Where a launcher is: what the scheduler that started it says of its place in the job, as defaults for the options that
// nobody gave. Pure: variables in, values out; every fact about the machine comes through EngineMachine.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/environment.h"

namespace taskd::engine {

struct EngineMachine {
  std::string host;  // gethostname()
  // The whole file, "" where it cannot be read; of at most 1 MiB.
  std::function<std::string(const std::string& path)> read_file;
};

// A value for an option of `taskd run`, and what it was taken from.
struct Default {
  std::string option;  // with dashes: "node-rank"
  std::string value;
  std::string source;  // for messages: "SLURM_NODEID"
};

struct Placement {
  std::string where;  // for people: "Slurm job 4711 step 0"; empty: no scheduler is recognised
  // Of the job, as the scheduler has them; 0: not known. More than one, and the job is not to be one node's in silence.
  int nodes = 0;
  std::string nodes_source;
  bool nodes_needed = false;  // how many there are is to be given by the user: `nodes` is 0 and there may be others
  std::vector<std::string> hosts;  // by node rank; empty: not known
  std::vector<Default> defaults;   // nnodes, node-rank, master-addr, master-port, rdzv-id, nproc-per-node, ...
  // How many ports from master-port's default on the job may take: the first that is free, as the launchers agree.
  int master_ports = 1;
  bool master_is_node_0 = false;  // master-addr's default is node 0's own name, not one of a service before it
  std::string job;                // namespace/name; empty: none is known
  std::string task_id;            // empty: none is known
  std::vector<std::string> warnings;

  const Default* Find(absl::string_view option) const;  // nullptr: there is no default for it
};

// INVALID_ARGUMENT: variables that contradict each other or the rule; the line names them, their values and the rule.
absl::StatusOr<Placement> PlaceBySlurm(const Environment& environment, const EngineMachine& machine);
absl::StatusOr<Placement> PlaceByKubernetes(const Environment& environment, const EngineMachine& machine);

EngineMachine ThisMachine();

// The first of these that recognises its variables.
absl::StatusOr<Placement> FindPlacement(const Environment& environment, const EngineMachine& machine);

}  // namespace taskd::engine
