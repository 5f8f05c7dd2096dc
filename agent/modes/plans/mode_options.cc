#include "agent/modes/plans/mode_options.h"

#include <algorithm>
#include <iterator>
#include <string_view>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "agent/modes/plans/platform_modes.h"
#include "common/address.h"
#include "fmt/format.h"

namespace taskd {
namespace {

constexpr int kMaxWaitS = 86400;
constexpr int kMaxNodes = 1000000;

constexpr std::string_view kModes[] = {"auto", "torch",  "mpi",         "horovod",       "ray",
                                       "ps",   "ascend", "pytorch-gpu", "tensorflow-gpu"};
constexpr char kModeNames[] = "auto, torch, mpi, horovod, ray, ps, ascend, pytorch-gpu or tensorflow-gpu";

constexpr char kHelp[] = R"(Starts a command on this node as a training platform does, and its job's parts with it:
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

Options can be written with dashes or underscores, as --option VALUE or --option=VALUE.
Those with a name in brackets behind them are also read from the environment.

  --dry-run             decide and check everything, start, write and wait for nothing
  --json                with --dry-run: one JSON object on stdout
  --manager HOST:PORT   where the nodes meet, the same on all of them [TASKD_MANAGER;
                        port 9601 of the first node]
  --wait-s S            how long any wait for other nodes may take, 1 to 86400
                        [TASKD_WAIT_S; 300]
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
  -h, --help            print this text

TASKD_TOKEN, the same everywhere, is the job's token. TASKD_MPI_FRONT=off: mpirun on nodes
other than the first is not replaced by one that waits.

Exit code: 0, or that of the part of the job that failed first; 1 if a node did not come;
2 for wrong usage or configuration.
)";

struct Option {
  std::string_view name;
  bool is_flag = false;
  bool from_environment = true;
};

constexpr Option kOptions[] = {{"mode", false, false},
                               {"dry-run", true, false},
                               {"json", true, false},
                               {"manager"},
                               {"wait-s"},
                               {"ps-num"},
                               {"num-cpus"},
                               {"num-gpus"},
                               {"self"},
                               {"rdma"},
                               {"remote-start"},
                               {"route", true},
                               {"rank-table"},
                               {"topology"}};

// An option's value, and what gave it: "--wait-s" or "TASKD_WAIT_S".
struct Given {
  std::string label;
  std::string value;
  bool on_command_line = false;
};

std::string OptionName(std::string_view word) {
  std::string name(word.substr(2, word.find('=') - 2));
  std::replace(name.begin(), name.end(), '_', '-');
  return name;
}

const Option* FindOption(std::string_view word) {
  if (!word.starts_with("--")) return nullptr;
  const auto found = std::find_if(std::begin(kOptions), std::end(kOptions),
                                  [name = OptionName(word)](const Option& option) { return option.name == name; });
  return found == std::end(kOptions) ? nullptr : found;
}

bool IsHelp(std::string_view word) { return word == "-h" || word == "--help"; }
bool IsOption(std::string_view word) { return word.size() > 1 && word[0] == '-' && word != "--"; }

absl::Status Wrong(const Given& given, std::string_view rule) {
  return absl::InvalidArgumentError(fmt::format("{} {}: it is not {}", given.label, QuotedValue(given.value), rule));
}

class Parser {
 public:
  Parser(const std::vector<std::string>& words, const Environment& environment)
      : words_(words), environment_(environment) {}

  // `help`: it was asked, and nothing behind it was read.
  absl::Status ReadWords(bool* help);
  absl::Status ReadEnvironment();
  absl::StatusOr<ModeOptions> Options();

 private:
  const Given* Find(std::string_view option) const {
    const auto found = given_.find(option);
    return found == given_.end() ? nullptr : &found->second;
  }
  std::string Value(std::string_view option) const {
    const Given* given = Find(option);
    return given == nullptr ? "" : given->value;
  }
  bool Flag(std::string_view option) const { return Value(option) == "true"; }
  absl::Status ReadNumbers(ModeOptions* options) const;
  absl::Status ReadChoices(ModeOptions* options) const;
  absl::Status ReadRoute(ModeOptions* options) const;

  const std::vector<std::string>& words_;
  const Environment& environment_;
  size_t next_ = 0;
  std::map<std::string_view, Given> given_;
};

absl::Status Parser::ReadWords(bool* help) {
  for (; next_ < words_.size(); ++next_) {
    const std::string& word = words_[next_];
    if (word == "--") {
      ++next_;
      break;
    }
    if (!IsOption(word)) break;
    if ((*help = IsHelp(word))) return absl::OkStatus();
    const std::string label = word.substr(0, word.find('='));
    const Option* option = FindOption(word);
    if (option == nullptr) {
      return absl::InvalidArgumentError(
          fmt::format("unknown option {} with --mode (see taskd run --mode auto --help)", QuotedValue(label)));
    }
    const bool has_value = label.size() < word.size();
    Given given{label, "true", true};
    if (has_value) given.value = word.substr(label.size() + 1);
    if (option->is_flag) {
      if (has_value) return absl::InvalidArgumentError(fmt::format("{}: it takes no value", QuotedValue(word)));
    } else if (!has_value) {
      const bool more = next_ + 1 < words_.size() && words_[next_ + 1] != "--";
      // A negative number gets a better message from the option itself.
      if (!more || (IsOption(words_[next_ + 1]) && !absl::ascii_isdigit(words_[next_ + 1][1]))) {
        return absl::InvalidArgumentError(fmt::format("{}: its value is missing", label));
      }
      given.value = words_[++next_];
    }
    if (given.value.empty()) return absl::InvalidArgumentError(fmt::format("{} '': its value is empty", label));
    given_[option->name] = std::move(given);
  }
  return absl::OkStatus();
}

absl::Status Parser::ReadEnvironment() {
  for (const Option& option : kOptions) {
    if (!option.from_environment || given_.contains(option.name)) continue;
    std::string name = "TASKD_";
    for (const char c : option.name) name += c == '-' ? '_' : absl::ascii_toupper(static_cast<unsigned char>(c));
    const auto found = environment_.find(name);
    if (found == environment_.end() || found->second.empty()) continue;
    Given given{name, found->second};
    if (option.is_flag) {
      const std::string value = absl::AsciiStrToLower(given.value);
      const bool on = value == "1" || value == "true";
      if (!on && value != "0" && value != "false") return Wrong(given, "1, 0, true or false");
      given.value = on ? "true" : "false";
    }
    given_[option.name] = std::move(given);
  }
  return absl::OkStatus();
}

absl::Status Parser::ReadNumbers(ModeOptions* options) const {
  if (const Given* given = Find("wait-s")) {
    double value = 0;
    if (!absl::SimpleAtod(given->value, &value) || !(value > 0 && value <= kMaxWaitS)) {
      return Wrong(*given, fmt::format("seconds, a number above 0 and at most {}", kMaxWaitS));
    }
    options->wait_s = value;
  }
  if (const Given* given = Find("ps-num")) {
    options->ps_num = ReadInteger(given->value, 1, kMaxNodes);
    if (!options->ps_num) return Wrong(*given, "an integer from 1 to one less than there are nodes");
  }
  for (const auto& [name, result] :
       {std::pair{"num-cpus", &options->num_cpus}, std::pair{"num-gpus", &options->num_gpus}}) {
    const Given* given = Find(name);
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

absl::Status Parser::ReadChoices(ModeOptions* options) const {
  const Given* mode = Find("mode");
  if (mode == nullptr) return absl::InvalidArgumentError(fmt::format("--mode: it is missing; {}", kModeNames));
  if (std::find(std::begin(kModes), std::end(kModes), mode->value) == std::end(kModes)) return Wrong(*mode, kModeNames);
  options->mode = mode->value;
  if (const Given* given = Find("manager")) {
    const absl::StatusOr<HostPort> manager = ParseHostPort(given->label, given->value);
    if (!manager.ok() || manager->port == 0) {
      return Wrong(*given, "HOST:PORT with a port from 1 to 65535 (an IPv6 address goes into brackets: [::1]:9601)");
    }
    options->manager = given->value;
  }
  if (const Given* given = Find("rdma")) {
    const absl::StatusOr<RdmaMode> rdma = ParseRdmaMode(given->value);
    if (!rdma.ok()) return Wrong(*given, "auto, on or off");
    options->rdma = *rdma;
  }
  if (const Given* given = Find("remote-start")) {
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

absl::Status Parser::ReadRoute(ModeOptions* options) const {
  options->route = Flag("route");
  options->rank_table = Value("rank-table");
  options->topology = Value("topology");
  for (const char* name : {"rank-table", "topology"}) {
    const Given* given = Find(name);
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

absl::StatusOr<ModeOptions> Parser::Options() {
  ModeOptions options;
  absl::Status status = ReadChoices(&options);
  if (status.ok()) status = ReadNumbers(&options);
  if (status.ok()) status = ReadRoute(&options);
  if (!status.ok()) return status;
  options.self = Value("self");
  options.dry_run = Flag("dry-run");
  options.json = Flag("json");
  if (options.json && !options.dry_run) {
    return absl::InvalidArgumentError("--json: it needs --dry-run, which is missing");
  }
  options.command.assign(words_.begin() + static_cast<ptrdiff_t>(next_), words_.end());
  if (options.command.empty()) return absl::InvalidArgumentError("CMD: it is missing; it goes after '--'");
  if (options.command[0].empty()) return absl::InvalidArgumentError("CMD '': its first word is empty");
  return options;
}

}  // namespace

bool AsksForMode(const std::vector<std::string>& arguments) {
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (IsHelp(arguments[i])) continue;
    const Option* option = FindOption(arguments[i]);
    if (option == nullptr) return false;
    if (option->name == "mode") return true;
    if (!option->is_flag && arguments[i].find('=') == std::string::npos) ++i;
  }
  return false;
}

absl::StatusOr<ModeOptions> ParseModeOptions(const std::vector<std::string>& arguments,
                                             const std::map<std::string, std::string>& environment, std::string* help) {
  help->clear();
  Parser parser(arguments, environment);
  bool asked = false;
  absl::Status status = parser.ReadWords(&asked);
  if (asked) {
    *help = kHelp;
    return ModeOptions();
  }
  if (status.ok()) status = parser.ReadEnvironment();
  if (!status.ok()) return status;
  return parser.Options();
}

}  // namespace taskd
