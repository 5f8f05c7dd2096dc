// One attempt of a job: who has joined it, how far they are, and when it is over. Decides nothing about streams and
// tells nobody: that is JobLinkCore's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "manager/job/job_messages.h"
#include "manager/job/mpirun_calls.h"

namespace taskd::manager {

// How far an attempt is; each one includes those before it.
enum class JobProgress { kBegun, kFirstJoined, kAllJoined, kAllReady };

class JobAttempt {
 public:
  struct Node {
    JobJoin info;               // with what it reported since
    uint64_t peer = 0;          // its stream; 0: none now
    int64_t heard_ns = 0;       // where it has one: when something came last
    int64_t give_up_ns = 0;     // where it has none and somebody minds: then it counts as failed
    uint64_t told_version = 0;  // of the state
  };
  using Nodes = std::map<uint32_t, Node>;  // by index

  // The first node declares how many there are and what the plan is. It is not in yet.
  explicit JobAttempt(const JobJoin& first);

  // Why the node does not fit to those that are in; empty: it does.
  std::string WhyRefused(const JobJoin& join) const;
  // False: with it the joins take more than JobLimits::kMaxJoinBytes.
  bool HasRoomFor(const JobJoin& join) const { return bytes_ + JoinBytes(join) <= JobLimits::kMaxJoinBytes; }
  // `join` fits and is new. What it claims to have reported before is not taken.
  Node& Add(JobJoin join);

  Nodes& nodes() { return joined_; }
  Node* FindIndex(uint32_t index);
  Node* FindPeer(uint64_t peer);
  // Those that have joined: names and addresses that they are known by. NOT_FOUND: none, or more than one.
  absl::StatusOr<uint32_t> FindHost(const std::string& host) const;

  // Streams. A node without one that has not ended is given up at `give_up_ns`, unless the attempt is over.
  void Connect(Node& node, uint64_t peer, int64_t now_ns);
  void Disconnect(Node& node, int64_t now_ns, int64_t give_up_ns);
  uint32_t size() const { return size_; }
  uint32_t connected() const { return static_cast<uint32_t>(streams_.size()); }
  int64_t empty_since_ns() const { return empty_since_ns_; }  // while nobody is connected
  // The node that is given up first, and when.
  const Node* NextToGiveUp() const;
  // Node 0's, or the usual one before it has joined.
  int64_t node_timeout_ns() const;

  void SetReady(Node& node);
  void SetEnded(Node& node, JobEnd end);
  MpirunCalls& mpirun() { return mpirun_; }

  JobProgress progress() const;
  // What all nodes are sent, without `hosted`.
  JobState State() const;

  // All nodes that somebody waits for have ended, with 0 as far as this knows: what that means. Nothing: not yet.
  std::optional<JobEnd> WhenAllDone() const;
  void SetEnd(JobEnd end, int64_t now_ns);
  const std::optional<JobEnd>& end() const { return end_; }
  int64_t end_ns() const { return end_ns_; }

 private:
  const uint32_t size_;  // nodes, without evaluators
  const std::string plan_;
  const uint32_t first_;                         // index of the node that came first
  Nodes joined_;                                 // evaluators too
  std::map<uint64_t, uint32_t> streams_;         // index by peer
  std::set<std::pair<int64_t, uint32_t>> lost_;  // when nodes without a stream are given up
  std::set<uint32_t> not_joined_;                // of 0..size_-1
  std::set<uint32_t> not_ready_;                 // those that serve, of those that have joined
  std::set<uint32_t> awaited_;  // those that do not serve and have not ended, of those that have joined
  size_t bytes_ = 0;            // of the joins
  MpirunCalls mpirun_;
  int64_t empty_since_ns_ = 0;
  std::optional<JobEnd> end_;
  int64_t end_ns_ = 0;
};

}  // namespace taskd::manager
