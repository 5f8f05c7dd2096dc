#include "agent/run/options.h"

#include <arpa/inet.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cmath>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <optional>
#include <random>
#include <string_view>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "agent/run/device_count.h"
#include "agent/run/option_table.h"
#include "agent/run/options_help.h"
#include "agent/run/placed_words.h"
#include "common/address.h"
#include "common/switch.h"

namespace taskd::run {
namespace {

constexpr int kMaxNodes = 65536;
constexpr int kMaxProcsPerNode = 4096;
constexpr int kC10dPort = 29400;
constexpr int kMaxPort = 65535;

absl::Status ReadInt(const GivenOption& given, int least, int most, int* result) {
  int value = 0;
  if (!absl::SimpleAtoi(given.value, &value) || value < least || value > most) {
    return WrongOption(given, most == INT_MAX ? absl::StrCat("an integer of at least ", least)
                                              : absl::StrCat("an integer from ", least, " to ", most));
  }
  *result = value;
  return absl::OkStatus();
}

absl::Status ReadSeconds(const GivenOption& given, double* result) {
  double value = 0;
  if (!absl::SimpleAtod(given.value, &value) || !std::isfinite(value) || value < 0 || value > 1e9) {
    return WrongOption(given, "seconds, a number of at least 0");
  }
  *result = value;
  return absl::OkStatus();
}

absl::Status ReadNodeTimeout(const GivenOption& given, double* result) {
  double value = 0;
  if (!absl::SimpleAtod(given.value, &value) || !(value >= kLeastNodeTimeoutS && value <= kMostNodeTimeoutS)) {
    return WrongOption(given, absl::StrCat("seconds, a number from ", kLeastNodeTimeoutS, " to ", kMostNodeTimeoutS));
  }
  *result = value;
  return absl::OkStatus();
}

absl::Status ReadNodes(const GivenOption& given, RunOptions* options) {
  const std::vector<std::string> parts = absl::StrSplit(given.value, ':');
  int least = 0, most = 0;
  if (parts.size() > 2 || !absl::SimpleAtoi(parts[0], &least) || !absl::SimpleAtoi(parts.back(), &most) || least < 1 ||
      least > most || most > kMaxNodes) {
    return WrongOption(given, absl::StrCat("N or MIN:MAX with 1 <= MIN <= MAX <= ", kMaxNodes));
  }
  options->min_nodes = least;
  options->max_nodes = most;
  return absl::OkStatus();
}

absl::Status ReadProcsPerNode(const GivenOption& given, const std::map<std::string, std::string>& environment,
                              int* procs_per_node) {
  const auto cpus = std::clamp(static_cast<int>(::sysconf(_SC_NPROCESSORS_ONLN)), 1, kMaxProcsPerNode);
  if (given.value == "cpu") {
    *procs_per_node = cpus;
    return absl::OkStatus();
  }
  if (given.value == "auto" || given.value == "gpu" || given.value == "npu" || given.value == "xpu") {
    const int devices = std::min(CountDevices("/", environment), kMaxProcsPerNode);
    if (devices == 0 && given.value != "auto") {
      return WrongOption(given,
                         "this node has none that may be seen (/dev/nvidia<N>, /proc/driver/nvidia/gpus, "
                         "/dev/davinci<N>, /dev/dri/renderD<N>)");
    }
    *procs_per_node = devices > 0 ? devices : cpus;
    return absl::OkStatus();
  }
  int value = 0;
  if (!absl::SimpleAtoi(given.value, &value) || value < 1 || value > kMaxProcsPerNode) {
    return WrongOption(given, absl::StrCat("an integer from 1 to ", kMaxProcsPerNode, ", auto, cpu, gpu, npu or xpu"));
  }
  *procs_per_node = value;
  return absl::OkStatus();
}

absl::Status ReadStreams(const GivenOption& given, StreamChoice* choice) {
  constexpr char kRule[] = "0 (none), 1 (stdout), 2 (stderr), 3 (both), or LOCAL_RANK:0..3,...";
  auto read = [](std::string_view text, int* value) {
    if (text.size() != 1 || text[0] < '0' || text[0] > '3') return false;
    *value = text[0] - '0';
    return true;
  };
  StreamChoice result;
  if (!read(given.value, &result.all)) {
    for (absl::string_view item : absl::StrSplit(given.value, ',')) {
      const std::vector<std::string> parts = absl::StrSplit(item, ':');
      int rank = -1, streams = 0;
      if (parts.size() != 2 || !absl::SimpleAtoi(parts[0], &rank) || rank < 0 || !read(parts[1], &streams)) {
        return WrongOption(given, kRule);
      }
      result.by_local_rank[rank] = streams;
    }
  }
  *choice = std::move(result);
  return absl::OkStatus();
}

absl::Status ReadRanks(const GivenOption& given, std::vector<int>* ranks) {
  ranks->clear();
  if (given.value.empty()) return absl::OkStatus();
  for (absl::string_view item : absl::StrSplit(given.value, ',')) {
    int rank = -1;
    if (!absl::SimpleAtoi(item, &rank) || rank < 0) return WrongOption(given, "local ranks, as 0,3");
    ranks->push_back(rank);
  }
  return absl::OkStatus();
}

absl::Status ReadSignals(const GivenOption& given, std::vector<int>* signals) {
  signals->clear();
  for (absl::string_view item : absl::StrSplit(given.value, ',')) {
    const std::string name = std::string(absl::StripPrefix(absl::StripAsciiWhitespace(item), "SIG"));
    int number = 0;
    for (int signal = 1; signal < SIGRTMIN && number == 0; ++signal) {
      const char* known = ::sigabbrev_np(signal);
      if (known != nullptr && name == known) number = signal;
    }
    if (number == 0) return WrongOption(given, "names of signals, as SIGTERM,SIGUSR1");
    if (number == SIGKILL || number == SIGSTOP || number == SIGCHLD) {
      return WrongOption(given, absl::StrCat("SIG", name, " cannot be handled"));
    }
    if (std::find(signals->begin(), signals->end(), number) == signals->end()) signals->push_back(number);
  }
  return absl::OkStatus();
}

absl::Status ReadRdzvConf(const GivenOption& given, RunOptions* options) {
  if (absl::StripAsciiWhitespace(given.value).empty()) return absl::OkStatus();
  for (absl::string_view item : absl::StrSplit(given.value, ',')) {
    const std::vector<std::string> parts = absl::StrSplit(item, absl::MaxSplits('=', 1));
    const std::string key(absl::StripAsciiWhitespace(parts[0]));
    const std::string value(absl::StripAsciiWhitespace(parts.back()));
    if (parts.size() != 2 || key.empty() || value.empty()) {
      return WrongOption(given, "KEY=VALUE,KEY=VALUE");
    }
    const GivenOption named{absl::StrCat(given.label, " ", key), value};
    if (key == "is_host") {
      const std::string lower = absl::AsciiStrToLower(value);
      const bool known = ReadBool(value).has_value() || lower == "t" || lower == "yes" || lower == "y" ||
                         lower == "f" || lower == "no" || lower == "n";
      if (!known) return WrongOption(named, "true or false");
      options->rdzv_conf[key] = lower == "1" || lower[0] == 't' || lower[0] == 'y' ? "true" : "false";
      continue;
    }
    constexpr std::string_view kSeconds[] = {"timeout",       "join_timeout", "last_call_timeout",
                                             "close_timeout", "read_timeout", "keep_alive_interval"};
    if (std::find(std::begin(kSeconds), std::end(kSeconds), key) != std::end(kSeconds)) {
      double seconds = 0;
      if (absl::Status status = ReadSeconds(named, &seconds); !status.ok()) return status;
    }
    if (key == "keep_alive_max_attempt") {
      int attempts = 0;
      if (absl::Status status = ReadInt(named, 1, INT_MAX, &attempts); !status.ok()) return status;
    }
    options->rdzv_conf[key] = value;
  }
  return absl::OkStatus();
}

std::string WithoutBrackets(const std::string& host) {
  return host.size() > 2 && host.front() == '[' && host.back() == ']' ? host.substr(1, host.size() - 2) : host;
}

bool IsIpv6(const std::string& host) {
  in6_addr address;
  return ::inet_pton(AF_INET6, host.c_str(), &address) == 1;
}

// A host by itself, with or without brackets.
absl::Status ReadHost(const GivenOption& given, std::string* host) {
  const std::string name = WithoutBrackets(given.value);
  const bool bad = name.find_first_of(" \t\n[]/") != std::string::npos;
  if (name.empty() || bad || (name.find(':') != std::string::npos && !IsIpv6(name))) {
    return WrongOption(given, "a host's name or address without a port");
  }
  *host = name;
  return absl::OkStatus();
}

absl::Status ReadEndpoint(const GivenOption& given, int default_port, HostPort* endpoint) {
  const bool host_only = given.value.find(':') == std::string::npos || given.value.back() == ']' || IsIpv6(given.value);
  if (host_only) {
    if (!ReadHost(given, &endpoint->host).ok()) return WrongOption(given, "HOST or HOST:PORT, IPv6 as [::1]:29500");
    endpoint->port = default_port;
    return absl::OkStatus();
  }
  absl::StatusOr<HostPort> parsed = ParseHostPort(given.label, given.value);
  if (!parsed.ok()) return parsed.status();
  if (parsed->host.find_first_of(" \t\n[]/") != std::string::npos) return WrongOption(given, "HOST or HOST:PORT");
  *endpoint = *parsed;
  return absl::OkStatus();
}

absl::Status ReadChoice(const GivenOption& given, std::initializer_list<std::string_view> choices,
                        std::string* result) {
  for (std::string_view choice : choices) {
    if (given.value != choice) continue;
    *result = given.value;
    return absl::OkStatus();
  }
  const std::vector<std::string> names(choices.begin(), choices.end());
  return WrongOption(given, absl::StrCat("one of ", absl::StrJoin(names, ", ")));
}

std::string RandomId() {
  std::random_device random;
  std::string id;
  for (int i = 0; i < 4; ++i) absl::StrAppend(&id, absl::Hex(random(), absl::kZeroPad8));
  return id;
}

// Interprets what was given, in an order in which every value that another one depends on comes first.
class Interpreter {
 public:
  // `options`: what the scheduler has said already.
  Interpreter(const OptionWords& words, const std::map<std::string, std::string>& environment, RunOptions options)
      : words_(words), environment_(environment), options_(std::move(options)) {}

  absl::StatusOr<RunOptions> Run() {
    // The first wrong value is the one that is reported.
    for (absl::Status (Interpreter::*part)() : {&Interpreter::Size, &Interpreter::Rendezvous, &Interpreter::Supervision,
                                                &Interpreter::Output, &Interpreter::Ours, &Interpreter::Program}) {
      if (absl::Status status = (this->*part)(); !status.ok()) return status;
    }
    return std::move(options_);
  }

 private:
  template <typename Reader>
  absl::Status With(std::string_view option, Reader reader) {
    const GivenOption* given = words_.Find(option);
    return given == nullptr ? absl::OkStatus() : reader(*given);
  }
  void Warn(std::string text) { options_.warnings.push_back(std::move(text)); }

  absl::Status Size() {
    options_.standalone = words_.Flag("standalone");
    absl::Status status = With("nnodes", [&](const GivenOption& g) { return ReadNodes(g, &options_); });
    status.Update(With("nproc-per-node", [&](const GivenOption& g) {
      return ReadProcsPerNode(g, environment_, &options_.procs_per_node);
    }));
    if (!status.ok()) return status;
    if (options_.standalone) {
      if (options_.min_nodes > 1) return WrongOption(*words_.Find("nnodes"), "--standalone is for one node");
      options_.max_nodes = 1;
    }
    return status;
  }

  absl::Status Rendezvous() {
    RunOptions& o = options_;
    absl::Status status = With("rdzv-backend", [&](const GivenOption& g) {
      return ReadChoice(g, {"static", "c10d", "parallel"}, &o.rdzv_backend);
    });
    status.Update(With("rdzv-id", [&](const GivenOption& g) {
      o.rdzv_id = g.value;
      return g.value.empty() ? WrongOption(g, "not empty") : absl::OkStatus();
    }));
    status.Update(With("rdzv-conf", [&](const GivenOption& g) { return ReadRdzvConf(g, &o); }));
    status.Update(With("master-addr", [&](const GivenOption& g) { return ReadHost(g, &o.master_addr); }));
    status.Update(With("master-port", [&](const GivenOption& g) { return ReadInt(g, 0, kMaxPort, &o.master_port); }));
    status.Update(With("local-addr", [&](const GivenOption& g) {
      return g.value.empty() ? absl::OkStatus() : ReadHost(g, &o.local_addr);
    }));
    status.Update(With("node-rank", [&](const GivenOption& g) {
      o.node_rank_given = true;
      return ReadInt(g, 0, kMaxNodes - 1, &o.node_rank);
    }));
    return status.ok() ? Endpoint() : status;
  }

  absl::Status Endpoint() {
    if (options_.standalone) {
      options_.rdzv_backend = "c10d";
      options_.rdzv_id = RandomId();
      options_.rdzv_endpoint = "localhost:0";
      options_.node_rank = 0;
      return absl::OkStatus();
    }
    const GivenOption* given = words_.Find("rdzv-endpoint");
    if (given != nullptr && given->value.empty()) given = nullptr;
    return options_.rdzv_backend == "c10d" ? C10dEndpoint(given) : StaticEndpoint(given);
  }

  absl::Status C10dEndpoint(const GivenOption* given) {
    absl::Status status;
    HostPort endpoint{"localhost", kC10dPort};
    if (given != nullptr) status.Update(ReadEndpoint(*given, kC10dPort, &endpoint));
    options_.rdzv_endpoint = FormatHostPort(endpoint);
    for (const char* option : {"master-addr", "master-port"}) {
      const GivenOption* unused = words_.Find(option);
      if (unused == nullptr || !unused->on_command_line) continue;
      Warn(absl::StrCat("--", option, " has no effect with --rdzv-backend c10d; --rdzv-endpoint names the host"));
    }
    return status;
  }

  // And of the backend "parallel".
  absl::Status StaticEndpoint(const GivenOption* given) {
    RunOptions& o = options_;
    if (o.node_rank >= o.max_nodes) {
      return WrongOption(*words_.Find("node-rank"), absl::StrCat("must be below --nnodes ", o.max_nodes));
    }
    HostPort endpoint{o.master_addr, o.master_port};
    if (given != nullptr) {
      absl::Status status = ReadEndpoint(*given, o.master_port, &endpoint);
      if (!status.ok()) return status;
      const bool both = words_.Find("master-addr") != nullptr && words_.Find("master-addr")->on_command_line;
      if (both && endpoint.host != o.master_addr) {
        Warn(absl::StrCat("--rdzv-endpoint ", given->value, " is used; --master-addr ", o.master_addr,
                          " has no effect"));
      }
      o.master_addr = endpoint.host;
      o.master_port = endpoint.port;
    }
    o.rdzv_endpoint = FormatHostPort(endpoint);
    return absl::OkStatus();
  }

  absl::Status Supervision() {
    RunOptions& o = options_;
    absl::Status status =
        With("max-restarts", [&](const GivenOption& g) { return ReadInt(g, 0, INT_MAX, &o.max_restarts); });
    status.Update(
        With("monitor-interval", [&](const GivenOption& g) { return ReadSeconds(g, &o.monitor_interval_s); }));
    std::string start_method;
    status.Update(With("start-method", [&](const GivenOption& g) {
      return ReadChoice(g, {"spawn", "fork", "forkserver"}, &start_method);
    }));
    o.signals_to_handle = {SIGTERM, SIGINT, SIGHUP, SIGQUIT};
    status.Update(
        With("signals-to-handle", [&](const GivenOption& g) { return ReadSignals(g, &o.signals_to_handle); }));
    o.signals_named = words_.Find("signals-to-handle") != nullptr;
    if (const GivenOption* given = words_.Find("shutdown-timeout"); given != nullptr) {
      status.Update(ReadSeconds(*given, &o.shutdown_timeout_s));
    } else if (auto found = environment_.find("TORCH_ELASTIC_SHUTDOWN_TIMEOUT");
               found != environment_.end() && !found->second.empty()) {
      status.Update(ReadSeconds({found->first, found->second}, &o.shutdown_timeout_s));
    }
    status.Update(With("node-timeout", [&](const GivenOption& g) { return ReadNodeTimeout(g, &o.node_timeout_s); }));
    status.Update(With("numa-binding", [&](const GivenOption& g) {
      return ReadChoice(g, {"node", "socket", "exclusive", "core-complex"}, &o.numa_binding);
    }));
    o.virtual_local_rank = words_.Flag("virtual-local-rank");
    return status;
  }

  absl::Status Output() {
    RunOptions& o = options_;
    absl::Status status = With("role", [&](const GivenOption& g) {
      o.role = g.value;
      return absl::OkStatus();
    });
    status.Update(With("log-dir", [&](const GivenOption& g) {
      o.log_dir = g.value;
      return absl::OkStatus();
    }));
    status.Update(With("redirects", [&](const GivenOption& g) { return ReadStreams(g, &o.redirects); }));
    status.Update(With("tee", [&](const GivenOption& g) { return ReadStreams(g, &o.tee); }));
    status.Update(
        With("local-ranks-filter", [&](const GivenOption& g) { return ReadRanks(g, &o.local_ranks_filter); }));
    for (const char* option : {"duplicate-stdout-filters", "duplicate-stderr-filters", "logs-specs"}) {
      const GivenOption* given = words_.Find(option);
      if (given != nullptr && !given->value.empty() && given->value != "default") {
        Warn(absl::StrCat("--", option, " has no effect"));
      }
    }
    if (const GivenOption* given = words_.Find("event-log-handler"); given != nullptr && given->value != "null") {
      Warn("--event-log-handler has no effect: events go to the log");
    }
    return status;
  }

  absl::Status Ours() {
    RunOptions& o = options_;
    o.tiered = words_.Flag("enable-tiered-parallel-tcpstore");
    absl::Status status = With("store-fan-out", [&](const GivenOption& g) {
      absl::Status read = ReadInt(g, 0, INT_MAX, &o.store_fan_out);
      return read.ok() && o.store_fan_out != 1 ? read : WrongOption(g, "0 (one level), or an integer of at least 2");
    });
    status.Update(With("store-memory-limit-mb",
                       [&](const GivenOption& g) { return ReadInt(g, 1, 1 << 24, &o.store_memory_limit_mb); }));
    status.Update(With("hang-action", [&](const GivenOption& g) {
      return ReadChoice(g, {"report", "restart", "stop"}, &o.hang_action);
    }));
    status.Update(With("hang-factor", [&](const GivenOption& g) {
      double value = 0;
      if (!absl::SimpleAtod(g.value, &value) || !std::isfinite(value) || (value != 0 && value <= 1)) {
        return WrongOption(g, "0 (never), or a number above 1");
      }
      o.hang_factor = value;
      return absl::OkStatus();
    }));
    status.Update(With("ras", [&](const GivenOption& g) {
      std::string choice;
      absl::Status read = ReadChoice(g, {"on", "off"}, &choice);
      o.ras = choice != "off";
      return read;
    }));
    o.dry_run = words_.Flag("dry-run");
    o.no_taskd = words_.Flag("no-taskd");
    status.Update(With("manager", [&](const GivenOption& g) {
      o.manager = g.value;
      if (g.value.empty() || g.value == "off") return absl::OkStatus();
      absl::StatusOr<HostPort> parsed = ParseHostPort(g.label, g.value);
      if (parsed.ok() && parsed->port == 0) return WrongOption(g, "HOST:PORT of a manager that runs, or off");
      return parsed.status();
    }));
    if (o.no_taskd) o.manager = "off";
    status.Update(With("marks", [&](const GivenOption& g) {
      if (!ParseKinds(g.value).ok()) return WrongOption(g, kSwitchKindsRule);
      o.marks = g.value;
      if (!o.manager.empty()) {
        o.warnings.push_back(absl::StrCat(g.label, ": the manager is not this launcher's; use taskd switch"));
      }
      return absl::OkStatus();
    }));
    status.Update(With("ledger", [&](const GivenOption& g) {
      std::error_code error;
      if (!g.value.empty()) o.ledger = std::filesystem::absolute(g.value, error).string();
      if (error) return WrongOption(g, "a folder");
      if (!o.manager.empty()) {
        o.warnings.push_back(absl::StrCat(g.label, ": the manager is not this launcher's, and keeps its own"));
      }
      return absl::OkStatus();
    }));
    status.Update(OnSlow());
    return status;
  }

  absl::Status OnSlow() {
    RunOptions& o = options_;
    for (const auto& [option, text] :
         {std::pair("on-slow", &o.on_slow.on_slow), std::pair("on-slow-when", &o.on_slow.on_slow_when),
          std::pair("remaining", &o.on_slow.remaining), std::pair("evictions", &o.on_slow.evictions),
          std::pair("order-to", &o.on_slow.order_to)}) {
      absl::Status read = With(option, [&](const GivenOption& g) {
        *text = g.value;
        if (!o.manager.empty()) {
          o.warnings.push_back(absl::StrCat(g.label, ": the manager is not this launcher's, and has its own"));
        }
        return absl::OkStatus();
      });
      if (!read.ok()) return read;
    }
    const absl::StatusOr<policy::Options> read = policy::ReadOptions(o.on_slow);
    if (!read.ok()) return read.status();
    // The manager starts on node 0.
    if (!o.manager.empty() || o.node_rank != 0) return absl::OkStatus();
    const bool knows_clusterd =
        !ValueOf(environment_, "TASKD_CLUSTERD").empty() || !ValueOf(environment_, "MINDX_SERVER_IP").empty();
    return CheckOrderTo(read->order_to, environment_, knows_clusterd);
  }

  absl::Status Program() {
    RunOptions& o = options_;
    std::vector<std::string> rest = words_.rest();
    if (rest.empty() || rest[0].empty()) {
      return absl::InvalidArgumentError("SCRIPT is missing: name the script, module (-m) or command to run");
    }
    o.program = rest[0];
    o.arguments.assign(rest.begin() + 1, rest.end());
    o.run_path = words_.Flag("run-path");
    o.module = !o.run_path && words_.Flag("module");
    o.no_python = !o.run_path && words_.Flag("no-python");
    if (o.module && o.no_python) {
      return absl::InvalidArgumentError("--module and --no-python: only one of them can be asked");
    }
    const bool script = o.module || o.run_path || absl::EndsWith(o.program, ".py");
    if (words_.separated() && !script) o.no_python = true;
    return absl::OkStatus();
  }

  const OptionWords& words_;
  const std::map<std::string, std::string>& environment_;
  RunOptions options_;
};

}  // namespace

absl::StatusOr<RunOptions> ParseRunOptions(const std::vector<std::string>& arguments,
                                           const std::map<std::string, std::string>& environment, std::string* help,
                                           const engine::EngineMachine& machine) {
  help->clear();
  OptionWords words(kRunOptionTable, arguments);
  if (absl::Status status = words.Read(); !status.ok()) return status;
  if (words.help()) {
    *help = kRunHelp;
    return RunOptions();
  }
  if (absl::Status status = words.ReadEnvironment(environment); !status.ok()) return status;
  RunOptions placed;
  if (absl::Status status = PlaceWords(environment, machine, &words, &placed); !status.ok()) return status;
  return Interpreter(words, environment, std::move(placed)).Run();
}

namespace {

// As --nnodes has them.
std::string Nodes(const RunOptions& options) {
  return options.min_nodes == options.max_nodes ? absl::StrCat(options.max_nodes)
                                                : absl::StrCat(options.min_nodes, ":", options.max_nodes);
}

}  // namespace

std::string PlacementLine(const RunOptions& options, int master_port) {
  if (options.task) {
    const int nodes = options.task->nodes;
    return absl::StrCat("under ", options.placed_by, ": ", options.max_nodes,
                        options.max_nodes == 1 ? " rank" : " ranks",
                        nodes == 0 ? "" : absl::StrCat(" on ", nodes, nodes == 1 ? " node" : " nodes"), ", rank by ",
                        options.node_rank_by, ", master ", FormatHostPort({options.master_addr, master_port}));
  }
  const std::string nodes = Nodes(options);
  return absl::StrCat("under ", options.placed_by, ": ", nodes, nodes == "1" ? " node" : " nodes",
                      options.node_rank_by.empty() ? "" : absl::StrCat(", node rank by ", options.node_rank_by),
                      ", master ", FormatHostPort({options.master_addr, master_port}));
}

std::string DryRunText(const RunOptions& options) {
  std::string text = options.placed_by.empty() ? "" : PlacementLine(options, options.master_port) + "\n";
  const std::string nodes = Nodes(options);
  absl::StrAppend(&text, "nnodes: ", nodes, "\nnproc-per-node: ", options.procs_per_node);
  if (options.rdzv_backend != "c10d") absl::StrAppend(&text, "\nnode-rank: ", options.node_rank);
  absl::StrAppend(&text, "\nrdzv-backend: ", options.rdzv_backend, "\nrdzv-endpoint: ", options.rdzv_endpoint);
  if (options.master_ports > 1) {
    absl::StrAppend(&text, " (or the first free port up to ", options.master_port + options.master_ports - 1, ")");
  }
  absl::StrAppend(&text, "\nrdzv-id: ", options.rdzv_id, "\nshutdown-timeout: ", options.shutdown_timeout_s);
  if (!options.job.empty()) absl::StrAppend(&text, "\njob: ", options.job);
  if (!options.task_id.empty()) absl::StrAppend(&text, "\ntask-id: ", options.task_id);
  absl::StrAppend(&text, "\nprogram: ", options.program);
  for (const std::string& argument : options.arguments) absl::StrAppend(&text, " ", argument);
  return text + "\n";
}

}  // namespace taskd::run
