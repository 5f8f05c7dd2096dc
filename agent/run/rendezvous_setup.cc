#include "agent/run/rendezvous_setup.h"

#include <unistd.h>

#include <algorithm>
#include <initializer_list>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"

namespace taskd::run {
namespace {

constexpr double kNsPerS = 1e9;
constexpr double kNodeTimeoutS = 60;
// torchrun's for nodes that come and go: three keep-alives of 5 s.
constexpr double kKeepAliveS = 5;
constexpr double kKeepAlives = 3;
constexpr double kStopMarginS = 60;  // beyond the shutdown time-out, for ranks that SIGKILL does not end at once

// A number of --rdzv-conf; the first of `names` that is there.
double ConfNumber(const RunOptions& options, std::initializer_list<const char*> names, double otherwise) {
  for (const char* name : names) {
    auto found = options.rdzv_conf.find(name);
    double value = 0;
    if (found != options.rdzv_conf.end() && absl::SimpleAtod(found->second, &value) && value >= 0) {
      return std::min(value, 1e8);
    }
  }
  return otherwise;
}

bool IsElastic(const RunOptions& options) { return options.max_nodes > options.min_nodes; }

double NodeTimeoutS(const RunOptions& options) {
  if (options.node_timeout_s > 0) return options.node_timeout_s;
  const auto& conf = options.rdzv_conf;
  const bool given = conf.count("keep_alive_interval") + conf.count("keep_alive_max_attempt") > 0;
  if (!given && !IsElastic(options)) return kNodeTimeoutS;
  return std::clamp(ConfNumber(options, {"keep_alive_interval"}, kKeepAliveS) *
                        ConfNumber(options, {"keep_alive_max_attempt"}, kKeepAlives),
                    kLeastNodeTimeoutS, kMostNodeTimeoutS);
}

}  // namespace

bool HasNodeRanks(const RunOptions& options) {
  if (options.standalone || options.rdzv_backend == "c10d") return false;
  return !IsElastic(options) || options.node_rank_given;
}

std::optional<bool> HostsStore(const RunOptions& options) {
  if (options.standalone) return true;
  if (HasNodeRanks(options)) return options.node_rank == 0;
  auto is_host = options.rdzv_conf.find("is_host");
  if (is_host == options.rdzv_conf.end()) return std::nullopt;
  const std::string value = absl::AsciiStrToLower(is_host->second);
  return value == "true" || value == "1" || value == "yes" || value == "t" || value == "y";
}

Rendezvous::Options RendezvousOptions(const RunOptions& options, const std::string& manager) {
  Rendezvous::Options result;
  result.run_id = options.rdzv_id;
  result.version = TASKD_VERSION;
  result.manager = manager;
  result.min_nodes = options.min_nodes;
  result.max_nodes = options.max_nodes;
  result.fixed_ranks = HasNodeRanks(options);
  result.tasks = options.task.has_value();
  result.max_restarts = options.max_restarts;
  result.fan_out = options.tiered ? options.store_fan_out : 0;
  auto ns = [](double seconds) { return static_cast<int64_t>(seconds * kNsPerS); };
  result.join_timeout_ns =
      ns(ConfNumber(options, {"join_timeout", "timeout"}, options.rdzv_backend == "c10d" ? 600 : 900));
  result.last_call_ns = ns(ConfNumber(options, {"last_call_timeout"}, 30));
  result.silence_ns = ns(NodeTimeoutS(options));
  result.stop_timeout_ns = ns(options.shutdown_timeout_s + kStopMarginS);
  return result;
}

NodeInfo DescribeNode(const RunOptions& options, const std::string& host) {
  NodeInfo info;
  info.run_id = options.rdzv_id;
  info.version = TASKD_VERSION;
  info.host = host;
  info.pid = getpid();
  info.node_rank = HasNodeRanks(options) ? options.node_rank : -1;
  info.local_world_size = options.procs_per_node;
  info.role = options.role;
  info.min_nodes = options.min_nodes;
  info.max_nodes = options.max_nodes;
  info.max_restarts = options.max_restarts;
  return info;
}

}  // namespace taskd::run
