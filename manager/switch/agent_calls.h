// Calls of the callbacks that agents registered, as they are under way on the nodes of the job (proto/taskd/v1:
// CallAgents, AgentCall, AgentReply).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace taskd::manager {

inline constexpr size_t kMaxAgentArgsBytes = size_t{32} * 1024;

// taskd.v1.AgentCall.
struct AgentCall {
  uint64_t id = 0;  // given by the core
  std::string operation;
  std::string args_json;
};

// taskd.v1.CallAgentsReply.Node: what became of a call on one node, its agents' word or that there was none.
struct NodeAnswer {
  int node = 0;
  bool ok = false;
  std::string message;
};

// INVALID_ARGUMENT: not an operation that agents know, or arguments that are not one JSON object of at most
// kMaxAgentArgsBytes (nothing counts as {}).
absl::Status CheckAgentCall(const AgentCall& call);

// Not thread safe. Each call ends once: what is then to be done is added to `over`, for its caller to call without
// locks.
class AgentCalls {
 public:
  using Done = std::function<void(std::vector<NodeAnswer>)>;
  using Callbacks = std::vector<std::function<void()>>;

  // `pending`: the nodes that were asked, by their streams. `answers`: of those that could not be. False: it is over
  // already.
  bool Begin(uint64_t id, std::map<uint64_t, int> pending, std::vector<NodeAnswer> answers, Done done, Callbacks& over);
  // What is no answer to a call that waits for it is ignored.
  void Replied(uint64_t id, uint64_t stream, bool ok, std::string message, Callbacks& over);
  // No call waits for this stream any more; `message` says why.
  void StreamGone(uint64_t stream, const std::string& message, Callbacks& over);
  void Expire(uint64_t id, Callbacks& over);

 private:
  struct Call {
    std::map<uint64_t, int> pending;  // nodes by stream
    std::vector<NodeAnswer> answers;
    Done done;
    size_t max_answer_bytes = 0;
  };
  using Calls = std::map<uint64_t, Call>;

  // Takes the node from those that it waits for. Returns the call after it, which may be over now.
  Calls::iterator Settle(Calls::iterator call, uint64_t stream, bool ok, std::string message, Callbacks& over);
  static void Finish(Call& call, Callbacks& over);

  Calls calls_;  // by id
};

}  // namespace taskd::manager
