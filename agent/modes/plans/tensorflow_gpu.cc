// Mode tensorflow-gpu: a parameter server and a worker for every node, which find each other by their arguments.
#include <arpa/inet.h>

#include <algorithm>
#include <optional>
#include <unordered_set>
#include <utility>

#include "agent/modes/plans/model_arts.h"
#include "fmt/format.h"

namespace taskd::modes {
namespace {

// Where no port is given: one of kFirstPort, kFirstPort + 2, … for ps and the next one for workers, as a ps and a
// worker may share a network. All stay below TaskD's own ports.
constexpr int kFirstPort = 5000;
constexpr int kPortPairs = 2300;

struct Host {
  std::string name;
  int port = 0;  // 0: none is given
};

struct HostList {
  std::string variable;
  std::string shown;  // in messages: where the list comes from
  std::vector<Host> hosts;
};

std::string_view Trimmed(std::string_view text) {
  const size_t begin = text.find_first_not_of(" \t");
  return begin == text.npos ? "" : text.substr(begin, text.find_last_not_of(" \t") - begin + 1);
}

bool IsIpv6(const std::string& text) {
  in6_addr address;
  return inet_pton(AF_INET6, text.c_str(), &address) == 1;
}

// "host", "host:port", "[IPv6]", "[IPv6]:port", a bare IPv6. Returns why not; "" if it is good.
std::string_view ParseHost(std::string_view entry, Host* host) {
  std::string_view port;
  bool has_port = false;
  if (entry.starts_with('[')) {
    const size_t close = entry.find(']');
    if (close == entry.npos) return "the bracket has no end";
    host->name = entry.substr(1, close - 1);
    if (!IsIpv6(host->name)) return "what stands in brackets is an IPv6 address";
    const std::string_view rest = entry.substr(close + 1);
    has_port = !rest.empty();
    if (has_port && rest.front() != ':') return "it is not host:port";
    if (has_port) port = rest.substr(1);
  } else if (IsIpv6(std::string(entry))) {
    host->name = entry;
  } else {
    const size_t colon = entry.find(':');
    host->name = entry.substr(0, colon);
    has_port = colon != entry.npos;
    if (has_port) port = entry.substr(colon + 1);
    if (host->name.empty()) return "the host is empty";
    if (host->name.find_first_of("[]/\\\"' \t\n") != std::string::npos) return "it is no host's name";
  }
  if (!has_port) return "";
  const std::optional<int> number = ReadInteger(port, 1, 65535);
  if (!number) return "the port is not an integer from 1 to 65535";
  host->port = *number;
  return "";
}

// Whether the first bracket ends with the text: "[a:1,b:1]", "[[::1]:5,[::2]:5]", not "[::1],[::2]". "[::1]" means the
// same either way.
bool IsInBrackets(std::string_view list) {
  if (!list.starts_with('[')) return false;
  int depth = 0;
  for (size_t i = 0; i < list.size(); ++i) {
    if (list[i] == '[') ++depth;
    if (list[i] == ']' && --depth == 0) return i + 1 == list.size();
  }
  return false;
}

absl::StatusOr<HostList> ParseHosts(const ModeInput& input, const std::string& variable) {
  HostList list{variable, fmt::format("{} {}", variable, QuotedValue(input.Get(variable))), {}};
  const std::string value = input.Get(variable);
  std::string_view text = Trimmed(value);
  if (IsInBrackets(text)) text = text.substr(1, text.size() - 2);
  for (size_t begin = 0; begin <= text.size();) {
    const std::string_view part = text.substr(begin, text.find(',', begin) - begin);
    begin += part.size() + 1;
    Host host;
    const std::string_view fault = ParseHost(Trimmed(part), &host);
    if (!fault.empty()) {
      return absl::InvalidArgumentError(
          fmt::format("{}: entry {}, {}: {}", variable, list.hosts.size() + 1, QuotedValue(part), fault));
    }
    list.hosts.push_back(std::move(host));
  }
  return list;
}

// `role`: "ps" or "worker".
absl::StatusOr<HostList> ReadHosts(const ModeInput& input, const std::string& role, int hosts) {
  const std::string name = role == "ps" ? "PS_HOSTS" : "WORKER_HOSTS";
  for (const std::string& variable : {"TF_" + name, "VC_" + name}) {
    if (input.Has(variable)) return ParseHosts(input, variable);
  }
  const absl::StatusOr<std::string> job = NamePart(input, "MA_VJ_NAME");
  if (!job.ok()) {
    return absl::InvalidArgumentError(
        fmt::format("{}; TF_{} and VC_{} are not set either", std::string(job.status().message()), name, name));
  }
  HostList list{"TF_" + name, fmt::format("MA_NUM_HOSTS '{}'", hosts), {}};
  for (int i = 0; i < hosts; ++i) list.hosts.push_back({ModelArtsNodeName(*job, role, i)});
  return list;
}

absl::Status CheckCounts(const HostList& ps, const HostList& workers, int hosts) {
  if (ps.hosts.size() != workers.hosts.size()) {
    return absl::InvalidArgumentError(fmt::format("{} and {}: {} ps and {} workers; there are as many of each",
                                                  ps.shown, workers.shown, ps.hosts.size(), workers.hosts.size()));
  }
  if (ps.hosts.size() != static_cast<size_t>(hosts)) {
    return absl::InvalidArgumentError(
        fmt::format("{} and MA_NUM_HOSTS '{}': {} ps; each node has one", ps.shown, hosts, ps.hosts.size()));
  }
  return absl::OkStatus();
}

void FillPorts(int port, HostList* list) {
  for (Host& host : list->hosts) {
    if (host.port == 0) host.port = port;
  }
}

absl::Status CheckEndpoints(const HostList& ps, const HostList& workers) {
  std::unordered_set<std::string> seen;
  for (const HostList* list : {&ps, &workers}) {
    for (const Host& host : list->hosts) {
      const std::string endpoint = Endpoint(host.name, host.port);
      if (!seen.insert(endpoint).second) {
        return absl::InvalidArgumentError(fmt::format("{}: {} is there twice", list->shown, endpoint));
      }
    }
  }
  return absl::OkStatus();
}

std::string Joined(const HostList& list) {
  std::string joined;
  for (const Host& host : list.hosts) joined += (joined.empty() ? "" : ",") + Endpoint(host.name, host.port);
  return joined;
}

absl::Status PlanSeveral(const ModeInput& input, int hosts, ModePlan* plan, ModeProcess* process) {
  const std::string role = input.Get("MA_TASK_NAME");
  if (role != "ps" && role != "worker") {
    return absl::InvalidArgumentError(
        fmt::format("MA_TASK_NAME {}: with several nodes it is ps or worker", QuotedValue(role)));
  }
  const absl::StatusOr<int> cards = ModelArtsCards(input);
  if (!cards.ok()) return cards.status();
  absl::StatusOr<HostList> ps = ReadHosts(input, "ps", hosts);
  if (!ps.ok()) return ps.status();
  absl::StatusOr<HostList> workers = ReadHosts(input, "worker", hosts);
  if (!workers.ok()) return workers.status();
  const int task_index = plan->index;
  const HostList& own_list = role == "ps" ? *ps : *workers;
  if (absl::Status lists = CheckCounts(*ps, *workers, hosts); !lists.ok()) return lists;

  const std::string job = input.Has("MA_VJ_NAME") ? input.Get("MA_VJ_NAME") : ps->hosts[0].name;
  const int port = kFirstPort + 2 * NumberOfJob(job, kPortPairs);
  FillPorts(port, &*ps);
  FillPorts(port + 1, &*workers);
  if (absl::Status endpoints = CheckEndpoints(*ps, *workers); !endpoints.ok()) return endpoints;
  for (const Host& host : ps->hosts) plan->nodes.push_back({host.name, *cards, true});
  for (const Host& host : workers->hosts) plan->nodes.push_back({host.name, *cards, false});
  plan->role = role;
  plan->serves = role == "ps";
  plan->index = plan->serves ? task_index : hosts + task_index;
  plan->binds.push_back({own_list.variable, own_list.hosts[static_cast<size_t>(task_index)].port});
  for (const char* name : {"TF_PS_HOSTS", "TF_WORKER_HOSTS", "VC_PS_HOSTS", "VC_WORKER_HOSTS"}) {
    if (input.Has(name)) process->environment[name] = input.Get(name);
  }
  process->argv.insert(process->argv.end(), {"--task_index", std::to_string(task_index), "--ps_hosts", Joined(*ps),
                                             "--worker_hosts", Joined(*workers), "--job_name", role});
  return absl::OkStatus();
}

}  // namespace

absl::Status PlanTensorflowGpu(const ModeInput& input, ModePlan* plan) {
  plan->platform = Platform::kModelArts;
  const absl::StatusOr<int> hosts = ModelArtsHosts(input);
  if (!hosts.ok()) return hosts.status();
  const absl::StatusOr<int> index = ModelArtsIndex(input, *hosts);
  if (!index.ok()) return index.status();
  plan->index = *index;
  ModeProcess process;
  process.argv = input.options.command;
  process.environment = ModelArtsVariables(input);
  if (*hosts > 1) {
    if (absl::Status several = PlanSeveral(input, *hosts, plan, &process); !several.ok()) return several;
  } else {
    if (absl::Status nodes = ReadModelArtsNodes(input, plan); !nodes.ok()) return nodes;
    plan->role = "worker";
  }
  plan->processes.push_back(std::move(process));
  return absl::OkStatus();
}

}  // namespace taskd::modes
