#include "agent/route/plan_report.h"

#include <openssl/evp.h>

#include <algorithm>
#include <iterator>
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

// SHA-256. Empty if the library fails, which takes a broken installation.
class Digest {
 public:
  void Add(std::string_view text) { good_ = good_ && EVP_DigestUpdate(context_.get(), text.data(), text.size()) == 1; }
  std::string Hex() {
    unsigned char digest[EVP_MAX_MD_SIZE];
    unsigned int size = 0;
    good_ = good_ && EVP_DigestFinal_ex(context_.get(), digest, &size) == 1;
    std::string hex;
    for (unsigned int i = 0; good_ && i < size; ++i) hex += fmt::format("{:02x}", digest[i]);
    return hex;
  }

 private:
  const std::unique_ptr<EVP_MD_CTX, void (*)(EVP_MD_CTX*)> context_{EVP_MD_CTX_new(), EVP_MD_CTX_free};
  bool good_ = context_ != nullptr && EVP_DigestInit_ex(context_.get(), EVP_sha256(), nullptr) == 1;
};

const std::string& HostOf(const RouteNode& node) { return node.pod_name.empty() ? node.server_id : node.pod_name; }

}  // namespace

std::string PlanDigest(absl::Span<const RouteNode> nodes, const RoutePlan& plan) {
  Digest digest;
  for (const int32_t index : plan.by_new_rank) digest.Add(nodes[index].server_id + "\n");
  return digest.Hex();
}

std::string Sha256(std::string_view text) {
  Digest digest;
  digest.Add(text);
  return digest.Hex();
}

std::string PlanJson(absl::Span<const RouteNode> nodes, const RoutePlan& plan, const ReportParts& parts) {
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
  if (const AlgorithmReport* algorithms = parts.algorithms; algorithms != nullptr) {
    json["algorithms"] = {{"before", AlgorithmsJson(algorithms->before)},
                          {"after", AlgorithmsJson(algorithms->after)},
                          {"double_tree_bound", algorithms->double_tree_bound}};
  }
  if (parts.rank_mapping) json["rank_mapping"] = RankMapping(plan);
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

std::string PlanText(absl::Span<const RouteNode> nodes, const RoutePlan& plan, const ReportParts& parts) {
  std::string text =
      fmt::format("{}: {}\n{} nodes below {} ToRs, {} moved; new rank 0 is pod {}\n", OutcomeName(plan.outcome),
                  plan.reason, nodes.size(), plan.tors, plan.moved, plan.master_index);
  const auto out = std::back_inserter(text);
  if (!plan.unknown.empty()) {
    constexpr size_t kShown = 8;
    fmt::format_to(out, "unknown to the topology: {} nodes:", plan.unknown.size());
    for (size_t i = 0; i < std::min(plan.unknown.size(), kShown); ++i) {
      fmt::format_to(out, " {}", Quoted(nodes[plan.unknown[i]].server_id));
    }
    text += plan.unknown.size() > kShown ? " …\n" : "\n";
  }
  if (plan.ignored > 0) fmt::format_to(out, "not in the job: {} nodes of the topology\n", plan.ignored);
  if (plan.tors == 0) return text;  // no topology: no costs
  const auto row = [&](std::string_view name, auto before, auto after, const std::string& bound) {
    fmt::format_to(out, "{:<34}{:>12}{:>12}{:>12}{}\n", name, before, after, bound, after < before ? "" : "  no gain");
  };
  fmt::format_to(out, "{:<34}{:>12}{:>12}{:>12}\n", "", "before", "after", "at least");
  row("ring: flows between ToRs", plan.before.cross_tor_flows, plan.after.cross_tor_flows,
      fmt::format("{}", plan.bound.cross_tor_flows));
  row("ring: flows over the busiest link", plan.before.max_link_flows, plan.after.max_link_flows,
      fmt::format("{}", plan.bound.max_link_flows));
  row("ring: links taken", plan.before.total_hops, plan.after.total_hops, fmt::format("{}", plan.bound.total_hops));
  if (const AlgorithmReport* algorithms = parts.algorithms; algorithms != nullptr) {
    row("double binary tree: between ToRs", algorithms->before.double_tree.cross_tor_flows,
        algorithms->after.double_tree.cross_tor_flows, fmt::format("{}", algorithms->double_tree_bound));
    row("halving-doubling: buffers sent", algorithms->before.halving_doubling_volume,
        algorithms->after.halving_doubling_volume, "");
  }
  return text;
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
