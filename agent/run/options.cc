#include "agent/run/options.h"

#include <arpa/inet.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cmath>
#include <csignal>
#include <cstring>
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
#include "agent/run/options_help.h"
#include "common/address.h"

namespace taskd {
namespace {

constexpr int kMaxNodes = 65536;
constexpr int kMaxProcsPerNode = 4096;
constexpr int kC10dPort = 29400;
constexpr int kMaxPort = 65535;

enum class Kind { kValue, kFlag, kSwitch };  // kSwitch: `--x`, `--x=true` and `--x true` are all the same

struct Option {
  std::string_view name;
  char letter;
  Kind kind;
};

constexpr Option kOptions[] = {
    {"nnodes", 0, Kind::kValue},
    {"nproc-per-node", 0, Kind::kValue},
    {"node-rank", 0, Kind::kValue},
    {"rdzv-backend", 0, Kind::kValue},
    {"rdzv-endpoint", 0, Kind::kValue},
    {"rdzv-id", 0, Kind::kValue},
    {"rdzv-conf", 0, Kind::kValue},
    {"standalone", 0, Kind::kFlag},
    {"master-addr", 0, Kind::kValue},
    {"master-port", 0, Kind::kValue},
    {"local-addr", 0, Kind::kValue},
    {"max-restarts", 0, Kind::kValue},
    {"monitor-interval", 0, Kind::kValue},
    {"start-method", 0, Kind::kValue},
    {"event-log-handler", 0, Kind::kValue},
    {"role", 0, Kind::kValue},
    {"module", 'm', Kind::kFlag},
    {"no-python", 0, Kind::kFlag},
    {"run-path", 0, Kind::kFlag},
    {"log-dir", 0, Kind::kValue},
    {"redirects", 'r', Kind::kValue},
    {"tee", 't', Kind::kValue},
    {"local-ranks-filter", 0, Kind::kValue},
    {"duplicate-stdout-filters", 0, Kind::kValue},
    {"duplicate-stderr-filters", 0, Kind::kValue},
    {"logs-specs", 0, Kind::kValue},
    {"numa-binding", 0, Kind::kValue},
    {"signals-to-handle", 0, Kind::kValue},
    {"shutdown-timeout", 0, Kind::kValue},
    {"virtual-local-rank", 0, Kind::kFlag},
    {"enable-tiered-parallel-tcpstore", 0, Kind::kSwitch},
    {"store-fan-out", 0, Kind::kValue},
    {"manager", 0, Kind::kValue},
    {"no-taskd", 0, Kind::kFlag},
    {"hang-action", 0, Kind::kValue},
    {"hang-factor", 0, Kind::kValue},
};

// What was given, and by what: "--nnodes" or "PET_NNODES".
struct Given {
  std::string label;
  std::string value;
  bool on_command_line = false;
};

absl::Status Wrong(const Given& given, std::string_view rule) {
  return absl::InvalidArgumentError(absl::StrCat(given.label, " '", given.value, "': ", std::string(rule)));
}

std::optional<bool> AsBool(std::string_view text) {
  const std::string lower = absl::AsciiStrToLower(std::string(text));
  if (lower == "1" || lower == "true") return true;
  if (lower == "0" || lower == "false") return false;
  return std::nullopt;
}

std::string EnvironmentName(std::string_view prefix, std::string_view option) {
  std::string name(prefix);
  for (char c : option) name += c == '-' ? '_' : absl::ascii_toupper(c);
  return name;
}

// The words of the command line before the program, sorted by option; then what the environment adds.
class Words {
 public:
  explicit Words(const std::vector<std::string>& words) : words_(words) {}

  absl::Status Read() {
    while (next_ < words_.size()) {
      const std::string& word = words_[next_];
      if (word == "--") {
        separated_ = true;
        ++next_;
        break;
      }
      if (word.size() < 2 || word[0] != '-') break;
      ++next_;
      absl::Status status = word[1] == '-' ? ReadLong(word) : ReadShort(word);
      if (!status.ok() || help_) return status;
    }
    return absl::OkStatus();
  }

  absl::Status ReadEnvironment(const std::map<std::string, std::string>& environment) {
    for (const Option& option : kOptions) {
      if (given_.contains(option.name)) continue;
      for (std::string_view prefix : {"PET_", "TASKD_"}) {
        const std::string name = EnvironmentName(prefix, option.name);
        auto found = environment.find(name);
        if (found == environment.end() || found->second.empty()) continue;
        Given given{name, found->second};
        if (option.kind != Kind::kValue) {
          const std::optional<bool> on = AsBool(found->second);
          if (!on) return Wrong(given, "1, 0, true or false");
          given.value = *on ? "true" : "false";
        }
        given_[option.name] = std::move(given);
        break;
      }
    }
    return absl::OkStatus();
  }

  bool help() const { return help_; }
  bool separated() const { return separated_; }
  std::vector<std::string> rest() const { return {words_.begin() + static_cast<ptrdiff_t>(next_), words_.end()}; }
  // nullptr: neither on the command line nor in the environment.
  const Given* Find(std::string_view option) const {
    auto found = given_.find(option);
    return found == given_.end() ? nullptr : &found->second;
  }
  bool Flag(std::string_view option) const {
    const Given* given = Find(option);
    return given != nullptr && given->value == "true";
  }

 private:
  absl::Status ReadLong(const std::string& word) {
    const size_t equals = word.find('=');
    const std::string label = word.substr(0, equals);
    std::string name = label.substr(2);
    std::replace(name.begin(), name.end(), '_', '-');
    if (name == "help" && equals == std::string::npos) {
      help_ = true;
      return absl::OkStatus();
    }
    const Option* option = nullptr;
    std::vector<std::string> candidates;  // as argparse does: a beginning that fits one option only
    for (const Option& known : kOptions) {
      if (known.name == name) {
        option = &known;
        candidates.clear();
        break;
      }
      if (known.name.substr(0, name.size()) != name) continue;
      option = &known;
      candidates.push_back(absl::StrCat("--", std::string(known.name)));
    }
    if (option == nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat("unknown option '", label, "' (see taskd run --help; options of the script go after its name)"));
    }
    if (candidates.size() > 1) {
      return absl::InvalidArgumentError(
          absl::StrCat("option '", label, "' is ambiguous: ", absl::StrJoin(candidates, ", ")));
    }
    std::optional<std::string> value;
    if (equals != std::string::npos) value = word.substr(equals + 1);
    return Take(*option, label, std::move(value));
  }

  // -r 3, -r3, -r=3, and flags before it: -mr3
  absl::Status ReadShort(const std::string& word) {
    for (size_t i = 1; i < word.size(); ++i) {
      if (word == "-h") {
        help_ = true;
        return absl::OkStatus();
      }
      const Option* option = std::find_if(std::begin(kOptions), std::end(kOptions),
                                          [&](const Option& known) { return known.letter == word[i]; });
      if (option == std::end(kOptions)) return absl::InvalidArgumentError(absl::StrCat("unknown option '", word, "'"));
      const std::string label{'-', word[i]};
      if (option->kind == Kind::kValue) {
        std::optional<std::string> value;
        if (i + 1 < word.size()) value = word.substr(i + (word[i + 1] == '=' ? 2 : 1));
        return Take(*option, label, std::move(value));
      }
      if (absl::Status status = Take(*option, label, std::nullopt); !status.ok()) return status;
    }
    return absl::OkStatus();
  }

  absl::Status Take(const Option& option, const std::string& label, std::optional<std::string> value) {
    Given given{label, "true", true};
    const bool more = next_ < words_.size();
    switch (option.kind) {
      case Kind::kFlag:
        if (value) return absl::InvalidArgumentError(absl::StrCat(label, " '", *value, "': it takes no value"));
        break;
      case Kind::kSwitch: {
        if (!value && more) {
          const std::string lower = absl::AsciiStrToLower(words_[next_]);
          if (lower == "true" || lower == "false") value = words_[next_++];
        }
        if (!value) break;
        given.value = *value;
        const std::optional<bool> on = AsBool(*value);
        if (!on) return Wrong(given, "true or false");
        given.value = *on ? "true" : "false";
        break;
      }
      case Kind::kValue:
        if (!value) {
          // What begins like an option is a forgotten value, but for negative numbers, which have a better message.
          const bool is_option = more && words_[next_].size() > 1 && words_[next_][0] == '-' &&
                                 !absl::ascii_isdigit(static_cast<unsigned char>(words_[next_][1]));
          if (!more) return absl::InvalidArgumentError(absl::StrCat(label, ": a value is missing"));
          if (is_option) {
            return absl::InvalidArgumentError(absl::StrCat(label, ": a value is missing before '", words_[next_], "' (",
                                                           label, "=VALUE if it is one)"));
          }
          value = words_[next_++];
        }
        given.value = *std::move(value);
        break;
    }
    given_[option.name] = std::move(given);
    return absl::OkStatus();
  }

  const std::vector<std::string>& words_;
  size_t next_ = 0;
  bool help_ = false;
  bool separated_ = false;
  std::map<std::string_view, Given> given_;
};

absl::Status ReadInt(const Given& given, int least, int most, int* result) {
  int value = 0;
  if (!absl::SimpleAtoi(given.value, &value) || value < least || value > most) {
    return Wrong(given, most == INT_MAX ? absl::StrCat("an integer of at least ", least)
                                        : absl::StrCat("an integer from ", least, " to ", most));
  }
  *result = value;
  return absl::OkStatus();
}

absl::Status ReadSeconds(const Given& given, double* result) {
  double value = 0;
  if (!absl::SimpleAtod(given.value, &value) || !std::isfinite(value) || value < 0 || value > 1e9) {
    return Wrong(given, "seconds, a number of at least 0");
  }
  *result = value;
  return absl::OkStatus();
}

absl::Status ReadNodes(const Given& given, RunOptions* options) {
  const std::vector<std::string> parts = absl::StrSplit(given.value, ':');
  int least = 0, most = 0;
  if (parts.size() > 2 || !absl::SimpleAtoi(parts[0], &least) || !absl::SimpleAtoi(parts.back(), &most) || least < 1 ||
      least > most || most > kMaxNodes) {
    return Wrong(given, absl::StrCat("N or MIN:MAX with 1 <= MIN <= MAX <= ", kMaxNodes));
  }
  options->min_nodes = least;
  options->max_nodes = most;
  return absl::OkStatus();
}

absl::Status ReadProcsPerNode(const Given& given, const std::map<std::string, std::string>& environment,
                              int* procs_per_node) {
  const auto cpus = std::clamp(static_cast<int>(::sysconf(_SC_NPROCESSORS_ONLN)), 1, kMaxProcsPerNode);
  if (given.value == "cpu") {
    *procs_per_node = cpus;
    return absl::OkStatus();
  }
  if (given.value == "auto" || given.value == "gpu" || given.value == "npu") {
    const int devices = std::min(CountDevices("/", environment), kMaxProcsPerNode);
    if (devices == 0 && given.value != "auto") {
      return Wrong(given,
                   "this node has none that may be seen (/dev/nvidia<N>, /proc/driver/nvidia/gpus, /dev/davinci<N>)");
    }
    *procs_per_node = devices > 0 ? devices : cpus;
    return absl::OkStatus();
  }
  int value = 0;
  if (!absl::SimpleAtoi(given.value, &value) || value < 1 || value > kMaxProcsPerNode) {
    return Wrong(given, absl::StrCat("an integer from 1 to ", kMaxProcsPerNode, ", auto, cpu, gpu or npu"));
  }
  *procs_per_node = value;
  return absl::OkStatus();
}

absl::Status ReadStreams(const Given& given, StreamChoice* choice) {
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
        return Wrong(given, kRule);
      }
      result.by_local_rank[rank] = streams;
    }
  }
  *choice = std::move(result);
  return absl::OkStatus();
}

absl::Status ReadRanks(const Given& given, std::vector<int>* ranks) {
  ranks->clear();
  if (given.value.empty()) return absl::OkStatus();
  for (absl::string_view item : absl::StrSplit(given.value, ',')) {
    int rank = -1;
    if (!absl::SimpleAtoi(item, &rank) || rank < 0) return Wrong(given, "local ranks, as 0,3");
    ranks->push_back(rank);
  }
  return absl::OkStatus();
}

absl::Status ReadSignals(const Given& given, std::vector<int>* signals) {
  signals->clear();
  for (absl::string_view item : absl::StrSplit(given.value, ',')) {
    const std::string name = std::string(absl::StripPrefix(absl::StripAsciiWhitespace(item), "SIG"));
    int number = 0;
    for (int signal = 1; signal < SIGRTMIN && number == 0; ++signal) {
      const char* known = ::sigabbrev_np(signal);
      if (known != nullptr && name == known) number = signal;
    }
    if (number == 0) return Wrong(given, "names of signals, as SIGTERM,SIGUSR1");
    if (number == SIGKILL || number == SIGSTOP || number == SIGCHLD) {
      return Wrong(given, absl::StrCat("SIG", name, " cannot be handled"));
    }
    if (std::find(signals->begin(), signals->end(), number) == signals->end()) signals->push_back(number);
  }
  return absl::OkStatus();
}

absl::Status ReadRdzvConf(const Given& given, RunOptions* options) {
  if (absl::StripAsciiWhitespace(given.value).empty()) return absl::OkStatus();
  for (absl::string_view item : absl::StrSplit(given.value, ',')) {
    const std::vector<std::string> parts = absl::StrSplit(item, absl::MaxSplits('=', 1));
    const std::string key(absl::StripAsciiWhitespace(parts[0]));
    const std::string value(absl::StripAsciiWhitespace(parts.back()));
    if (parts.size() != 2 || key.empty() || value.empty()) {
      return Wrong(given, "KEY=VALUE,KEY=VALUE");
    }
    const Given named{absl::StrCat(given.label, " ", key), value};
    if (key == "is_host") {
      const std::string lower = absl::AsciiStrToLower(value);
      const bool known = AsBool(value).has_value() || lower == "t" || lower == "yes" || lower == "y" || lower == "f" ||
                         lower == "no" || lower == "n";
      if (!known) return Wrong(named, "true or false");
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
absl::Status ReadHost(const Given& given, std::string* host) {
  const std::string name = WithoutBrackets(given.value);
  const bool bad = name.find_first_of(" \t\n[]/") != std::string::npos;
  if (name.empty() || bad || (name.find(':') != std::string::npos && !IsIpv6(name))) {
    return Wrong(given, "a host's name or address without a port");
  }
  *host = name;
  return absl::OkStatus();
}

absl::Status ReadEndpoint(const Given& given, int default_port, HostPort* endpoint) {
  const bool host_only = given.value.find(':') == std::string::npos || given.value.back() == ']' || IsIpv6(given.value);
  if (host_only) {
    Given host = given;
    if (!ReadHost(host, &endpoint->host).ok()) return Wrong(given, "HOST or HOST:PORT, IPv6 as [::1]:29500");
    endpoint->port = default_port;
    return absl::OkStatus();
  }
  absl::StatusOr<HostPort> parsed = ParseHostPort(given.label, given.value);
  if (!parsed.ok()) return parsed.status();
  if (parsed->host.find_first_of(" \t\n[]/") != std::string::npos) return Wrong(given, "HOST or HOST:PORT");
  *endpoint = *parsed;
  return absl::OkStatus();
}

absl::Status ReadChoice(const Given& given, std::initializer_list<std::string_view> choices, std::string* result) {
  for (std::string_view choice : choices) {
    if (given.value != choice) continue;
    *result = given.value;
    return absl::OkStatus();
  }
  const std::vector<std::string> names(choices.begin(), choices.end());
  return Wrong(given, absl::StrCat("one of ", absl::StrJoin(names, ", ")));
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
  Interpreter(const Words& words, const std::map<std::string, std::string>& environment)
      : words_(words), environment_(environment) {}

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
    const Given* given = words_.Find(option);
    return given == nullptr ? absl::OkStatus() : reader(*given);
  }
  void Warn(std::string text) { options_.warnings.push_back(std::move(text)); }

  absl::Status Size() {
    options_.standalone = words_.Flag("standalone");
    absl::Status status = With("nnodes", [&](const Given& g) { return ReadNodes(g, &options_); });
    status.Update(With("nproc-per-node",
                       [&](const Given& g) { return ReadProcsPerNode(g, environment_, &options_.procs_per_node); }));
    if (!status.ok()) return status;
    if (options_.standalone) {
      if (options_.min_nodes > 1) return Wrong(*words_.Find("nnodes"), "--standalone is for one node");
      options_.max_nodes = 1;
    }
    return status;
  }

  absl::Status Rendezvous() {
    RunOptions& o = options_;
    absl::Status status = With("rdzv-backend", [&](const Given& g) {
      return ReadChoice(g, {"static", "c10d", "parallel"}, &o.rdzv_backend);
    });
    status.Update(With("rdzv-id", [&](const Given& g) {
      o.rdzv_id = g.value;
      return g.value.empty() ? Wrong(g, "not empty") : absl::OkStatus();
    }));
    status.Update(With("rdzv-conf", [&](const Given& g) { return ReadRdzvConf(g, &o); }));
    status.Update(With("master-addr", [&](const Given& g) { return ReadHost(g, &o.master_addr); }));
    status.Update(With("master-port", [&](const Given& g) { return ReadInt(g, 0, kMaxPort, &o.master_port); }));
    status.Update(With(
        "local-addr", [&](const Given& g) { return g.value.empty() ? absl::OkStatus() : ReadHost(g, &o.local_addr); }));
    status.Update(With("node-rank", [&](const Given& g) {
      o.node_rank_given = true;
      return ReadInt(g, 0, kMaxNodes - 1, &o.node_rank);
    }));
    if (!status.ok()) return status;
    if (o.standalone) {
      o.rdzv_backend = "c10d";
      o.rdzv_id = RandomId();
      o.rdzv_endpoint = "localhost:0";
      o.node_rank = 0;
      return status;
    }
    const Given* given = words_.Find("rdzv-endpoint");
    if (given != nullptr && given->value.empty()) given = nullptr;
    if (o.rdzv_backend == "c10d") {
      HostPort endpoint{"localhost", kC10dPort};
      if (given != nullptr) status.Update(ReadEndpoint(*given, kC10dPort, &endpoint));
      o.rdzv_endpoint = FormatHostPort(endpoint);
      for (const char* option : {"master-addr", "master-port"}) {
        const Given* unused = words_.Find(option);
        if (unused == nullptr || !unused->on_command_line) continue;
        Warn(absl::StrCat("--", option, " has no effect with --rdzv-backend c10d; --rdzv-endpoint names the host"));
      }
      return status;
    }
    if (o.node_rank >= o.max_nodes) {
      return Wrong(*words_.Find("node-rank"), absl::StrCat("must be below --nnodes ", o.max_nodes));
    }
    HostPort endpoint{o.master_addr, o.master_port};
    if (given != nullptr) {
      status.Update(ReadEndpoint(*given, o.master_port, &endpoint));
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
    return status;
  }

  absl::Status Supervision() {
    RunOptions& o = options_;
    absl::Status status = With("max-restarts", [&](const Given& g) { return ReadInt(g, 0, INT_MAX, &o.max_restarts); });
    status.Update(With("monitor-interval", [&](const Given& g) { return ReadSeconds(g, &o.monitor_interval_s); }));
    std::string start_method;
    status.Update(With("start-method", [&](const Given& g) {
      return ReadChoice(g, {"spawn", "fork", "forkserver"}, &start_method);
    }));
    o.signals_to_handle = {SIGTERM, SIGINT, SIGHUP, SIGQUIT};
    status.Update(With("signals-to-handle", [&](const Given& g) { return ReadSignals(g, &o.signals_to_handle); }));
    if (const Given* given = words_.Find("shutdown-timeout"); given != nullptr) {
      status.Update(ReadSeconds(*given, &o.shutdown_timeout_s));
    } else if (auto found = environment_.find("TORCH_ELASTIC_SHUTDOWN_TIMEOUT");
               found != environment_.end() && !found->second.empty()) {
      status.Update(ReadSeconds({found->first, found->second}, &o.shutdown_timeout_s));
    }
    std::string numa_binding;
    status.Update(With("numa-binding", [&](const Given& g) {
      return ReadChoice(g, {"node", "socket", "exclusive", "core-complex"}, &numa_binding);
    }));
    if (!numa_binding.empty()) Warn("--numa-binding has no effect: ranks are not bound to CPUs");
    o.virtual_local_rank = words_.Flag("virtual-local-rank");
    return status;
  }

  absl::Status Output() {
    RunOptions& o = options_;
    absl::Status status = With("role", [&](const Given& g) {
      o.role = g.value;
      return absl::OkStatus();
    });
    status.Update(With("log-dir", [&](const Given& g) {
      o.log_dir = g.value;
      return absl::OkStatus();
    }));
    status.Update(With("redirects", [&](const Given& g) { return ReadStreams(g, &o.redirects); }));
    status.Update(With("tee", [&](const Given& g) { return ReadStreams(g, &o.tee); }));
    status.Update(With("local-ranks-filter", [&](const Given& g) { return ReadRanks(g, &o.local_ranks_filter); }));
    for (const char* option : {"duplicate-stdout-filters", "duplicate-stderr-filters", "logs-specs"}) {
      const Given* given = words_.Find(option);
      if (given != nullptr && !given->value.empty() && given->value != "default") {
        Warn(absl::StrCat("--", option, " has no effect"));
      }
    }
    if (const Given* given = words_.Find("event-log-handler"); given != nullptr && given->value != "null") {
      Warn("--event-log-handler has no effect: events go to the log");
    }
    return status;
  }

  absl::Status Ours() {
    RunOptions& o = options_;
    o.tiered = words_.Flag("enable-tiered-parallel-tcpstore");
    absl::Status status = With("store-fan-out", [&](const Given& g) {
      absl::Status read = ReadInt(g, 0, INT_MAX, &o.store_fan_out);
      return read.ok() && o.store_fan_out != 1 ? read : Wrong(g, "0 (one level), or an integer of at least 2");
    });
    status.Update(With("hang-action", [&](const Given& g) {
      return ReadChoice(g, {"report", "restart", "stop"}, &o.hang_action);
    }));
    status.Update(With("hang-factor", [&](const Given& g) {
      double value = 0;
      if (!absl::SimpleAtod(g.value, &value) || !std::isfinite(value) || (value != 0 && value <= 1)) {
        return Wrong(g, "0 (never), or a number above 1");
      }
      o.hang_factor = value;
      return absl::OkStatus();
    }));
    o.no_taskd = words_.Flag("no-taskd");
    status.Update(With("manager", [&](const Given& g) {
      o.manager = g.value;
      if (g.value.empty() || g.value == "off") return absl::OkStatus();
      absl::StatusOr<HostPort> parsed = ParseHostPort(g.label, g.value);
      if (parsed.ok() && parsed->port == 0) return Wrong(g, "HOST:PORT of a manager that runs, or off");
      return parsed.status();
    }));
    if (o.no_taskd) o.manager = "off";
    return status;
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

  const Words& words_;
  const std::map<std::string, std::string>& environment_;
  RunOptions options_;
};

}  // namespace

absl::StatusOr<RunOptions> ParseRunOptions(const std::vector<std::string>& arguments,
                                           const std::map<std::string, std::string>& environment, std::string* help) {
  help->clear();
  Words words(arguments);
  if (absl::Status status = words.Read(); !status.ok()) return status;
  if (words.help()) {
    *help = kRunHelp;
    return RunOptions();
  }
  if (absl::Status status = words.ReadEnvironment(environment); !status.ok()) return status;
  return Interpreter(words, environment).Run();
}

}  // namespace taskd
