// The command line of `taskd run --mode M -- CMD`: the modes that start a command as a training platform does.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "agent/rdma/rdma_environment.h"
#include "common/input_budget.h"
#include "common/node_timeout.h"
#include "common/option_words.h"

namespace taskd::modes {

extern const char kModeHelp[];
extern const OptionTable kModeOptionTable;

// How mpirun starts processes on other nodes. kAuto: kTaskd where the job has a token or TLS, else kSsh.
enum class RemoteStart { kAuto, kSsh, kTaskd };

struct ModeOptions {
  std::string mode;  // auto, torch, mpi, horovod, ray, ps, ascend, pytorch-gpu, tensorflow-gpu, slurm
  bool dry_run = false;
  bool json = false;                      // only with dry_run
  std::string marks;                      // as in RunOptions
  std::string ledger;                     // folder that the job's attempts share, absolute; empty: none
  std::string manager;                    // HOST:PORT; empty: <first node>:9601. "off": in a rank (engine::Task) alone
  double wait_s = 300;                    // above 0, at most 86400: of every wait for other nodes
  double node_timeout_s = kNodeTimeoutS;  // of silence, after which a node is lost
  std::optional<int> ps_num;              // mode ps without TF_CONFIG
  std::string num_cpus, num_gpus;         // mode ray, numbers >= 0; empty: Ray's own choice
  std::string self;                       // mode ascend; empty: MA_CURRENT_IP
  rdma::RdmaMode rdma = rdma::RdmaMode::kAuto;
  RemoteStart remote_start = RemoteStart::kAuto;  // --remote-start auto|ssh|taskd
  // --route: renumber the nodes along the switches before the start. Both files are needed then.
  bool route = false;
  std::string rank_table, topology;
  int max_input_mb = kDefaultInputMb;  // of each rank table and topology
  std::vector<std::string> command;    // not empty
};

// Whether `arguments` (after `taskd run`) ask for a mode. `--mode` counts only before CMD and before any option that is
// not a mode's: `taskd run train.py --mode x` is the script's.
bool AsksForMode(const std::vector<std::string>& arguments);

// INVALID_ARGUMENT: one line with what, the value and the rule. `help` is set to the text of --help if that was asked.
// Both `--name value` and `--name=value`; options end at `--` or at the first word that is none. `environment` stands
// in for options that are absent, by the names TASKD_WAIT_S, TASKD_REMOTE_START, ... (not for --mode, --dry-run,
// --json).
absl::StatusOr<ModeOptions> ParseModeOptions(const std::vector<std::string>& arguments,
                                             const std::map<std::string, std::string>& environment, std::string* help);

}  // namespace taskd::modes
