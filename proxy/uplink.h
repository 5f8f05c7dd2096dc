// The proxy's stream to the manager: reopened for ever; carries reports of the node's ranks up, and the wanted state
// and calls of agents' callbacks down. One thread that writes, one that reads.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "common/node_identity.h"
#include "common/switch.h"
#include "proto/channel.h"
#include "proxy/hello_server.h"
#include "proxy/node.h"

namespace taskd::proxy {

class Uplink {
 public:
  struct Options {
    std::string manager;  // HOST:PORT
    proto::Security security;
    int node_rank = 0;
    NodeIdentity node;
    std::string identity;
    std::string mark_folder;    // empty: none
    std::string task_folder;    // in it; empty: `mark_folder` is the job's own
    std::string no_mark_files;  // why there is none
    // Folds go out at once, but no two messages of them within this, unless a rank comes, goes or switches.
    uint64_t fold_interval_ns = 200'000'000;
  };
  struct Callbacks {
    // The manager's word, also the same once more. Applied when it returns.
    std::function<void(const WantedKinds&)> on_wanted;
    // The manager has spoken on a new stream; the stream has ended. In turns.
    std::function<void(bool)> on_connected;
    std::function<void(uint64_t id, const std::string& name, const std::string& args_json)> on_agent_call;
  };

  // `node` outlives this. The callbacks come from the uplink's own threads.
  Uplink(Options options, Node* node, Callbacks callbacks);
  ~Uplink();  // Stop()
  Uplink(const Uplink&) = delete;
  Uplink& operator=(const Uplink&) = delete;

  // INVALID_ARGUMENT: the TLS files cannot be read.
  absl::Status Start();
  // Tells the manager all that the node has, unless that takes long.
  void Stop();
  // The job is over, its manager may be gone before this proxy: that is not logged any more.
  void ExpectEnd();

  void SendAgentAnswer(const AgentAnswer& answer);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace taskd::proxy
