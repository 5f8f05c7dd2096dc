// Hands health events of this node to NVSentinel on this node (proto/nvsentinel.proto), one at a time, in a thread of its own.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "proto/node_event.h"

namespace grpc {
class ClientContext;
}

namespace taskd::proxy {

class NodeEvents {
 public:
  using Answer = std::function<void(uint64_t id, bool ok, const std::string& message)>;

  // `on_answer` is called from the caller of Send() or from the own thread.
  NodeEvents(std::string node_name, Answer on_answer);
  ~NodeEvents();  // Stop()
  NodeEvents(const NodeEvents&) = delete;
  NodeEvents& operator=(const NodeEvents&) = delete;

  // Never blocks. Each call is answered, unless this is stopped before. Refused: an event of another node, a socket that is
  // neither root's nor this user's, an event while another one is under way.
  void Send(uint64_t id, const std::string& args_json);
  void Stop();

 private:
  absl::Status Deliver(const proto::NodeEvent& event);
  void Run();

  const std::string node_name_;
  const Answer on_answer_;

  std::mutex mutex_;  // guards all below
  std::condition_variable changed_;
  bool stopped_ = false;
  bool busy_ = false;
  std::optional<std::pair<uint64_t, proto::NodeEvent>> next_;
  grpc::ClientContext* call_ = nullptr;
  std::thread thread_;  // begun by the first event
};

}  // namespace taskd::proxy
