// What a node starts in a mode of `taskd run`, and what it waits for: decided and checked before anything is done.
// Contract: modes-routing §1. Pure: every fact about the machine comes through Machine.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "agent/modes/plans/mode_options.h"
#include "common/environment.h"

namespace taskd::modes {

enum class Mode { kTorch, kMpi, kHorovod, kRay, kPs, kAscend, kPytorchGpu, kTensorflowGpu, kSlurm };
enum class Platform { kNone, kTiOne, kModelArts, kSlurm };

std::string_view ModeName(Mode mode);              // "pytorch-gpu"
std::string_view PlatformName(Platform platform);  // "none", "ti-one", "modelarts", "slurm"

struct ModeMachine {
  // The first IPv4 address of a name; an address stands for itself; "" if it does not resolve (now).
  std::function<std::string(const std::string& host)> ipv4;
  // Lines of `nvidia-smi -L`; -1: there is no nvidia-smi.
  std::function<int()> gpus;
  // As absl: NOT_FOUND / INVALID_ARGUMENT. Reads RANK_TABLE_FILE.
  std::function<absl::StatusOr<std::string>(const std::string& path)> read_file;
  std::string sysfs = "/sys";
  bool root = false;  // the effective user is root, whom Open MPI refuses unless asked
};

struct ModeNode {
  std::string name;  // as the platform calls it, and as it is reached: a name or an address, without brackets and port
  int cards = 0;
  // Only serves the others: the job does not wait for it, and ends it when all others have succeeded. TensorFlow's ps
  // and evaluator, Ray's workers, nodes on which MPI starts its processes.
  bool serves = false;
};

struct ModeProcess {
  std::vector<std::string> argv;
  // What the mode sets, and what of its variables came in from outside. The process gets the environment of `taskd run`
  // with these over it.
  Environment environment;
};

struct PlannedFile {
  std::string path;
  std::string content;
};

// When this node's command starts.
enum class StartRule {
  kAtOnce,
  kAfterFirst,  // node 0's `taskd run` is there
  kAfterAll,    // all are
  kAfterReady,  // all are, and have reported that they are ready
};

struct ClaimedPort {
  std::string variable;  // "MASTER_PORT"
  int port = 0;
};

// MPI, of the node that starts it.
struct MpiStart {
  int ssh_port = 22;
  std::string sshd_config;  // ModelArts: {{MY_SSHD_PORT}} is filled in and sshd started, on every node; empty: neither
  bool checks_ssh = false;  // CMD starts processes on the other nodes, so ssh has to work before it
};

struct ModePlan {
  Mode mode = Mode::kTorch;
  Platform platform = Platform::kNone;
  std::string role;
  int index = 0;                // of this node in `nodes`; an evaluator: nodes.size()
  bool serves = false;          // this node (ModeNode::serves)
  std::vector<ModeNode> nodes;  // of the whole job, the same on every node
  // What this node starts, in order of start. Ray: `ray start` first, then (node 0) CMD. Ascend: all at once. MPI and
  // Horovod without a command on this node: empty.
  std::vector<ModeProcess> processes;
  std::vector<PlannedFile> files;  // written before the start
  std::vector<std::string> warnings;
  std::string manager;  // HOST:PORT (IPv6 in brackets); where nodes meet; empty: one node and no --manager
  StartRule start = StartRule::kAtOnce;
  std::vector<std::string> unresolved;  // names that stand in for addresses in the above, because they did not resolve
  std::vector<ClaimedPort> binds;       // ports that a process of this node will listen on
  MpiStart mpi;                         // modes mpi and horovod
  bool mpi_front = false;               // mpirun and mpiexec are to be found by a front first (DESIGN §8)
  int head_port = 0;                    // mode ray
};

// `environment`: of `taskd run`. INVALID_ARGUMENT: what modes-routing calls exit 2; the line names the variable, the
// value and the rule. Mode ascend: the same for a rank table that may still come, as NOT_FOUND (no file) or
// FAILED_PRECONDITION (empty or not yet completed).
absl::StatusOr<ModePlan> PlanMode(const ModeOptions& options, const Environment& environment,
                                  const ModeMachine& machine);

// Whether the environment is one of the platforms that the modes know, or speaks for one of their modes: mode auto then
// decides by that, whatever scheduler is below.
bool HasPlatform(const ModeOptions& options, const Environment& environment);

// A line for each option that is for another mode than this one.
std::vector<std::string> IdleOptions(const ModeOptions& options, Mode mode);

// modes-routing §1, "Dry-run JSON": one line without its newline; and the same for people to read.
std::string ModePlanJson(const ModePlan& plan);
std::string ModePlanText(const ModePlan& plan);

}  // namespace taskd::modes
