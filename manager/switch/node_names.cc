#include "manager/switch/node_names.h"

#include <unordered_map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/printable.h"

namespace taskd::manager {
namespace {

constexpr size_t kNameBytes = 64;

std::string Shown(const std::string& text) { return absl::StrCat("'", Printable(text, kNameBytes), "'"); }

bool AreOneHost(const NodeIdentity& a, const NodeIdentity& b) {
  if (a.machine != b.machine) return false;
  const bool are_pods = !a.pod.empty() && !b.pod.empty() && !a.machine.empty();
  return a.host == b.host || are_pods;
}

// By itself, whatever the others are called.
std::string RefuseAlone(const NodeIdentity& node, const std::optional<std::set<std::string>>& listed) {
  if (node.node_name.empty()) {
    return "the scheduler's name of the node is not known: TASKD_NODE_NAME is not set (in a pod, from spec.nodeName)";
  }
  if (!IsNodeName(node.node_name)) {
    return absl::StrCat("the node name ", Shown(node.node_name),
                        " is none: it has to be 1 to 253 letters, digits, '.', '_' and '-'");
  }
  if (listed && listed->count(node.node_name) == 0) {
    return absl::StrCat("the node name ", Shown(node.node_name), " is not in the job's list of nodes");
  }
  return "";
}

}  // namespace

std::vector<std::string> RefuseNodeNames(const std::vector<const NodeIdentity*>& nodes,
                                         const std::optional<std::set<std::string>>& listed) {
  std::unordered_map<std::string, const NodeIdentity*> by_name, by_host;
  // The other one, of the first two that disagree.
  std::unordered_map<std::string, std::pair<std::string, std::string>> hosts_of_name, names_of_host;
  const auto host_key = [](const NodeIdentity& node) { return absl::StrCat(node.machine, "\n", node.host); };
  for (const NodeIdentity* node : nodes) {
    if (node->node_name.empty()) continue;
    const NodeIdentity& first = *by_name.try_emplace(node->node_name, node).first->second;
    if (!AreOneHost(first, *node)) hosts_of_name.try_emplace(node->node_name, first.host, node->host);
    const NodeIdentity& before = *by_host.try_emplace(host_key(*node), node).first->second;
    if (before.node_name != node->node_name) {
      names_of_host.try_emplace(host_key(*node), before.node_name, node->node_name);
    }
  }
  std::vector<std::string> refusals;
  refusals.reserve(nodes.size());
  for (const NodeIdentity* node : nodes) {
    std::string refusal = RefuseAlone(*node, listed);
    if (const auto found = hosts_of_name.find(node->node_name); refusal.empty() && found != hosts_of_name.end()) {
      refusal = absl::StrCat("two hosts have the node name ", Shown(node->node_name), ": ", Shown(found->second.first),
                             " and ", Shown(found->second.second));
    }
    if (const auto found = names_of_host.find(host_key(*node)); refusal.empty() && found != names_of_host.end()) {
      refusal = absl::StrCat("the host ", Shown(node->host), " has two node names: ", Shown(found->second.first),
                             " and ", Shown(found->second.second));
    }
    refusals.push_back(std::move(refusal));
  }
  return refusals;
}

}  // namespace taskd::manager
