#include "agent/modes/plans/model_arts.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <unordered_map>
#include <utility>

#include "fmt/format.h"

namespace taskd::modes {
namespace {

// Open MPI's reader of tune files gives up the whole file at a longer word (measured with 4.1.4: 16382).
constexpr size_t kLongestTuneValue = 16000;

constexpr int kMaxSlots = 4096;

// Ports of pytorch-gpu: below the range that Linux gives to clients.
constexpr int kFirstPort = 20000;
constexpr int kPorts = 10000;

constexpr std::array kIndexNames = {"MA_TASK_INDEX", "VC_TASK_INDEX", "VK_TASK_INDEX"};

// Variables that begin so belong to every rank.
constexpr std::array<std::string_view, 7> kRankPrefixes = {"MA_",        "SHARED_", "S3_", "PATH",
                                                           "VC_WORKER_", "SCC",     "CRED"};

bool IsForRanks(std::string_view name) {
  return std::any_of(kRankPrefixes.begin(), kRankPrefixes.end(),
                     [&](std::string_view prefix) { return name.starts_with(prefix); });
}

// Why a tune file cannot carry the value; "" if it can. `leave_out`: it would break other lines too.
std::string_view TuneFileFault(std::string_view value, bool* leave_out) {
  *leave_out = true;
  if (value.find('\n') != value.npos) return "has a newline";
  if (value.size() > kLongestTuneValue) return "is too long";
  *leave_out = false;
  if (value.find(';') != value.npos) return "has a ';'";
  if (value.find_first_of(" \t\v") != value.npos) return "has a blank";
  return "";
}

PlannedFile TuneFile(const std::string& path, const Environment& variables, std::vector<std::string>* warnings) {
  PlannedFile file{path, ""};
  for (const auto& [name, value] : variables) {
    bool leave_out = false;
    const std::string_view fault = TuneFileFault(value, &leave_out);
    if (!fault.empty()) {
      warnings->push_back(fmt::format("{}: its value {}, which {} cannot carry{}; mpirun hands it to the ranks by -x",
                                      name, fault, path, leave_out ? ", so it is not in there" : ""));
    }
    if (!leave_out) file.content += fmt::format("-x {}={}\n", name, value);
  }
  return file;
}

// INVALID_ARGUMENT: two nodes have one address, which mpirun refuses.
absl::StatusOr<PlannedFile> Hostfile(const ModeInput& input, const std::string& path, int slots, ModePlan* plan) {
  PlannedFile file{path, ""};
  std::unordered_map<std::string, size_t> seen;
  for (size_t i = 0; i < plan->nodes.size(); ++i) {
    const std::string address = Address(input, plan->nodes[i].name, plan);
    const auto [before, is_new] = seen.emplace(address, i);
    if (!is_new) {
      return absl::InvalidArgumentError(
          fmt::format("MA_NUM_HOSTS '{}': the nodes {} and {} have one address, {}; each has its own",
                      plan->nodes.size(), plan->nodes[before->second].name, plan->nodes[i].name, address));
    }
    file.content += fmt::format("{} slots={}\n", address, slots);
  }
  return file;
}

// MY_MPI_SLOTS, else MA_NUM_GPUS.
absl::StatusOr<int> Slots(const ModeInput& input) {
  const char* name = input.Has("MY_MPI_SLOTS") ? "MY_MPI_SLOTS" : "MA_NUM_GPUS";
  return IntegerVariable(input, name, 1, kMaxSlots, 1);
}

struct MpiSettings {
  int slots = 0;
  int ssh_port = 0;
  std::string home;
};

absl::StatusOr<MpiSettings> ReadMpiSettings(const ModeInput& input) {
  const absl::StatusOr<int> slots = Slots(input);
  if (!slots.ok()) return slots.status();
  const absl::StatusOr<int> port = IntegerVariable(input, "MY_SSHD_PORT", 1, 65535, 36666);
  if (!port.ok()) return port.status();
  return MpiSettings{*slots, *port, input.Has("MA_HOME") ? input.Get("MA_HOME") : "/home/ma-user"};
}

// Node 0 runs mpirun, the others serve it.
void PlaceMpi(const MpiSettings& settings, ModePlan* plan) {
  const bool is_first = plan->index == 0;
  const bool has_others = plan->nodes.size() > 1;
  plan->role = "worker";
  for (size_t i = 1; i < plan->nodes.size(); ++i) plan->nodes[i].serves = true;
  plan->serves = !is_first;
  plan->mpi.ssh_port = settings.ssh_port;
  if (has_others) plan->mpi.sshd_config = settings.home + "/etc/ssh/sshd_config";
  plan->mpi.checks_ssh = is_first && has_others;
  plan->start = is_first ? StartRule::kAfterAll : StartRule::kAfterFirst;
}

Environment VariablesForRanks(const ModeInput& input) {
  Environment result;
  for (const auto& [name, value] : input.environment) {
    if (IsForRanks(name) && !value.empty()) result.emplace(name, value);
  }
  return result;
}

Environment MpirunVariables(const ModeInput& input, const Environment& for_ranks) {
  Environment result = ModelArtsVariables(input);
  result.insert(for_ranks.begin(), for_ranks.end());
  for (const char* name : {"MY_SSHD_PORT", "MY_MPI_BTL_TCP_IF", "MY_MPI_SLOTS", "LD_LIBRARY_PATH"}) {
    if (input.Has(name)) result[name] = input.Get(name);
  }
  if (input.machine.root) {
    for (const char* name : {"OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"}) {
      result[name] = input.Has(name) ? input.Get(name) : "1";
    }
  }
  return result;
}

// What mpirun hands on to the ranks (-x), and has in its own environment.
void ExportToRanks(const ModeInput& input, const Environment& for_ranks, const std::vector<ModeNode>& nodes,
                   ModeProcess* mpirun) {
  std::vector<std::string>& argv = mpirun->argv;
  const std::string interfaces = input.Has("MY_MPI_BTL_TCP_IF") ? input.Get("MY_MPI_BTL_TCP_IF") : "eth0,bond0";
  const std::array<std::pair<std::string, std::string>, 4> fixed = {{{"NCCL_DEBUG", "INFO"},
                                                                     {"NCCL_SOCKET_IFNAME", interfaces},
                                                                     {"NCCL_SOCKET_FAMILY", "AF_INET"},
                                                                     {"HOROVOD_MPI_THREADS_DISABLE", "1"}}};
  for (const auto& [name, value] : fixed) {
    argv.insert(argv.end(), {"-x", fmt::format("{}={}", name, value)});
    mpirun->environment[name] = value;
  }
  argv.insert(argv.end(), {"-x", "LD_LIBRARY_PATH"});
  // A bare name takes the value from mpirun's own environment, whatever is in it.
  for (const auto& [name, value] : for_ranks) argv.insert(argv.end(), {"-x", name});
  Environment rdma;
  AddRdma(input, nodes, &rdma);
  for (const auto& [name, value] : rdma) {
    if (mpirun->environment.emplace(name, value).second) argv.insert(argv.end(), {"-x", name});
  }
}

// Whether the command has the option: "--rank", "--rank=0".
bool HasOption(const std::vector<std::string>& command, const std::string& option) {
  return std::any_of(command.begin(), command.end(), [&](const std::string& word) {
    return word == option || (word.starts_with(option) && word[option.size()] == '=');
  });
}

}  // namespace

absl::StatusOr<int> ModelArtsHosts(const ModeInput& input) {
  return IntegerVariable(input, "MA_NUM_HOSTS", 1, kMaxModelArtsHosts, std::nullopt);
}

std::string ModelArtsIndexName(const ModeInput& input) {
  for (const char* name : kIndexNames) {
    if (input.Has(name)) return name;
  }
  return "";
}

absl::StatusOr<int> ModelArtsIndex(const ModeInput& input, int hosts) {
  const std::string name = ModelArtsIndexName(input);
  if (name.empty()) {
    return absl::InvalidArgumentError(
        "MA_TASK_INDEX: it is not set, and neither are VC_TASK_INDEX and VK_TASK_INDEX; it is this node's index");
  }
  absl::StatusOr<int> index = IntegerVariable(input, name, 0, hosts - 1, std::nullopt);
  if (!index.ok()) {
    return absl::InvalidArgumentError(
        fmt::format("{} (MA_NUM_HOSTS is {})", std::string(index.status().message()), hosts));
  }
  return index;
}

absl::StatusOr<int> ModelArtsCards(const ModeInput& input) {
  return IntegerVariable(input, "MA_NUM_GPUS", 0, kMaxSlots, 1);
}

absl::StatusOr<std::string> NamePart(const ModeInput& input, const std::string& variable) {
  const std::string value = input.Get(variable);
  if (value.empty()) {
    return absl::InvalidArgumentError(
        fmt::format("{}: it is not set; the names of the nodes are made of it", variable));
  }
  constexpr size_t kLongest = 253;  // of a host's name, to DNS
  const bool bad = value.size() > kLongest || std::any_of(value.begin(), value.end(), [](char c) {
                     return static_cast<unsigned char>(c) <= 0x20 || c == 0x7f ||
                            std::string_view(",;/\\:[]").find(c) != std::string_view::npos;
                   });
  if (bad) {
    return absl::InvalidArgumentError(
        fmt::format("{} {}: it is part of a host's name: at most {} bytes, no blank and none of , ; / \\ : [ ]",
                    variable, QuotedValue(value), kLongest));
  }
  return value;
}

std::string ModelArtsNodeName(std::string_view job, std::string_view task, int index) {
  return fmt::format("{}-{}-{}.{}", job, task, index, job);
}

Environment ModelArtsVariables(const ModeInput& input) {
  Environment variables;
  for (const auto& [name, value] : input.environment) {
    const bool is_index = std::find(kIndexNames.begin(), kIndexNames.end(), name) != kIndexNames.end();
    if ((is_index || name.starts_with("MA_")) && !value.empty()) variables.emplace(name, value);
  }
  return variables;
}

int NumberOfJob(std::string_view job, int below) {
  // FNV-1a. std::hash may differ between two builds of one program.
  uint64_t hash = 14695981039346656037u;
  for (const char c : job) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211u;
  return static_cast<int>((hash ^ hash >> 32) % static_cast<uint64_t>(below));
}

absl::Status ReadModelArtsNodes(const ModeInput& input, ModePlan* plan) {
  plan->platform = Platform::kModelArts;
  const absl::StatusOr<int> hosts = ModelArtsHosts(input);
  if (!hosts.ok()) return hosts.status();
  const absl::StatusOr<int> index = ModelArtsIndex(input, *hosts);
  if (!index.ok()) return index.status();
  const absl::StatusOr<int> cards = ModelArtsCards(input);
  if (!cards.ok()) return cards.status();
  plan->index = *index;
  if (*hosts == 1 && (!input.Has("MA_VJ_NAME") || !input.Has("MA_TASK_NAME"))) {
    plan->nodes = {{input.Has("MA_CURRENT_IP") ? input.Get("MA_CURRENT_IP") : "localhost", *cards}};
    return absl::OkStatus();
  }
  const absl::StatusOr<std::string> job = NamePart(input, "MA_VJ_NAME");
  if (!job.ok()) return job.status();
  const absl::StatusOr<std::string> task = NamePart(input, "MA_TASK_NAME");
  if (!task.ok()) return task.status();
  for (int i = 0; i < *hosts; ++i) plan->nodes.push_back({ModelArtsNodeName(*job, *task, i), *cards});
  return absl::OkStatus();
}

absl::Status PlanModelArtsMpi(const ModeInput& input, ModePlan* plan) {
  if (absl::Status nodes = ReadModelArtsNodes(input, plan); !nodes.ok()) return nodes;
  const absl::StatusOr<MpiSettings> settings = ReadMpiSettings(input);
  if (!settings.ok()) return settings.status();
  PlaceMpi(*settings, plan);
  if (plan->index != 0) return absl::OkStatus();

  absl::StatusOr<PlannedFile> hostfile = Hostfile(input, settings->home + "/hostfile", settings->slots, plan);
  if (!hostfile.ok()) return hostfile.status();
  const Environment for_ranks = VariablesForRanks(input);
  ModeProcess process;
  process.environment = MpirunVariables(input, for_ranks);
  const int64_t ranks = static_cast<int64_t>(plan->nodes.size()) * settings->slots;
  process.argv = {"mpirun",
                  "-np",
                  std::to_string(ranks),
                  "-hostfile",
                  hostfile->path,
                  "-mca",
                  "plm_rsh_args",
                  fmt::format("-p {}", settings->ssh_port),
                  "-bind-to",
                  "none",
                  "-map-by",
                  "slot"};
  ExportToRanks(input, for_ranks, plan->nodes, &process);
  process.argv.insert(process.argv.end(),
                      {"-mca", "pml", "ob1", "-mca", "btl", "^openib", "-mca", "plm_rsh_no_tree_spawn", "true"});
  process.argv.insert(process.argv.end(), input.options.command.begin(), input.options.command.end());

  plan->files.push_back(*std::move(hostfile));
  plan->files.push_back(TuneFile(settings->home + "/env_for_user_process", for_ranks, &plan->warnings));
  plan->processes.push_back(std::move(process));
  return absl::OkStatus();
}

absl::Status PlanPytorchGpu(const ModeInput& input, ModePlan* plan) {
  if (absl::Status nodes = ReadModelArtsNodes(input, plan); !nodes.ok()) return nodes;
  const int derived = kFirstPort + NumberOfJob(plan->nodes[0].name, kPorts);
  const absl::StatusOr<int> port = IntegerVariable(input, "MASTER_PORT", 1, 65535, derived);
  if (!port.ok()) return port.status();
  const bool is_first = plan->index == 0;
  plan->role = "worker";
  plan->start = is_first ? StartRule::kAtOnce : StartRule::kAfterFirst;

  ModeProcess process;
  process.argv = input.options.command;
  process.environment = ModelArtsVariables(input);
  if (input.Has("MASTER_PORT")) process.environment["MASTER_PORT"] = input.Get("MASTER_PORT");
  const auto append = [&](const std::string& option, const auto& value) {
    if (HasOption(input.options.command, option)) {
      plan->warnings.push_back(fmt::format("{}: the command has it already; it is kept and not added again", option));
      return;
    }
    process.argv.insert(process.argv.end(), {option, value()});
  };
  append("--init_method", [&] {
    if (is_first) plan->binds.push_back({"MASTER_PORT", *port});
    return "tcp://" + Endpoint(Address(input, plan->nodes[0].name, plan), *port);
  });
  if (plan->nodes.size() > 1) {
    append("--rank", [&] { return std::to_string(plan->index); });
    append("--world_size", [&] { return std::to_string(plan->nodes.size()); });
  }
  plan->processes.push_back(std::move(process));
  return absl::OkStatus();
}

}  // namespace taskd::modes
