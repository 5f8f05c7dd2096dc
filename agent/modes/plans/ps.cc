#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "agent/modes/plans/platform_modes.h"
#include "agent/modes/plans/tf_config.h"
#include "fmt/format.h"

namespace taskd::modes {
namespace {

// A node that is ended when all others have ended with 0: a ps never ends by itself. Without ps each node ends by itself.
bool Serves(const std::string& type, bool has_ps) { return has_ps && (type == "ps" || type == "evaluator"); }

// The order of the nodes is that of NODE_LIST with --ps-num, so that both ways to describe a job give the same one.
std::vector<std::string> TypesInOrder(const TfConfig& config) {
  std::vector<std::string> types;
  for (const char* type : {"ps", "worker", "chief"}) {
    if (config.cluster.contains(type)) types.emplace_back(type);
  }
  for (const auto& [type, list] : config.cluster) {
    if (std::find(types.begin(), types.end(), type) == types.end()) types.push_back(type);
  }
  return types;
}

void TakeCluster(const TfConfig& config, ModePlan* plan) {
  plan->index = -1;
  const bool has_ps = config.cluster.contains("ps");
  for (const std::string& type : TypesInOrder(config)) {
    if (type == config.type) plan->index = static_cast<int>(plan->nodes.size()) + config.index;
    for (const HostPort& endpoint : config.cluster.at(type)) {
      plan->nodes.push_back({endpoint.host, 0, Serves(type, has_ps)});
    }
  }
  plan->serves = Serves(config.type, has_ps);
  // An evaluator is no part of the cluster, and a chief need not be.
  if (plan->index < 0) plan->index = static_cast<int>(plan->nodes.size()) + config.index;
}

absl::StatusOr<std::string> TfConfigOfNodeList(const ModeInput& input, ModePlan* plan, Environment* environment) {
  if (absl::Status status = ReadTiOneNodes(input, 0, plan, environment); !status.ok()) return status;
  const int most = static_cast<int>(plan->nodes.size()) - 1;
  const std::optional<int> ps_count = input.options.ps_num;
  const std::string nodes = fmt::format("of the {} of NODE_LIST, at least one is a ps and one a worker", most + 1);
  if (!ps_count) return absl::InvalidArgumentError("--ps-num: it is not set, and neither is TF_CONFIG; " + nodes);
  if (*ps_count < 1 || *ps_count > most) {
    return absl::InvalidArgumentError(fmt::format("--ps-num '{}': it is not from 1 to {}; {}", *ps_count, most, nodes));
  }
  std::vector<std::string> hosts;
  for (int i = 0; i <= most; ++i) {
    hosts.push_back(plan->nodes[i].name);
    plan->nodes[i].serves = i < *ps_count;
  }
  plan->role = plan->index < *ps_count ? "ps" : "worker";
  plan->serves = plan->index < *ps_count;
  return MakeTfConfig(hosts, *ps_count, plan->index);
}

}  // namespace

absl::Status PlanPs(const ModeInput& input, ModePlan* plan) {
  Environment environment;
  std::string text = input.Get("TF_CONFIG");
  if (text.empty()) {
    absl::StatusOr<std::string> made = TfConfigOfNodeList(input, plan, &environment);
    if (!made.ok()) return made.status();
    text = *std::move(made);
  } else {
    const absl::StatusOr<TfConfig> config = ParseTfConfig(text);
    if (!config.ok()) return config.status();
    plan->platform = Platform::kTiOne;
    plan->role = config->type;
    TakeCluster(*config, plan);
    if (input.options.ps_num) plan->warnings.push_back("--ps-num has no effect: TF_CONFIG is set");
  }
  plan->start = StartRule::kAtOnce;
  environment["TF_CONFIG"] = std::move(text);
  plan->processes.push_back({input.options.command, std::move(environment)});
  return absl::OkStatus();
}

}  // namespace taskd::modes
