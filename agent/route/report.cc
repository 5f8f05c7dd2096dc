#include "agent/route/report.h"

#include <openssl/evp.h>

#include <memory>

#include "fmt/format.h"
#include "nlohmann/json.hpp"

namespace taskd::route {
namespace {

using Json = nlohmann::ordered_json;

std::string Dump(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

Json CostJson(const Cost& cost) {
  return {{"cross_tor_flows", cost.cross_tor_flows},
          {"max_link_flows", cost.max_link_flows},
          {"total_hops", cost.total_hops}};
}

Json AlgorithmsJson(const AlgorithmCosts& costs) {
  return {
      {"double_tree",
       {{"cross_tor_flows", costs.double_tree.cross_tor_flows}, {"max_link_flows", costs.double_tree.max_link_flows}}},
      {"halving_doubling_volume", costs.halving_doubling_volume}};
}

std::string_view OutcomeName(RoutePlan::Outcome outcome) {
  switch (outcome) {
    case RoutePlan::Outcome::kPlanned:
      return "planned";
    case RoutePlan::Outcome::kIdentity:
      return "identity";
    case RoutePlan::Outcome::kSkipped:
      break;
  }
  return "skipped";
}

const std::string& HostOf(const RouteNode& node) { return node.pod_name.empty() ? node.server_id : node.pod_name; }

}  // namespace

std::string PlanDigest(absl::Span<const RouteNode> nodes, const RoutePlan& plan) {
  const std::unique_ptr<EVP_MD_CTX, void (*)(EVP_MD_CTX*)> context(EVP_MD_CTX_new(), EVP_MD_CTX_free);
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned int size = 0;
  bool good = context != nullptr && EVP_DigestInit_ex(context.get(), EVP_sha256(), nullptr) == 1;
  for (const int32_t index : plan.by_new_rank) {
    const std::string line = nodes[index].server_id + "\n";
    good = good && EVP_DigestUpdate(context.get(), line.data(), line.size()) == 1;
  }
  good = good && EVP_DigestFinal_ex(context.get(), digest, &size) == 1;
  std::string hex;
  for (unsigned int i = 0; good && i < size; ++i) hex += fmt::format("{:02x}", digest[i]);
  return hex;
}

std::string PlanJson(absl::Span<const RouteNode> nodes, const RoutePlan& plan, const AlgorithmReport* algorithms) {
  Json json;
  json["status"] = OutcomeName(plan.outcome);
  json["reason"] = plan.reason;
  json["nodes"] = nodes.size();
  json["tors"] = plan.tors;
  json["moved"] = plan.moved;
  json["unknown"] = Json::array();
  for (const int32_t index : plan.unknown) json["unknown"].push_back(nodes[index].server_id);
  json["ignored"] = plan.ignored;
  json["master_index"] = plan.master_index;
  json["digest"] = PlanDigest(nodes, plan);
  json["cost"] = {{"before", CostJson(plan.before)}, {"after", CostJson(plan.after)}, {"bound", CostJson(plan.bound)}};
  if (algorithms != nullptr) {
    json["algorithms"] = {{"before", AlgorithmsJson(algorithms->before)},
                          {"after", AlgorithmsJson(algorithms->after)},
                          {"double_tree_bound", algorithms->double_tree_bound}};
  }
  std::string text = Dump(json);
  // The mapping is by far the longest part: written as text, it needs no tree of its own in memory.
  text.back() = ',';
  text += "\"mapping\":[";
  for (size_t rank = 0; rank < plan.by_new_rank.size(); ++rank) {
    const int32_t index = plan.by_new_rank[rank];
    fmt::format_to(std::back_inserter(text), R"({}{{"node":{},"pod_index":{},"old_rank":{},"new_rank":{}}})",
                   rank > 0 ? "," : "", Dump(Json(nodes[index].server_id)), plan.pod_index[index], plan.old_rank[index],
                   rank);
  }
  return text + "]}";
}

std::string FailedJson(std::string_view reason) {
  Json json;
  json["status"] = "failed";
  json["reason"] = reason;
  return Dump(json);
}

std::string RankAfterAcc(const RoutePlan& plan, int32_t self) {
  for (size_t rank = 0; rank < plan.by_new_rank.size(); ++rank) {
    if (plan.by_new_rank[rank] == self) return fmt::format("{}\n", rank);
  }
  return {};
}

std::string MasterIndex(const RoutePlan& plan) { return fmt::format("{}\n", plan.master_index); }

std::string RankMapping(const RoutePlan& plan) {
  std::string text;
  for (size_t rank = 0; rank < plan.by_new_rank.size(); ++rank) {
    fmt::format_to(std::back_inserter(text), "{}{}-{}", rank > 0 ? "," : "", rank,
                   plan.pod_index[plan.by_new_rank[rank]]);
  }
  return text;
}

std::string Hostfile(absl::Span<const RouteNode> nodes, const RoutePlan& plan) {
  std::string text;
  for (const int32_t index : plan.by_new_rank) {
    fmt::format_to(std::back_inserter(text), "{} slots={}\n", HostOf(nodes[index]), nodes[index].device_ranks.size());
  }
  return text;
}

std::string Rankfile(absl::Span<const RouteNode> nodes, const RoutePlan& plan) {
  std::string text;
  size_t rank = 0;
  for (const int32_t index : plan.by_new_rank) {
    for (size_t slot = 0; slot < nodes[index].device_ranks.size(); ++slot) {
      fmt::format_to(std::back_inserter(text), "rank {}={} slot={}\n", rank++, HostOf(nodes[index]), slot);
    }
  }
  return text;
}

}  // namespace taskd::route
