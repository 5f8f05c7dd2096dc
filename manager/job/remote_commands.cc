#include "manager/job/remote_commands.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace taskd::manager {
namespace {

constexpr size_t kMessageOverheadBytes = 256;  // of what is queued, beside its data

}  // namespace

void RemoteCommands::Start(uint64_t caller, const JobJoin& node, uint64_t peer, std::string command) {
  const uint64_t id = next_id_++;
  Command& added = commands_[id];
  added.caller = caller;
  added.index = node.index;
  added.peer = peer;
  added.node = NodeText(node);
  callers_[caller] = id;
  running_[node.index].insert(id);
  const size_t size = command.size();
  Queue(id, peer, RemoteOrder{id, RemoteOrder::Kind::kStart, std::move(command)}, size);
}

void RemoteCommands::Input(uint64_t caller, std::string input) {
  auto found = callers_.find(caller);
  if (found == callers_.end() || input.empty()) return;
  const uint64_t id = found->second;
  const Command& command = commands_.at(id);
  if (command.input_ended || command.over) return;
  const size_t size = input.size();
  Queue(id, command.peer, RemoteOrder{id, RemoteOrder::Kind::kInput, std::move(input)}, size);
}

void RemoteCommands::InputEnd(uint64_t caller) {
  auto found = callers_.find(caller);
  if (found == callers_.end()) return;
  const uint64_t id = found->second;
  Command& command = commands_.at(id);
  if (command.over || std::exchange(command.input_ended, true)) return;
  Queue(id, command.peer, RemoteOrder{id, RemoteOrder::Kind::kInputEnd, ""}, 0);
}

void RemoteCommands::CallerLost(uint64_t caller) {
  auto found = callers_.find(caller);
  if (found == callers_.end()) return;
  const uint64_t id = found->second;
  const Command& command = commands_.at(id);
  if (!command.over || command.queued_bytes > 0) Cancel(id, command.peer);
  End(id);
}

void RemoteCommands::Answer(uint64_t peer, RemoteAnswer answer) {
  auto found = commands_.find(answer.id);
  if (found == commands_.end() || found->second.peer != peer || found->second.over) return;
  const uint64_t id = answer.id;
  if (answer.kind == RemoteAnswer::Kind::kEnded) Leave(id);
  const uint64_t caller = found->second.caller;
  const size_t size = answer.data.size();
  Queue(id, caller, std::move(answer), size);
}

void RemoteCommands::NodeLost(const JobJoin& node) {
  auto found = running_.find(node.index);
  if (found == running_.end()) return;
  const std::set<uint64_t> ids = found->second;
  for (uint64_t id : ids) {
    given_up_[node.index].push_back(id);
    Fail(id, absl::UnavailableError(absl::StrCat(NodeText(node), " is gone")));
  }
}

void RemoteCommands::NodeBack(uint32_t index, uint64_t peer) {
  auto found = given_up_.find(index);
  if (found == given_up_.end()) return;
  for (uint64_t id : found->second) Cancel(id, peer);
  given_up_.erase(found);
}

void RemoteCommands::Queue(uint64_t id, uint64_t peer, JobMessage message, size_t data_bytes) {
  Command& command = commands_.at(id);
  command.queued_bytes += data_bytes + kMessageOverheadBytes;
  all_queued_bytes_ += data_bytes + kMessageOverheadBytes;
  if (command.queued_bytes > JobLimits::kMaxQueuedBytes) {
    GiveUp(id, JobLimits::kMaxQueuedBytes, "of the command");
    return;
  }
  if (all_queued_bytes_ > JobLimits::kMaxAllQueuedBytes) {
    const uint64_t most = std::max_element(commands_.begin(), commands_.end(), [](const auto& a, const auto& b) {
                            return a.second.queued_bytes < b.second.queued_bytes;
                          })->first;
    GiveUp(most, JobLimits::kMaxAllQueuedBytes, "of all commands, most of them of that");
    if (most == id) return;
  }
  Send(peer, std::move(message));
}

void RemoteCommands::GiveUp(uint64_t id, size_t limit_bytes, std::string_view whose) {
  const Command& command = commands_.at(id);
  Cancel(id, command.peer);
  Fail(id, absl::ResourceExhaustedError(absl::StrCat("more than ", limit_bytes >> 20, " MiB of input or output ",
                                                     std::string(whose), " on ", command.node,
                                                     " wait for somebody who does not take them")));
}

void RemoteCommands::Leave(uint64_t id) {
  Command& command = commands_.at(id);
  if (std::exchange(command.over, true)) return;
  auto running = running_.find(command.index);
  running->second.erase(id);
  if (running->second.empty()) running_.erase(running);
}

void RemoteCommands::End(uint64_t id) {
  Leave(id);
  auto found = commands_.find(id);
  callers_.erase(found->second.caller);
  all_queued_bytes_ -= found->second.queued_bytes;
  commands_.erase(found);
}

void RemoteCommands::Fail(uint64_t id, const absl::Status& status) {
  Send(commands_.at(id).caller, StreamEnd{status});
  End(id);
}

uint64_t RemoteCommands::Sent(uint64_t id, size_t data_bytes) {
  auto found = commands_.find(id);
  if (found == commands_.end()) return 0;
  Command& command = found->second;
  const size_t bytes = std::min(command.queued_bytes, data_bytes + kMessageOverheadBytes);
  command.queued_bytes -= bytes;
  all_queued_bytes_ -= bytes;
  const uint64_t caller = command.caller;
  if (command.over && command.queued_bytes == 0) End(id);
  return caller;
}

size_t RemoteCommands::running(uint32_t index) const {
  auto found = running_.find(index);
  return found == running_.end() ? 0 : found->second.size();
}

size_t RemoteCommands::queued_bytes(uint64_t caller) const {
  auto found = callers_.find(caller);
  return found == callers_.end() ? 0 : commands_.at(found->second).queued_bytes;
}

}  // namespace taskd::manager
