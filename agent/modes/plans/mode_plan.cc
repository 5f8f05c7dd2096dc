#include "agent/modes/plans/mode_plan.h"

#include <arpa/inet.h>

#include <algorithm>
#include <charconv>
#include <iterator>
#include <unordered_set>
#include <utility>

#include "agent/modes/plans/platform_modes.h"
#include "agent/rdma/rdma_environment.h"
#include "common/address.h"
#include "common/utf8.h"
#include "fmt/format.h"

namespace taskd::modes {
namespace {

constexpr int kManagerPort = 9601;
constexpr size_t kShownBytes = 200;
constexpr size_t kLongestWord = (128 << 10) - 1;  // of arguments and environment (MAX_ARG_STRLEN, with its end)

constexpr std::pair<Mode, std::string_view> kModes[] = {
    {Mode::kTorch, "torch"},
    {Mode::kMpi, "mpi"},
    {Mode::kHorovod, "horovod"},
    {Mode::kRay, "ray"},
    {Mode::kPs, "ps"},
    {Mode::kAscend, "ascend"},
    {Mode::kPytorchGpu, "pytorch-gpu"},
    {Mode::kTensorflowGpu, "tensorflow-gpu"},
    {Mode::kSlurm, "slurm"},
};

bool IsAddress(const std::string& host) {
  in6_addr ignored;
  return inet_pton(AF_INET, host.c_str(), &ignored) == 1 || inet_pton(AF_INET6, host.c_str(), &ignored) == 1;
}

std::string FileName(const std::string& path) { return path.substr(path.rfind('/') + 1); }

// What speaks for a mode by itself; two of them contradict each other.
struct Sign {
  std::string variable;
  Mode mode;
};

std::vector<Sign> SignsOfModes(const ModeInput& input) {
  std::vector<Sign> signs;
  if (input.Has("TF_CONFIG")) signs.push_back({"TF_CONFIG", Mode::kPs});
  if (input.Has("HEAD_ADDR")) signs.push_back({"HEAD_ADDR", Mode::kRay});
  for (const char* variable : {"OMPI_MCA_orte_default_hostfile", "NODE_IP_SLOT_LIST"}) {
    if (!input.Has(variable)) continue;
    const bool horovod = FileName(input.options.command[0]) == "horovodrun";
    signs.push_back({variable, horovod ? Mode::kHorovod : Mode::kMpi});
    break;  // the two go together
  }
  const bool model_arts = std::any_of(input.environment.begin(), input.environment.end(), [](const auto& variable) {
    return variable.first.starts_with("MA_") && !variable.second.empty();
  });
  if (input.Has("RANK_TABLE_FILE") && model_arts) signs.push_back({"RANK_TABLE_FILE", Mode::kAscend});
  return signs;
}

absl::StatusOr<Mode> ChooseMode(const ModeInput& input) {
  for (const auto& [mode, name] : kModes) {
    if (name == input.options.mode) return mode;
  }
  if (input.options.mode != "auto") {
    return absl::InvalidArgumentError(fmt::format("--mode {}: it is no mode", QuotedValue(input.options.mode)));
  }
  const std::vector<Sign> signs = SignsOfModes(input);
  if (signs.size() > 1) {
    return absl::InvalidArgumentError(
        fmt::format("--mode auto: {} {} is of mode {}, {} {} of mode {}; say which with --mode", signs[0].variable,
                    QuotedValue(input.Get(signs[0].variable)), ModeName(signs[0].mode), signs[1].variable,
                    QuotedValue(input.Get(signs[1].variable)), ModeName(signs[1].mode)));
  }
  if (!signs.empty()) return signs[0].mode;
  if (!input.Has("MA_NUM_HOSTS")) return Mode::kTorch;
  const bool has_ps = input.Get("MA_TASK_NAME") == "ps" || input.Has("TF_PS_HOSTS") || input.Has("VC_PS_HOSTS");
  return has_ps ? Mode::kTensorflowGpu : Mode::kPytorchGpu;
}

absl::Status PlanChosenMode(const ModeInput& input, ModePlan* plan) {
  switch (plan->mode) {
    case Mode::kTorch:
      return PlanTorch(input, plan);
    case Mode::kMpi:
    case Mode::kHorovod:
      if (!input.Has("NODE_LIST") && input.Has("MA_NUM_HOSTS")) return PlanModelArtsMpi(input, plan);
      return PlanTiOneMpi(input, plan);
    case Mode::kRay:
      return PlanRay(input, plan);
    case Mode::kPs:
      return PlanPs(input, plan);
    case Mode::kAscend:
      return PlanAscend(input, plan);
    case Mode::kPytorchGpu:
      return PlanPytorchGpu(input, plan);
    case Mode::kTensorflowGpu:
      return PlanTensorflowGpu(input, plan);
    case Mode::kSlurm:
      break;  // each task is a launcher of its own (agent/engine/task.h)
  }
  return absl::InternalError("a mode without a plan");
}

// Else the command could not be started, with an error of Linux that names nothing.
void WarnOfLongWords(ModePlan* plan) {
  const auto warn = [&](std::string_view what, size_t bytes) {
    if (bytes <= kLongestWord) return;
    plan->warnings.push_back(fmt::format("{}: it has {} bytes, and Linux starts no command with one of more than {}",
                                         what, bytes, kLongestWord));
  };
  if (plan->processes.empty()) return;
  const ModeProcess& process = plan->processes.back();
  for (const auto& [name, value] : process.environment) warn(name, name.size() + 1 + value.size());
  for (size_t i = 0; i < process.argv.size(); ++i)
    warn(fmt::format("word {} of the command", i), process.argv[i].size());
}

}  // namespace

std::string_view ModeName(Mode mode) {
  for (const auto& [known, name] : kModes) {
    if (known == mode) return name;
  }
  return "";
}

std::string_view PlatformName(Platform platform) {
  switch (platform) {
    case Platform::kTiOne:
      return "ti-one";
    case Platform::kModelArts:
      return "modelarts";
    case Platform::kSlurm:
      return "slurm";
    case Platform::kNone:
      break;
  }
  return "none";
}

std::string ModeInput::Get(const std::string& name) const { return ValueOf(environment, name); }

std::string QuotedValue(std::string_view value) {
  std::string shown = CutUtf8(value, kShownBytes);
  std::replace_if(
      shown.begin(), shown.end(), [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; }, '?');
  return fmt::format("'{}{}'", shown, value.size() > kShownBytes ? "..." : "");
}

std::optional<int> ReadInteger(std::string_view text, int least, int most) {
  int value = 0;
  const char* end = text.data() + text.size();
  const auto parsed = std::from_chars(text.data(), end, value);
  if (parsed.ec != std::errc() || parsed.ptr != end || text[0] == '-' || value < least || value > most) return {};
  return value;
}

absl::StatusOr<int> IntegerVariable(const ModeInput& input, const std::string& name, int least, int most,
                                    std::optional<int> fallback) {
  const std::string text = input.Get(name);
  const std::string rule = most == kAnyInteger ? fmt::format("an integer of at least {}", least)
                                               : fmt::format("an integer from {} to {}", least, most);
  if (text.empty()) {
    if (fallback) return *fallback;
    return absl::InvalidArgumentError(fmt::format("{}: it is not set; it is {}", name, rule));
  }
  const std::optional<int> value = ReadInteger(text, least, most);
  if (!value) return absl::InvalidArgumentError(fmt::format("{} {}: it is not {}", name, QuotedValue(text), rule));
  return *value;
}

absl::Status Agree(const ModeInput& input, const std::string& name, const std::string& value, const std::string& why,
                   Environment* environment) {
  const std::string given = input.Get(name);
  if (!given.empty() && given != value) {
    return absl::InvalidArgumentError(
        fmt::format("{} {}: it has to be {}, as {}", name, QuotedValue(given), QuotedValue(value), why));
  }
  (*environment)[name] = value;
  return absl::OkStatus();
}

std::string Address(const ModeInput& input, const std::string& host, ModePlan* plan) {
  if (IsAddress(host)) return host;
  std::string address = input.machine.ipv4(host);
  if (!address.empty()) return address;
  plan->unresolved.push_back(host);
  return host;
}

std::string Endpoint(const std::string& host, int port) { return FormatHostPort({host, port}); }

void AddRdma(const ModeInput& input, const std::vector<ModeNode>& nodes, Environment* environment) {
  // The conditions are about NODE_LIST. Other platforms do not describe their nodes.
  if (input.options.rdma == rdma::RdmaMode::kAuto && !input.Has("NODE_LIST")) return;
  std::vector<rdma::NodeEntry> entries;
  for (const ModeNode& node : nodes) entries.push_back({node.name, node.cards});
  if (!rdma::CheckRdmaConditions(input.options.rdma, entries, input.machine.sysfs).ok()) return;
  const auto get = [&](const char* name) {
    const auto found = input.environment.find(name);
    return found == input.environment.end() ? nullptr : found->second.c_str();
  };
  for (auto& [name, value] : rdma::RdmaEnvironment(get)) (*environment)[std::move(name)] = std::move(value);
}

bool HasPlatform(const ModeOptions& options, const Environment& environment) {
  const ModeMachine nobody;
  const ModeInput input{options, environment, nobody};
  return input.Has("NODE_LIST") || input.Has("MA_NUM_HOSTS") || !SignsOfModes(input).empty();
}

std::vector<std::string> IdleOptions(const ModeOptions& options, Mode mode) {
  std::vector<std::string> lines;
  const auto warn = [&](bool given, Mode its_mode, std::string_view option) {
    if (!given || mode == its_mode) return;
    lines.push_back(
        fmt::format("{} is for mode {}; it has no effect in mode {}", option, ModeName(its_mode), ModeName(mode)));
  };
  warn(options.ps_num.has_value(), Mode::kPs, "--ps-num");
  warn(!options.num_cpus.empty(), Mode::kRay, "--num-cpus");
  warn(!options.num_gpus.empty(), Mode::kRay, "--num-gpus");
  warn(!options.self.empty(), Mode::kAscend, "--self");
  return lines;
}

absl::StatusOr<ModePlan> PlanMode(const ModeOptions& options, const Environment& environment,
                                  const ModeMachine& machine) {
  if (options.command.empty()) return absl::InvalidArgumentError("CMD: it is missing; it goes after '--'");
  if (options.manager == "off") {
    return absl::InvalidArgumentError(
        "--manager 'off': it is not HOST:PORT with a port from 1 to 65535; the nodes of a mode meet at the manager");
  }
  const ModeInput input{options, environment, machine};
  const absl::StatusOr<Mode> mode = ChooseMode(input);
  if (!mode.ok()) return mode.status();
  if (options.route && *mode != Mode::kTorch && *mode != Mode::kPytorchGpu && *mode != Mode::kAscend) {
    return absl::InvalidArgumentError(
        fmt::format("--route: mode '{}' has no rank of the node to renumber; it is for torch, pytorch-gpu and ascend",
                    ModeName(*mode)));
  }
  ModePlan plan;
  plan.mode = *mode;
  if (absl::Status status = PlanChosenMode(input, &plan); !status.ok()) return status;
  std::unordered_set<std::string> seen;
  std::erase_if(plan.unresolved, [&](const std::string& name) { return !seen.insert(name).second; });
  for (std::string& line : IdleOptions(options, plan.mode)) plan.warnings.push_back(std::move(line));
  WarnOfLongWords(&plan);
  const bool one_node = plan.nodes.size() == 1;
  if (one_node && (plan.start == StartRule::kAfterFirst || plan.start == StartRule::kAfterAll)) {
    plan.start = StartRule::kAtOnce;
  }
  plan.manager = options.manager;
  if (plan.manager.empty() && !one_node) plan.manager = Endpoint(plan.nodes[0].name, kManagerPort);
  return plan;
}

}  // namespace taskd::modes
