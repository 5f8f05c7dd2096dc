// What the nodes of a job and the manager send each other on the job link (proto/taskd/v1/job_link.proto), without
// transport.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"

namespace taskd::manager {

struct JobLimits {
  static constexpr uint32_t kMaxNodes = 65536;
  static constexpr uint32_t kMaxExtras = 64;  // evaluators
  static constexpr size_t kMaxMissingListed = 16;
  static constexpr size_t kMaxAddresses = 64;
  static constexpr size_t kMaxNameBytes = 256;  // names, addresses and run ids: beyond it the join is refused
  static constexpr size_t kMaxPlanBytes = 4096;
  static constexpr size_t kMaxJoinBytes = size_t{64} << 20;        // of all joins of an attempt, or for the next
  static constexpr size_t kMaxTextBytes = 1024;                    // reasons are cut there
  static constexpr size_t kMaxMpirunEvents = 16384;                // each waits at every node that does not read
  static constexpr size_t kMaxQueuedBytes = size_t{16} << 20;      // of one remote command, both directions
  static constexpr size_t kMaxAllQueuedBytes = size_t{128} << 20;  // of all; then the one with most fails
  static constexpr size_t kMaxCommands = 256;                      // remote commands under way on a node
};

// taskd.v1.NodeEnded and JobEnd.
struct JobEnd {
  int code = 0;        // 0..255
  std::string reason;  // for people
  int signal = 0;      // that a `taskd run` was sent, and ends because of; 0: none
};

// taskd.v1.JoinJob.
struct JobJoin {
  uint32_t index = 0;
  uint32_t nodes = 0;
  std::string name;
  std::vector<std::string> addresses;
  bool serves = false;
  std::string run_id;
  std::string plan;
  bool remote_start = false;
  uint32_t node_timeout_ms = 0;
  bool ready = false;
  std::optional<JobEnd> ended;
};

// taskd.v1.MpirunCall.
struct JobMpirunCall {
  uint32_t number = 0;
  bool ended = false;
  int code = 0;

  friend bool operator==(const JobMpirunCall&, const JobMpirunCall&) = default;
};

// Calls in the order in which they were reported. Nodes that do not read share it, or it would be kept once for each.
// Thread safety: any thread.
class MpirunLog {
 public:
  void Append(const JobMpirunCall& call) {
    std::lock_guard lock(mutex_);
    calls_.push_back(call);
  }
  size_t size() const {
    std::lock_guard lock(mutex_);
    return calls_.size();
  }
  JobMpirunCall at(size_t index) const {
    std::lock_guard lock(mutex_);
    return calls_.at(index);
  }

 private:
  mutable std::mutex mutex_;
  std::vector<JobMpirunCall> calls_;
};

// The first `count` calls of an attempt: a node is to hear those of them that it has not heard on this stream.
struct JobMpirunNews {
  std::shared_ptr<const MpirunLog> calls;
  size_t count = 0;
};

// taskd.v1.JobState.
struct JobState {
  bool first_joined = false;
  bool all_joined = false;
  bool all_ready = false;
  uint32_t missing_count = 0;
  std::vector<uint32_t> missing;
  bool hosted = false;
  uint32_t connected = 0;
  uint32_t node_timeout_ms = 0;
};

// taskd.v1.Alive.
struct JobAlive {};

// The last that a node hears: why it may not join.
struct JobRefusal {
  std::string text;
};

// taskd.v1.RemoteCommand: what a node is to do for a caller.
struct RemoteOrder {
  enum class Kind { kStart, kInput, kInputEnd, kCancel };
  uint64_t id = 0;
  Kind kind = Kind::kStart;
  std::string data;  // the command, the input
};

// taskd.v1.RemoteOutput: what a caller hears. After kEnded nothing else comes.
struct RemoteAnswer {
  enum class Kind { kOut, kErr, kEnded };
  uint64_t id = 0;
  Kind kind = Kind::kOut;
  std::string data;
  int code = 0;
};

// The last that a caller hears, or a node whose stream another one replaces: why its stream ends. Never OK.
struct StreamEnd {
  absl::Status status;
};

using JobMessage =
    std::variant<JobState, JobEnd, JobRefusal, JobMpirunNews, RemoteOrder, RemoteAnswer, StreamEnd, JobAlive>;

// To be sent to `peer`. After JobRefusal and StreamEnd it is forgotten.
struct JobOutput {
  uint64_t peer = 0;
  JobMessage message;
};
using JobOutputs = std::vector<JobOutput>;

// Why nobody can use this join; empty: it is sound. Takes the addresses that are too many and line ends off it.
std::string CheckJoin(JobJoin& join);
// Memory that it takes.
size_t JoinBytes(const JobJoin& join);
// "node 3 (worker-3)"
std::string NodeText(const JobJoin& node);
// One line of whole characters, at most JobLimits::kMaxTextBytes.
std::string CutLine(std::string text);

}  // namespace taskd::manager
