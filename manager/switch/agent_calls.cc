#include "manager/switch/agent_calls.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/utf8.h"
#include "nlohmann/json.hpp"

namespace taskd::manager {
namespace {

// Of one call: all of them have to fit into one message.
constexpr size_t kMaxAnswersBytes = size_t{2} << 20;

}  // namespace

bool AgentCalls::Begin(uint64_t id, std::map<uint64_t, int> pending, std::vector<NodeAnswer> answers, Done done,
                       Callbacks& over) {
  Call call;
  call.max_answer_bytes = std::min(kMaxAgentArgsBytes, kMaxAnswersBytes / std::max<size_t>(1, pending.size()));
  call.pending = std::move(pending);
  call.answers = std::move(answers);
  call.done = std::move(done);
  if (call.pending.empty()) {
    Finish(call, over);
    return false;
  }
  calls_.emplace(id, std::move(call));
  return true;
}

void AgentCalls::Replied(uint64_t id, uint64_t stream, bool ok, std::string message, Callbacks& over) {
  auto call = calls_.find(id);
  if (call == calls_.end() || !call->second.pending.contains(stream)) return;
  CutUtf8(&message, call->second.max_answer_bytes);
  Settle(call, stream, ok, std::move(message), over);
}

void AgentCalls::StreamGone(uint64_t stream, const std::string& message, Callbacks& over) {
  for (auto call = calls_.begin(); call != calls_.end();) {
    call = call->second.pending.contains(stream) ? Settle(call, stream, false, message, over) : std::next(call);
  }
}

void AgentCalls::Expire(uint64_t id, Callbacks& over) {
  auto call = calls_.find(id);
  if (call == calls_.end()) return;
  for (const auto& [stream, node] : call->second.pending) {
    call->second.answers.push_back({node, false, "no answer in time"});
  }
  Finish(call->second, over);
  calls_.erase(call);
}

AgentCalls::Calls::iterator AgentCalls::Settle(Calls::iterator call, uint64_t stream, bool ok, std::string message,
                                               Callbacks& over) {
  auto pending = call->second.pending.find(stream);
  call->second.answers.push_back({pending->second, ok, std::move(message)});
  call->second.pending.erase(pending);
  if (!call->second.pending.empty()) return std::next(call);
  Finish(call->second, over);
  return calls_.erase(call);
}

void AgentCalls::Finish(Call& call, Callbacks& over) {
  std::stable_sort(call.answers.begin(), call.answers.end(),
                   [](const NodeAnswer& a, const NodeAnswer& b) { return a.node < b.node; });
  over.push_back([done = std::move(call.done), answers = std::move(call.answers)] { done(answers); });
}

absl::Status CheckAgentCall(const AgentCall& call) {
  constexpr const char* kOperations[] = {"KILL_WORKER", "START_ALL_WORKER", "START_WORKER_LIST", "MONITOR", "RESTART"};
  if (std::find(std::begin(kOperations), std::end(kOperations), call.operation) == std::end(kOperations)) {
    return absl::InvalidArgumentError(
        absl::StrCat("operator: '", CutUtf8(call.operation, 64),
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
