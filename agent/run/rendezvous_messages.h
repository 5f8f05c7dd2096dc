// The messages between launchers and the rendezvous: one JSON object a frame (rendezvous_client.h).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "agent/process/worker_group.h"
#include "agent/run/failure_report.h"
#include "agent/run/launcher_event.h"

namespace taskd::run {

// One node, as it presents itself.
struct NodeInfo {
  std::string run_id;
  std::string version;
  std::string host;    // what people call it (local_addr, else the host's name)
  int pid = 0;         // of the launcher
  int node_rank = -1;  // static: 0..nodes-1; elastic: a wish, or -1; the rendezvous gives one
  int local_world_size = 0;
  std::string role;
  int min_nodes = 0;
  int max_nodes = 0;
  int max_restarts = 0;
  std::string nonce;  // of the launcher that hosts the store, which it alone has (Rendezvous::Options); others': empty
  int tier_port = 0;  // where other nodes' tiers may ask this node's; 0: nowhere
  std::string address;  // from which it came; the root fills it in
};

struct Assignment {
  int round = 0;          // counts Starts, from 0
  int restart_count = 0;  // failures that were restarted from (TORCHELASTIC_RESTART_COUNT)
  int group_rank = 0;
  int group_world_size = 0;
  int rank_base = 0;  // global rank of the node's local rank 0
  int world_size = 0;
  int role_rank_base = 0;
  int role_world_size = 0;
  std::string manager;  // HOST:PORT; empty: none
  // The name of the job's folder for marks (MarkFolder::Name()). Empty: each node chooses one.
  std::string mark_folder = {};
  std::string secret;  // the job's, for all that its parts prove to each other. Never to be logged
  std::string tier;    // HOST:PORT of the store that this node's tier asks; empty: the root (tiers of tiers)
  int64_t node_timeout_ms = 60'000;  // of silence, after which a node or node 0 is lost: node 0's --node-timeout
  std::vector<std::string> hosts;    // by group rank
};

// From a node to the root.
struct JoinMessage {
  NodeInfo info;
};
struct FailedMessage {
  int round = 0;
  process::WorkerExit exit;
  std::string log_folder;  // of the rank; empty: it has none
};
struct SucceededMessage {  // all ranks of the node
  int round = 0;
};
struct StoppedMessage {  // answers StopMessage: nothing of that round runs any more
  int round = 0;
};
struct LeaveMessage {  // the launcher ends because of this signal
  int signal = 0;
};
struct EventMessage {
  LauncherEvent event;
};
struct StacksMessage {
  int id = 0;
  std::string text;
};
struct EvidenceMessage {  // answers LookMessage
  int hang = 0;
  std::string text;  // EncodeEvidence(); empty: nothing new
};
struct PongMessage {
  int64_t id = 0;
};
using NodeMessage = std::variant<JoinMessage, FailedMessage, SucceededMessage, StoppedMessage, LeaveMessage,
                                 EventMessage, StacksMessage, EvidenceMessage, PongMessage>;

inline constexpr size_t kMaxFailures = 64;  // more would add nothing; each goes to every node

// From the root to a node.
struct WaitingMessage {  // for whom
  std::string text;
};
struct StartMessage {
  Assignment assignment;
};
struct StopMessage {
  int round = 0;
  std::string reason;  // a line for people
  StopCause cause = StopCause::kNone;
};
struct EndMessage {
  int exit_code = 0;
  std::vector<RankFailure> failures;  // the first one first; at most kMaxFailures
  std::string reason;                 // a line for people; empty: all ranks succeeded
  StopCause cause = StopCause::kNone;
};
struct RefusedMessage {
  std::string text;
  bool another_job = false;  // this root's is not the one that the node belongs to
};
struct CollectMessage {  // asks for StacksMessage
  int id = 0;
};
struct LookMessage {    // the job hangs: asks for EvidenceMessage
  int hang = 0;         // its number
  int64_t idle_ms = 0;  // since when
  int asks_ras = -1;    // the group rank of the node that is to ask NCCL's RAS; -1: nobody
};
struct PingMessage {  // asks for PongMessage
  int64_t id = 0;
};
using RootMessage = std::variant<WaitingMessage, StartMessage, StopMessage, EndMessage, RefusedMessage, CollectMessage,
                                 LookMessage, PingMessage>;

std::string Encode(const NodeMessage& message);
std::string Encode(const RootMessage& message);

// INVALID_ARGUMENT with what is wrong. Accepts any bytes; numbers are checked against the ranges that the rest of the
// program can work with.
absl::StatusOr<NodeMessage> DecodeNodeMessage(std::string_view body);
absl::StatusOr<RootMessage> DecodeRootMessage(std::string_view body);

}  // namespace taskd::run
