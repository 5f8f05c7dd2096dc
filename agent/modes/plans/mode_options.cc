#include "agent/modes/plans/mode_options.h"

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <string_view>
#include <system_error>
#include <utility>

#include "absl/strings/numbers.h"
#include "agent/modes/plans/platform_modes.h"
#include "common/address.h"
#include "common/switch.h"
#include "fmt/format.h"

namespace taskd::modes {

const char kModeHelp[] = R"(Starts a command on this node as a training platform does, and its job's parts with it:
decides by what the platform has put into the environment, waits for the other nodes,
watches, and ends with the job's exit code. Every node of the job runs the same line.

Usage: taskd run --mode MODE [OPTIONS] -- COMMAND [ARGUMENTS...]

Modes
  auto            told from the environment
  torch           TI-ONE DDP: COMMAND once a node, with MASTER_ADDR, RANK, WORLD_SIZE...
  mpi, horovod    TI-ONE: writes the hostfile; ModelArts: starts COMMAND with mpirun
  ray             TI-ONE: ray start on every node, COMMAND on the head
  ps              TI-ONE: TensorFlow with TF_CONFIG
  ascend          ModelArts: one process for each device of RANK_TABLE_FILE
  pytorch-gpu     ModelArts: adds --init_method, --rank and --world_size
  tensorflow-gpu  ModelArts: adds --task_index, --ps_hosts, --worker_hosts and --job_name
  slurm           in each task of srun: COMMAND is that rank
  In a rank that mpirun has started, auto and mpi: COMMAND is that rank.

Options can be written with dashes or underscores, as --option VALUE or --option=VALUE.
Those with a name in brackets behind them are also read from the environment.

  --mode auto|torch|mpi|horovod|ray|ps|ascend|pytorch-gpu|tensorflow-gpu|slurm
                        which of these modes
  --dry-run             decide and check everything, start, write and wait for nothing
  --json                with --dry-run: one JSON object on stdout
  --marks all|KINDS     record from the start: all, or a list of step, forward,
                        dataloader, checkpoint, communication [nothing]
  --ledger DIR          keep where the job's time went there, for all its attempts
                        [TASKD_LEDGER]
  --manager HOST:PORT   where the nodes meet, the same on all of them [TASKD_MANAGER;
                        port 9601 of the first node]
  --wait-s S            how long any wait for other nodes may take, 1 to 86400
                        [TASKD_WAIT_S; 300]
  --node-timeout S      how long another node may be silent before it is lost, 5 to 86400;
                        node 0's holds [TASKD_NODE_TIMEOUT; 60]
  --ps-num P            mode ps without TF_CONFIG: the first P nodes of NODE_LIST are ps
                        [TASKD_PS_NUM]
  --num-cpus X, --num-gpus X
                        mode ray: passed on to ray start, as whole numbers: CPUs rounded
                        down, GPUs up [TASKD_NUM_CPUS, TASKD_NUM_GPUS; Ray's own choice]
  --self ID             mode ascend: which server of the rank table this node is
                        [TASKD_SELF; MA_CURRENT_IP]
  --rdma auto|on|off    NCCL's variables for RDMA: auto if the nodes are made for it
                        [TASKD_RDMA; auto]
  --remote-start auto|ssh|taskd
                        how mpirun starts processes on other nodes; auto: taskd where the
                        job has a token or TLS [TASKD_REMOTE_START; auto]
  --route               renumber the nodes along the switches before the start; needs
  --rank-table FILE     the job's rank table and
  --topology FILE       the network's topology, see taskd route
                        [TASKD_ROUTE, TASKD_RANK_TABLE, TASKD_TOPOLOGY]
  --max-input-mb MB     MiB that each of these may take, unpacked and with what is made of it
                        [TASKD_MAX_INPUT_MB; 64]
  -h, --help            print this text

TASKD_TOKEN, the same everywhere, is the job's token. TASKD_MPI_FRONT=off: mpirun on nodes
other than the first is not replaced by one that waits.

Exit code: 0, or that of the part of the job that failed first; 1 if a node did not come;
2 for wrong usage or configuration.
)";

namespace {

constexpr int kMaxWaitS = 86400;
constexpr int kMaxNodes = 1000000;

constexpr std::string_view kModes[] = {"auto", "torch",  "mpi",         "horovod",        "ray",
                                       "ps",   "ascend", "pytorch-gpu", "tensorflow-gpu", "slurm"};
constexpr char kModeNames[] = "auto, torch, mpi, horovod, ray, ps, ascend, pytorch-gpu, tensorflow-gpu or slurm";

constexpr OptionSpec Flag(std::string_view name, bool from_environment) {
  return {name, OptionSpec::Kind::kFlag, 0, from_environment};
}

constexpr OptionSpec kOptions[] = {{"mode", OptionSpec::Kind::kValue, 0, /*from_environment=*/false},
                                   Flag("dry-run", /*from_environment=*/false),
                                   Flag("json", /*from_environment=*/false),
                                   {"marks"},
                                   {"ledger"},
                                   {"manager"},
                                   {"wait-s"},
                                   {"node-timeout"},
                                   {"ps-num"},
                                   {"num-cpus"},
                                   {"num-gpus"},
                                   {"self"},
                                   {"rdma"},
                                   {"remote-start"},
                                   Flag("route", /*from_environment=*/true),
                                   {"rank-table"},
                                   {"topology"},
                                   {"max-input-mb"}};
constexpr std::string_view kPrefixes[] = {"TASKD_"};

std::string Explain(const OptionProblem& problem) {
  const std::string& label = problem.label;
  switch (problem.kind) {
    case OptionProblem::Kind::kUnknown:
    case OptionProblem::Kind::kAmbiguous:
      if (!problem.others.empty()) {
        return fmt::format("unknown option {} with --mode: did you mean {}?", QuotedValue(label),
                           problem.others.front());
      }
      return fmt::format("unknown option {} with --mode (see taskd run --mode auto --help)", QuotedValue(label));
    case OptionProblem::Kind::kTakesNoValue:
      return fmt::format("{}: it takes no value", QuotedValue(label + "=" + problem.value));
    case OptionProblem::Kind::kValueMissing:
      return fmt::format("{}: its value is missing", label);
    case OptionProblem::Kind::kValueEmpty:
      return fmt::format("{} '': its value is empty", label);
    case OptionProblem::Kind::kNotBool:
      return fmt::format("{} {}: it is not {}", label, QuotedValue(problem.value), problem.others.front());
  }
  return label;
}

absl::Status Refuse(const OptionProblem& problem) { return absl::InvalidArgumentError(Explain(problem)); }

}  // namespace

const OptionTable kModeOptionTable = {kOptions, kPrefixes, /*abbreviations=*/false, /*empty_values=*/false, Refuse};

namespace {

absl::Status Wrong(const GivenOption& given, std::string_view rule) {
  return absl::InvalidArgumentError(fmt::format("{} {}: it is not {}", given.label, QuotedValue(given.value), rule));
}

bool IsHelp(std::string_view word) { return word == "-h" || word == "--help"; }

// What the words mean.
class Interpreter {
 public:
  explicit Interpreter(const OptionWords& words) : words_(words) {}
  absl::StatusOr<ModeOptions> Options() const;

 private:
  absl::Status ReadNumbers(ModeOptions* options) const;
  absl::Status ReadChoices(ModeOptions* options) const;
  absl::Status ReadRoute(ModeOptions* options) const;

  const OptionWords& words_;
};

absl::Status Interpreter::ReadNumbers(ModeOptions* options) const {
  if (const GivenOption* given = words_.Find("wait-s")) {
    double value = 0;
    if (!absl::SimpleAtod(given->value, &value) || !(value > 0 && value <= kMaxWaitS)) {
      return Wrong(*given, fmt::format("seconds, a number above 0 and at most {}", kMaxWaitS));
    }
    options->wait_s = value;
  }
  if (const GivenOption* given = words_.Find("node-timeout")) {
    double value = 0;
    if (!absl::SimpleAtod(given->value, &value) || !(value >= kLeastNodeTimeoutS && value <= kMostNodeTimeoutS)) {
      return Wrong(*given, fmt::format("seconds, a number from {} to {}", kLeastNodeTimeoutS, kMostNodeTimeoutS));
    }
    options->node_timeout_s = value;
  }
  if (const GivenOption* given = words_.Find("max-input-mb")) {
    const std::optional<int> value = ReadInteger(given->value, 1, kMostInputMb);
    if (!value) return Wrong(*given, fmt::format("an integer from 1 to {}", kMostInputMb));
    options->max_input_mb = *value;
  }
  if (const GivenOption* given = words_.Find("ps-num")) {
    options->ps_num = ReadInteger(given->value, 1, kMaxNodes);
    if (!options->ps_num) return Wrong(*given, "an integer from 1 to one less than there are nodes");
  }
  for (const auto& [name, result] :
       {std::pair{"num-cpus", &options->num_cpus}, std::pair{"num-gpus", &options->num_gpus}}) {
    const GivenOption* given = words_.Find(name);
    if (given == nullptr) continue;
    double value = 0;
    const bool digits = given->value.find_first_not_of("0123456789.") == std::string::npos;
    if (!digits || !absl::SimpleAtod(given->value, &value) || value > kMaxNodes) {
      return Wrong(*given, fmt::format("a number from 0 to {}", kMaxNodes));
    }
    *result = given->value;
  }
  return absl::OkStatus();
}

absl::Status Interpreter::ReadChoices(ModeOptions* options) const {
  const GivenOption* mode = words_.Find("mode");
  if (mode == nullptr) return absl::InvalidArgumentError(fmt::format("--mode: it is missing; {}", kModeNames));
  if (std::find(std::begin(kModes), std::end(kModes), mode->value) == std::end(kModes)) return Wrong(*mode, kModeNames);
  options->mode = mode->value;
  if (const GivenOption* given = words_.Find("manager")) {
    const absl::StatusOr<HostPort> manager = ParseHostPort(given->label, given->value);
    if (given->value != "off" && (!manager.ok() || manager->port == 0)) {
      return Wrong(*given, "HOST:PORT with a port from 1 to 65535 (an IPv6 address goes into brackets: [::1]:9601)");
    }
    options->manager = given->value;
  }
  if (const GivenOption* given = words_.Find("marks")) {
    if (!ParseKinds(given->value).ok()) return Wrong(*given, kSwitchKindsRule);
    options->marks = given->value;
  }
  if (const GivenOption* given = words_.Find("ledger")) {
    std::error_code error;
    options->ledger = std::filesystem::absolute(given->value, error).string();
    if (error) return Wrong(*given, "a folder");
  }
  if (const GivenOption* given = words_.Find("rdma")) {
    const absl::StatusOr<rdma::RdmaMode> rdma = rdma::ParseRdmaMode(given->value);
    if (!rdma.ok()) return Wrong(*given, "auto, on or off");
    options->rdma = *rdma;
  }
  if (const GivenOption* given = words_.Find("remote-start")) {
    if (given->value == "auto") {
      options->remote_start = RemoteStart::kAuto;
    } else if (given->value == "ssh") {
      options->remote_start = RemoteStart::kSsh;
    } else if (given->value == "taskd") {
      options->remote_start = RemoteStart::kTaskd;
    } else {
      return Wrong(*given, "auto, ssh or taskd");
    }
  }
  return absl::OkStatus();
}

absl::Status Interpreter::ReadRoute(ModeOptions* options) const {
  options->route = words_.Flag("route");
  options->rank_table = words_.Value("rank-table");
  options->topology = words_.Value("topology");
  for (const char* name : {"rank-table", "topology"}) {
    const GivenOption* given = words_.Find(name);
    if (options->route && given == nullptr) {
      return absl::InvalidArgumentError(fmt::format("--route: it needs --{}, which is missing", name));
    }
    if (!options->route && given != nullptr && given->on_command_line) {
      return absl::InvalidArgumentError(
          fmt::format("{} {}: it needs --route, which is missing", given->label, QuotedValue(given->value)));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<ModeOptions> Interpreter::Options() const {
  ModeOptions options;
  absl::Status status = ReadChoices(&options);
  if (status.ok()) status = ReadNumbers(&options);
  if (status.ok()) status = ReadRoute(&options);
  if (!status.ok()) return status;
  options.self = words_.Value("self");
  options.dry_run = words_.Flag("dry-run");
  options.json = words_.Flag("json");
  if (options.json && !options.dry_run) {
    return absl::InvalidArgumentError("--json: it needs --dry-run, which is missing");
  }
  options.command = words_.rest();
  if (options.command.empty()) return absl::InvalidArgumentError("CMD: it is missing; it goes after '--'");
  if (options.command[0].empty()) return absl::InvalidArgumentError("CMD '': its first word is empty");
  return options;
}

}  // namespace

bool AsksForMode(const std::vector<std::string>& arguments) {
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (IsHelp(arguments[i])) continue;
    const OptionSpec* option = FindOption(kModeOptionTable, arguments[i]);
    if (option == nullptr) return false;
    if (option->name == "mode") return true;
    if (option->kind == OptionSpec::Kind::kValue && arguments[i].find('=') == std::string::npos) ++i;
  }
  return false;
}

absl::StatusOr<ModeOptions> ParseModeOptions(const std::vector<std::string>& arguments,
                                             const std::map<std::string, std::string>& environment, std::string* help) {
  help->clear();
  OptionWords words(kModeOptionTable, arguments);
  absl::Status status = words.Read();
  if (words.help()) {
    *help = kModeHelp;
    return ModeOptions();
  }
  if (status.ok()) status = words.ReadEnvironment(environment);
  if (!status.ok()) return status;
  return Interpreter(words).Options();
}

}  // namespace taskd::modes
