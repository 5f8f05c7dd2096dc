// The part of the core that calls the agents of nodes.
#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "manager/core.h"
#include "nlohmann/json.hpp"

namespace taskd::manager {
namespace {

constexpr size_t kMaxAgentAnswersBytes = size_t{2} << 20;

}  // namespace

void ManagerCore::FinishCall(Call& call, Callbacks& callbacks) {
  std::stable_sort(call.answers.begin(), call.answers.end(),
                   [](const NodeAnswer& a, const NodeAnswer& b) { return a.node < b.node; });
  callbacks.push_back([done = std::move(call.done), answers = std::move(call.answers)] { done(answers); });
}

uint64_t ManagerCore::CallAgents(AgentCall agent_call, const std::vector<int>& nodes,
                                 std::function<void(std::vector<NodeAnswer>)> done) {
  Callbacks callbacks;
  uint64_t id = 0;
  {
    std::lock_guard lock(mutex_);
    id = agent_call.id = next_id_++;
    Call call;
    call.done = std::move(done);
    std::set<int> asked(nodes.begin(), nodes.end());
    std::set<int> found;
    for (auto& [key, node] : nodes_) {
      int number = node.hello.node_rank;
      if (!asked.empty() && asked.count(number) == 0) continue;
      found.insert(number);
      if (node.stream == 0) {
        call.answers.push_back({number, false, NotConnected(number)});
      } else {
        call.pending.insert(&node);
        node.sink->Call(agent_call);
      }
    }
    for (int number : asked) {
      if (found.count(number) == 0) call.answers.push_back({number, false, NotConnected(number)});
    }
    call.max_answer_bytes =
        std::min(kMaxAgentArgsBytes, kMaxAgentAnswersBytes / std::max<size_t>(1, call.pending.size()));
    if (call.pending.empty()) {
      FinishCall(call, callbacks);
      id = 0;
    } else {
      calls_.emplace(id, std::move(call));
    }
  }
  for (auto& callback : callbacks) callback();
  return id;
}

void ManagerCore::AgentReplied(uint64_t stream, uint64_t call, bool ok, std::string message) {
  Callbacks callbacks;
  {
    std::lock_guard lock(mutex_);
    Node* node = FindStream(stream);
    auto found = calls_.find(call);
    if (node == nullptr || found == calls_.end() || found->second.pending.erase(node) == 0) return;
    // All of them have to fit into one message.
    message.resize(std::min(message.size(), found->second.max_answer_bytes));
    found->second.answers.push_back({node->hello.node_rank, ok, std::move(message)});
    if (found->second.pending.empty()) {
      FinishCall(found->second, callbacks);
      calls_.erase(found);
    }
  }
  for (auto& callback : callbacks) callback();
}

void ManagerCore::ExpireCall(uint64_t call) {
  Callbacks callbacks;
  {
    std::lock_guard lock(mutex_);
    auto found = calls_.find(call);
    if (found == calls_.end()) return;
    for (const Node* node : found->second.pending) {
      found->second.answers.push_back({node->hello.node_rank, false, "no answer in time"});
    }
    FinishCall(found->second, callbacks);
    calls_.erase(found);
  }
  for (auto& callback : callbacks) callback();
}

absl::Status CheckAgentCall(const AgentCall& call) {
  constexpr const char* kOperations[] = {"KILL_WORKER", "START_ALL_WORKER", "START_WORKER_LIST", "MONITOR", "RESTART"};
  if (std::find(std::begin(kOperations), std::end(kOperations), call.operation) == std::end(kOperations)) {
    return absl::InvalidArgumentError(
        absl::StrCat("operator: '", call.operation.substr(0, 64),
                     "' is not KILL_WORKER, START_ALL_WORKER, START_WORKER_LIST, MONITOR or RESTART"));
  }
  if (call.args_json.size() > kMaxAgentArgsBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("args_json: ", call.args_json.size(), " bytes are more than ", kMaxAgentArgsBytes));
  }
  size_t first = call.args_json.find_first_not_of(" \t\r\n");
  if (!call.args_json.empty() &&
      (first == std::string::npos || call.args_json[first] != '{' || !nlohmann::json::accept(call.args_json))) {
    return absl::InvalidArgumentError("args_json: is not one JSON object");
  }
  return absl::OkStatus();
}

}  // namespace taskd::manager
