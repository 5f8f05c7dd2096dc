// TI-ONE's modes for PyTorch, MPI, Horovod and Ray; its ps is in ps.cc.
#include <arpa/inet.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "absl/strings/numbers.h"
#include "agent/modes/plans/platform_modes.h"
#include "agent/rdma/node_list.h"
#include "common/address.h"
#include "fmt/format.h"

namespace taskd::modes {
namespace {

constexpr int kMasterPort = 23456;
constexpr int kHeadPort = 6379;
constexpr int kMaxPort = 65535;
constexpr size_t kLongestName = 253;  // of a host, to DNS
constexpr char kHostfile[] = "/etc/mpi/hostfile";
constexpr char kKeepNames[] = "OMPI_MCA_orte_keep_fqdn_hostnames";
constexpr char kHostfileVariable[] = "OMPI_MCA_orte_default_hostfile";

std::string NodeCount(const ModePlan& plan) {
  return fmt::format("there {} {} node{}", plan.nodes.size() == 1 ? "is" : "are", plan.nodes.size(),
                     plan.nodes.size() == 1 ? "" : "s");
}

int64_t Cards(const ModePlan& plan) {
  int64_t cards = 0;
  for (const ModeNode& node : plan.nodes) cards += node.cards;
  return cards;
}

bool AnyWordContains(const std::vector<std::string>& words, std::initializer_list<std::string_view> parts) {
  return std::any_of(words.begin(), words.end(), [&](const std::string& word) {
    return std::any_of(parts.begin(), parts.end(), [&](std::string_view part) { return word.find(part) != word.npos; });
  });
}

absl::Status AgreeOnCards(const ModeInput& input, const ModePlan& plan, Environment* environment) {
  absl::Status status =
      Agree(input, "GPU_NUM", std::to_string(Cards(plan)), "that is the sum of all nodes' cards", environment);
  if (!status.ok()) return status;
  return Agree(input, "GPU_NUM_PER_NODE", std::to_string(plan.nodes[plan.index].cards),
               fmt::format("node {}, '{}', has so many", plan.index, plan.nodes[plan.index].name), environment);
}

// The one way to write an address; a name that resolves: its address; else "".
std::string ResolvedAddress(const ModeInput& input, const std::string& host) {
  in6_addr address;
  char written[INET6_ADDRSTRLEN];
  for (const int family : {AF_INET, AF_INET6}) {
    if (inet_pton(family, host.c_str(), &address) == 1) return inet_ntop(family, &address, written, sizeof written);
  }
  return input.machine.ipv4(host);
}

bool IsIpv6(const std::string& address) { return address.find(':') != address.npos; }

// Whether `given` may be the node `name`. Nothing is known of a name that does not resolve (now), so it may be any
// address.
bool MayBe(const ModeInput& input, const std::string& given, const std::string& name) {
  if (given == name) return true;
  const std::string given_address = ResolvedAddress(input, given);
  const std::string address = ResolvedAddress(input, name);
  if (!given_address.empty() && !address.empty()) {
    if (given_address == address) return true;
    // It may have one of each; and on the node itself its name is often an alias of localhost.
    return IsIpv6(given_address) != IsIpv6(address) || (address != name && IsLoopback({address, 0}));
  }
  if (given_address == given || address == name) return true;
  return given.starts_with(name + ".") || name.starts_with(given + ".");
}

bool IsName(std::string_view host) {
  return !host.empty() && host.size() <= kLongestName && std::none_of(host.begin(), host.end(), [](char c) {
    return static_cast<unsigned char>(c) <= 0x20 || c == 0x7f ||
           std::string_view(",;/\\[]").find(c) != std::string::npos;
  });
}

// What came in as `name`, without brackets; "" if nothing did. INVALID_ARGUMENT: it cannot be node 0, or any host.
absl::StatusOr<std::string> FirstNodeVariable(const ModeInput& input, const std::string& name, const ModePlan& plan) {
  const std::vector<ModeNode>& nodes = plan.nodes;
  std::string host = input.Get(name);
  if (host.empty()) return host;
  if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
  if (!IsName(host)) {
    return absl::InvalidArgumentError(
        fmt::format("{} {}: it is not the name or address of a host", name, QuotedValue(input.Get(name))));
  }
  if (plan.platform == Platform::kNone || (nodes.size() == 1 && IsLoopback({host, 0}))) return host;
  const bool other =
      std::any_of(nodes.begin() + 1, nodes.end(), [&](const ModeNode& node) { return node.name == host; });
  if (other || !MayBe(input, host, nodes[0].name)) {
    return absl::InvalidArgumentError(
        fmt::format("{} {}: it has to be node 0, {}", name, QuotedValue(input.Get(name)), QuotedValue(nodes[0].name)));
  }
  return host;
}

std::string Hostfile(const ModePlan& plan) {
  std::string content;
  for (const ModeNode& node : plan.nodes) content += fmt::format("{} slots={}\n", node.name, node.cards);
  return content;
}

// NODE_IP_SLOT_LIST: what came in, if it is NODE_LIST with addresses.
absl::StatusOr<std::string> IpSlotList(const ModeInput& input, ModePlan* plan) {
  constexpr char kName[] = "NODE_IP_SLOT_LIST";
  std::string derived;
  std::vector<std::string> addresses;
  for (const ModeNode& node : plan->nodes) {
    addresses.push_back(Address(input, node.name, plan));
    derived += fmt::format("{}{}", derived.empty() ? "" : ",", Endpoint(addresses.back(), node.cards));
  }
  const std::string given = input.Get(kName);
  if (given.empty()) return derived;
  const auto bad = [&](std::string_view why) {
    return absl::InvalidArgumentError(fmt::format("{} {}: {}", kName, QuotedValue(given), why));
  };
  const absl::StatusOr<std::vector<rdma::NodeEntry>> entries = rdma::ParseNodeList(given);
  if (!entries.ok()) {
    const std::string message(entries.status().message());  // "NODE_LIST: entry 2, …"
    return absl::InvalidArgumentError(kName + message.substr(message.find(':')));
  }
  if (entries->size() != plan->nodes.size()) {
    return bad(fmt::format("it has {} entries, and {}", entries->size(), NodeCount(*plan)));
  }
  for (size_t i = 0; i < entries->size(); ++i) {
    const rdma::NodeEntry& entry = (*entries)[i];
    const ModeNode& node = plan->nodes[i];
    if (entry.cards != node.cards) {
      return bad(
          fmt::format("entry {} has {} slots, node {} of NODE_LIST {} cards", i + 1, entry.cards, i, node.cards));
    }
    if (!MayBe(input, entry.host, node.name)) {
      return bad(fmt::format("entry {} is '{}', node {} of NODE_LIST is '{}', {}", i + 1, entry.host, i, node.name,
                             addresses[i]));
    }
  }
  return given;
}

// What Ray makes of a number of CPUs or GPUs: whole ones.
std::string RayCount(std::string_view option, const std::string& text, bool round_up, ModePlan* plan) {
  double value = 0;
  if (!absl::SimpleAtod(text, &value)) return text;
  const double whole = round_up ? std::ceil(value) : std::floor(value);
  std::string shown = fmt::format("{:.0f}", whole);
  if (whole != value) {
    plan->warnings.push_back(fmt::format("{} {}: Ray counts whole ones only, so it gets {}{}", option, text, shown,
                                         whole == 0 ? "; tasks that ask for one will never run" : ""));
  }
  return shown;
}

}  // namespace

absl::Status ReadTiOneNodes(const ModeInput& input, int least_cards, ModePlan* plan, Environment* environment) {
  if (!input.Has("NODE_LIST") && input.Has("MA_NUM_HOSTS")) {
    if (absl::Status status = ReadModelArtsNodes(input, plan); !status.ok()) return status;
    if (plan->nodes[0].cards < least_cards) {
      return absl::InvalidArgumentError(fmt::format("MA_NUM_GPUS {}: a node of mode {} has at least {} card",
                                                    QuotedValue(input.Get("MA_NUM_GPUS")), ModeName(plan->mode),
                                                    least_cards));
    }
    plan->platform = Platform::kModelArts;
    std::string list;
    for (const ModeNode& node : plan->nodes) {
      list += fmt::format("{}{}", list.empty() ? "" : ",", Endpoint(node.name, node.cards));
    }
    (*environment)["NODE_LIST"] = list;
    return Agree(input, "INDEX", std::to_string(plan->index), "ModelArts' variables say so", environment);
  }
  if (!input.environment.contains("NODE_LIST")) {
    return absl::InvalidArgumentError(
        fmt::format("NODE_LIST: it is not set; mode {} needs it, as host:cards,host:cards{}", ModeName(plan->mode),
                    plan->mode == Mode::kPs ? ", or TF_CONFIG" : ""));
  }
  const std::string list = input.Get("NODE_LIST");
  const absl::StatusOr<std::vector<rdma::NodeEntry>> entries = rdma::ParseNodeList(list);
  if (!entries.ok()) return entries.status();
  for (const rdma::NodeEntry& entry : *entries) {
    if (entry.cards < least_cards) {
      return absl::InvalidArgumentError(fmt::format("NODE_LIST: entry {}, '{}': a node of mode {} has at least {} card",
                                                    plan->nodes.size() + 1, Endpoint(entry.host, entry.cards),
                                                    ModeName(plan->mode), least_cards));
    }
    plan->nodes.push_back({entry.host, entry.cards});
  }
  const absl::StatusOr<int> index =
      IntegerVariable(input, "INDEX", 0, static_cast<int>(plan->nodes.size()) - 1, std::nullopt);
  if (!index.ok()) {
    return absl::InvalidArgumentError(
        fmt::format("{} (NODE_LIST: {})", std::string(index.status().message()), NodeCount(*plan)));
  }
  plan->platform = Platform::kTiOne;
  plan->index = *index;
  (*environment)["NODE_LIST"] = list;
  (*environment)["INDEX"] = input.Get("INDEX");
  return absl::OkStatus();
}

absl::Status PlanTorch(const ModeInput& input, ModePlan* plan) {
  Environment environment;
  if (input.environment.contains("NODE_LIST") || input.Has("MA_NUM_HOSTS")) {
    if (absl::Status status = ReadTiOneNodes(input, 1, plan, &environment); !status.ok()) return status;
  } else {
    const int gpus = input.Has("GPU_NUM_PER_NODE") ? -1 : input.machine.gpus();
    const absl::StatusOr<int> cards = IntegerVariable(input, "GPU_NUM_PER_NODE", 1, kAnyInteger, std::max(gpus, 1));
    if (!cards.ok()) return cards.status();
    if (gpus == 0) plan->warnings.push_back("nvidia-smi -L lists no GPU; GPU_NUM_PER_NODE is 1");
    plan->nodes.push_back({"localhost", *cards});
    environment["NODE_LIST"] = Endpoint("localhost", *cards);
    if (absl::Status status = Agree(input, "INDEX", "0", "there is no NODE_LIST", &environment); !status.ok()) {
      return status;
    }
  }
  const bool alone = plan->platform == Platform::kNone;
  plan->role = plan->index == 0 ? "master" : "worker";
  plan->start = plan->index == 0 ? StartRule::kAtOnce : StartRule::kAfterFirst;

  const absl::StatusOr<std::string> master = FirstNodeVariable(input, "MASTER_ADDR", *plan);
  if (!master.ok()) return master.status();
  if (!master->empty()) {
    environment["MASTER_ADDR"] = *master;
  } else {
    environment["MASTER_ADDR"] = alone ? "localhost" : Address(input, plan->nodes[0].name, plan);
  }
  const absl::StatusOr<int> port = IntegerVariable(input, "MASTER_PORT", 1, kMaxPort, kMasterPort);
  if (!port.ok()) return port.status();
  environment["MASTER_PORT"] = std::to_string(*port);
  if (plan->index == 0) plan->binds.push_back({"MASTER_PORT", *port});

  absl::Status status = Agree(input, "WORLD_SIZE", std::to_string(plan->nodes.size()), NodeCount(*plan), &environment);
  if (status.ok()) status = Agree(input, "RANK", std::to_string(plan->index), "INDEX is that", &environment);
  if (status.ok()) status = AgreeOnCards(input, *plan, &environment);
  if (!status.ok()) return status;
  AddRdma(input, plan->nodes, &environment);

  const int cards = plan->nodes[plan->index].cards;
  if (cards > 1 && !AnyWordContains(input.options.command, {"torchrun", "torch.distributed", "torch_npu_run"})) {
    plan->warnings.push_back(
        fmt::format("GPU_NUM_PER_NODE is {}, but CMD starts once, with RANK and WORLD_SIZE of nodes: no word of it is "
                    "torchrun, torch.distributed or torch_npu_run",
                    cards));
  }
  plan->processes.push_back({input.options.command, std::move(environment)});
  return absl::OkStatus();
}

absl::Status PlanTiOneMpi(const ModeInput& input, ModePlan* plan) {
  Environment environment;
  if (absl::Status status = ReadTiOneNodes(input, 1, plan, &environment); !status.ok()) return status;
  const bool first = plan->index == 0;
  const bool several = plan->nodes.size() > 1;
  const bool horovod = plan->mode == Mode::kHorovod;
  plan->role = first ? "launcher" : "worker";
  plan->start = first ? StartRule::kAfterAll : StartRule::kAfterFirst;

  if (absl::Status status = AgreeOnCards(input, *plan, &environment); !status.ok()) return status;
  const std::string given = input.Get(kHostfileVariable);
  environment[kHostfileVariable] = given.empty() ? kHostfile : given;
  plan->files.push_back({environment[kHostfileVariable], Hostfile(*plan)});
  absl::StatusOr<std::string> slots = IpSlotList(input, plan);
  if (!slots.ok()) return slots.status();
  environment["NODE_IP_SLOT_LIST"] = *std::move(slots);
  // Otherwise Open MPI cuts names at the first dot, and what is left does not resolve.
  if (!input.Has(kKeepNames)) environment[kKeepNames] = "true";
  AddRdma(input, plan->nodes, &environment);

  const std::string front = input.Get("TASKD_MPI_FRONT");
  if (!front.empty() && front != "on" && front != "off") {
    return absl::InvalidArgumentError(fmt::format("TASKD_MPI_FRONT {}: it is on or off", QuotedValue(front)));
  }
  plan->mpi_front = several && !horovod && front != "off";
  plan->mpi.checks_ssh =
      several && first && AnyWordContains(input.options.command, {"mpirun", "mpiexec", "horovodrun", "deepspeed"});
  if (horovod) {
    for (size_t i = 1; i < plan->nodes.size(); ++i) plan->nodes[i].serves = true;
    plan->serves = !first;
  }
  if (first || !horovod) plan->processes.push_back({input.options.command, std::move(environment)});
  return absl::OkStatus();
}

absl::Status PlanRay(const ModeInput& input, ModePlan* plan) {
  Environment environment;
  if (absl::Status status = ReadTiOneNodes(input, 0, plan, &environment); !status.ok()) return status;
  const bool first = plan->index == 0;
  plan->role = first ? "head" : "worker";
  plan->start = first ? StartRule::kAfterReady : StartRule::kAfterFirst;
  for (size_t i = 1; i < plan->nodes.size(); ++i) plan->nodes[i].serves = true;
  plan->serves = !first;

  absl::StatusOr<std::string> head = FirstNodeVariable(input, "HEAD_ADDR", *plan);
  if (!head.ok()) return head.status();
  if (head->empty()) *head = plan->nodes[0].name;
  const absl::StatusOr<int> port = IntegerVariable(input, "HEAD_PORT", 1, kMaxPort, kHeadPort);
  if (!port.ok()) return port.status();
  plan->head_port = *port;
  if (first) plan->binds.push_back({"HEAD_PORT", *port});
  environment["HEAD_ADDR"] = *head;
  environment["HEAD_PORT"] = std::to_string(*port);
  const std::string rank = std::to_string(plan->index);
  if (absl::Status status = Agree(input, "RANK", rank, "INDEX is that", &environment); !status.ok()) return status;
  AddRdma(input, plan->nodes, &environment);

  const std::string address = Endpoint(*head, *port);
  ModeProcess start{{"ray", "start"}, environment};
  if (first) {
    start.argv.insert(start.argv.end(), {"--head", fmt::format("--port={}", *port)});
  } else {
    start.argv.push_back("--address=" + address);
  }
  start.argv.push_back(fmt::format("--resources={{\"Rank:{}\": 1}}", rank));
  const ModeOptions& options = input.options;
  if (!options.num_cpus.empty()) {
    start.argv.push_back("--num-cpus=" + RayCount("--num-cpus", options.num_cpus, false, plan));
  }
  if (!options.num_gpus.empty()) {
    start.argv.push_back("--num-gpus=" + RayCount("--num-gpus", options.num_gpus, true, plan));
  }
  plan->processes.push_back(std::move(start));
  if (!first) return absl::OkStatus();
  if (absl::Status status = Agree(input, "RAY_ADDRESS", address, "HEAD_ADDR and HEAD_PORT make it", &environment);
      !status.ok()) {
    return status;
  }
  plan->processes.push_back({options.command, std::move(environment)});
  return absl::OkStatus();
}

}  // namespace taskd::modes
