// Commands that somebody has a node of the job run (`taskd rsh`): which of them are under way, for whom and where, and
// what may wait for a reader that does not read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "manager/job/job_messages.h"

namespace taskd::manager {

// Not thread safe. Callers and nodes are named by their streams' numbers; what comes from unknown ones is ignored.
class RemoteCommands {
 public:
  // What is to be sent is added to `outputs`, which outlives this.
  explicit RemoteCommands(JobOutputs* outputs) : outputs_(outputs) {}

  bool HasCaller(uint64_t caller) const { return callers_.count(caller) > 0; }

  // `node` is connected by the stream `peer`. A caller has one command.
  void Start(uint64_t caller, const JobJoin& node, uint64_t peer, std::string command);
  void Input(uint64_t caller, std::string input);
  void InputEnd(uint64_t caller);
  void CallerLost(uint64_t caller);

  // Of nodes.
  void Answer(uint64_t peer, RemoteAnswer answer);
  void NodeLost(const JobJoin& node);            // its commands fail
  void NodeBack(uint32_t index, uint64_t peer);  // it is sent the cancellations of what failed meanwhile
  void ForgetLostNodes() { given_up_.clear(); }  // none of them comes back

  // A RemoteOrder or RemoteAnswer with `data_bytes` of data has left this process. Returns the command's caller, 0 if
  // it is over.
  uint64_t Sent(uint64_t id, size_t data_bytes);
  size_t running(uint32_t index) const;        // commands on the node
  size_t queued_bytes(uint64_t caller) const;  // 0 for unknown ones

 private:
  struct Command {
    uint64_t caller = 0;
    uint32_t index = 0;  // of the node
    uint64_t peer = 0;   // the node's stream
    std::string node;    // for people
    bool input_ended = false;
    bool over = false;  // on the node; what of it waits for its caller still counts
    size_t queued_bytes = 0;
  };

  void Send(uint64_t peer, JobMessage message) { outputs_->emplace_back(peer, std::move(message)); }
  void Queue(uint64_t id, uint64_t peer, JobMessage message, size_t data_bytes);
  void GiveUp(uint64_t id, size_t limit_bytes, std::string_view whose);
  void Cancel(uint64_t id, uint64_t peer) { Send(peer, RemoteOrder{id, RemoteOrder::Kind::kCancel, ""}); }
  void Leave(uint64_t id);  // its node does not run it any more
  void End(uint64_t id);    // forgets it
  void Fail(uint64_t id, const absl::Status& status);

  JobOutputs* const outputs_;
  uint64_t next_id_ = 1;
  size_t all_queued_bytes_ = 0;                         // the sum over commands_
  std::map<uint64_t, Command> commands_;                // by id
  std::map<uint64_t, uint64_t> callers_;                // their command's id
  std::map<uint32_t, std::set<uint64_t>> running_;      // ids by the node's index
  std::map<uint32_t, std::vector<uint64_t>> given_up_;  // ids by the index of a node without a stream
};

}  // namespace taskd::manager
