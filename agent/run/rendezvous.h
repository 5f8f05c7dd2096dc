// How the launchers of a job find together, restart together and end together. Pure: no I/O, no threads, time is given.
//
// The launcher that hosts the root store runs one Rendezvous. Every launcher, that one too, keeps one connection to it
// (launcher_frames.h) and reports what happens on its node; the rendezvous decides for all:
//
//   Join ───────────────► waits until all are there, or          ──► Start to all
//                         min_nodes and the last call is over
//   Succeeded ──────────► when all nodes have                    ──► End(0)
//   Failed ─────────────► restarts left: Stop to all, then
//                         Stopped from all                       ──► Start to all
//                         none left                              ──► End(code of the first failure)
//   connection gone, or
//   silent for long ────► the node is lost. Elastic: Stop, then
//                         as soon as min_nodes are there         ──► Start to those; costs no restart
//                         else as a failure, and the same node rank may join again before the next Start
//   Join while running ─► elastic, fewer than max_nodes: Stop    ──► Start with one more; costs no restart
//                         elastic, max_nodes are there: a spare
//                         else Refused: the job is complete
//   Leave ──────────────► (SIGTERM at a launcher) elastic: as lost
//                         else, and where the store is           ──► End(128 + signal)
//
// A job is elastic if max_nodes > min_nodes. Nodes have fixed ranks if the options say so and the job is not elastic.
//
// A failure of a rank is often the consequence of another node's loss or failure: before it decides, the rendezvous
// waits `settle_ns` for what else comes, and until each node has answered a ping or is given up as lost. The first
// failure is the one that came first. Who is silent there is given up sooner where the job ends anyway.
//
// All times are those that this object has seen (ObservedClock): while it did not run no ping went out, and what nodes
// have sent was not read.
//
// A node whose ranks have all succeeded has done its part: no node that joins later makes it begin again, and it is not
// missed when its launcher is lost. When a rank of another node fails and there are restarts left, it begins again.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "agent/run/rendezvous_messages.h"
#include "common/observed_clock.h"

namespace taskd::run {

class Rendezvous {
 public:
  struct Options {
    std::string run_id;
    std::string version;
    std::string secret;           // of the job; goes into each Assignment
    std::string nonce;            // the launcher that joins with it hosts the store and is node 0; empty: there is none
    std::string manager;          // goes into each Assignment
    std::string mark_folder;      // the same
    bool awaits_manager = false;  // nobody starts before SetManager() has said whether there is one
    int min_nodes = 1;
    int max_nodes = 1;
    bool tasks = false;       // the launchers are tasks with one rank each (TaskPlace): messages say so
    bool fixed_ranks = true;  // nodes bring their ranks (static); else the rendezvous gives them
    int max_restarts = 0;
    int fan_out = 0;  // nodes' tiers that one store serves; 0: the root serves all
    int64_t join_timeout_ns = 900'000'000'000;
    int64_t last_call_ns = 30'000'000'000;  // wait for more than min_nodes at the first Start
    int64_t settle_ns = 300'000'000;
    int64_t stop_timeout_ns = 90'000'000'000;  // from Stop to Stopped
    int64_t ping_interval_ns = 2'000'000'000;
    int64_t silence_ns = 60'000'000'000;  // a node that sends nothing for so long is lost; goes into each Assignment
  };

  // Send `message` or, without one, close the connection. In this order.
  struct Output {
    uint64_t peer = 0;
    std::optional<RootMessage> message;
  };
  using Outputs = std::vector<Output>;

  // The time to join begins now.
  Rendezvous(Options options, int64_t now_ns);

  // `peer` is the number of a connection and never reused. Calls are valid at any time and for any peer; those that do
  // not apply (an old round, a node that never joined) are ignored. Time never runs backwards.
  // `is_known`: it has proven the secret, or is this user's: it may hear of others why it is refused.
  Outputs Opened(uint64_t peer, int64_t now_ns, bool is_known = true);
  Outputs Received(uint64_t peer, const NodeMessage& message, int64_t now_ns);
  Outputs Lost(uint64_t peer, int64_t now_ns);  // the connection has ended
  Outputs Tick(int64_t now_ns);
  // The ranks hang, as seen from outside. Counts as a failure, if the job runs: costs a restart, and without one left
  // ends the job with code 1.
  Outputs Restart(const std::string& reason, int64_t now_ns);
  Outputs EndJob(const std::string& reason, int64_t now_ns);  // with code 1
  Outputs SetManager(const std::string& manager, int64_t now_ns);

  int64_t next_tick_ns() const;  // when Tick() is due at the latest
  bool ended() const { return phase_ == Phase::kEnded; }
  int round() const { return round_; }  // -1 before the first Start
  std::vector<uint64_t> running_peers() const;
  bool joined(uint64_t peer) const;
  bool anybody_joined() const { return joined_ > 0; }
  // Whom it waits for: "nodes 2, 5-7 (3 of 8 here)"; empty: for nobody.
  std::string WaitsFor() const;

 private:
  enum class Phase : uint8_t { kGathering, kRunning, kSettling, kStopping, kEnded };
  enum class State : uint8_t { kWaiting, kRunning, kSucceeded };  // the latter two: of the current round

  struct Node {
    NodeInfo info;
    bool hosts_store = false;
    int64_t arrival = 0;
    int group_rank = -1;  // of the last round it was in
    State state = State::kWaiting;
    bool leaving = false;
    int64_t probe_answered = 0;
  };
  struct Connection {
    bool is_known = false;
    int64_t heard_ns = 0;
    std::optional<Node> node;  // after Join
  };

  using Member = std::pair<uint64_t, Node*>;  // and its peer

  bool elastic() const { return options_.max_nodes > options_.min_nodes; }
  bool fixed_ranks() const { return options_.fixed_ranks && !elastic(); }
  std::string NodeName(const Node& node) const;
  std::string Plan() const;  // "4" or "4:8"

  void On(uint64_t peer, const JoinMessage& message);
  void On(uint64_t peer, const FailedMessage& message);
  void On(uint64_t peer, const SucceededMessage& message);
  void On(uint64_t peer, const StoppedMessage& message);
  void On(uint64_t peer, const LeaveMessage& message);
  void On(uint64_t peer, const PongMessage& message);
  void On(uint64_t, const EventMessage&) {}
  void On(uint64_t, const StacksMessage&) {}
  void On(uint64_t, const EvidenceMessage&) {}

  bool HostsStore(const NodeInfo& info) const { return !options_.nonce.empty() && info.nonce == options_.nonce; }
  std::string WhyRefused(const NodeInfo& info, bool is_known) const;  // empty: it may join
  bool Complete() const;
  std::string CompleteText(bool is_known) const;
  void DropSilent();
  void Drop(uint64_t peer, const std::string& why);
  void BeginSettling();
  void SettleIfDone();
  void BeginStop(StopCause cause, const std::string& reason, bool costs_restart);
  void GatherIfStopped();
  void StartIfComplete();
  void Start(const std::vector<Member>& chosen);
  std::vector<Member> InOrder(const std::vector<Member>& chosen) const;
  Assignment OfRound(const std::vector<Member>& order) const;
  std::string TierAbove(const std::vector<Member>& order, int group_rank) const;
  void EndIfAllSucceeded();
  void End(int exit_code, StopCause cause, const std::string& reason);
  std::vector<Member> Candidates();
  std::set<int> PresentRanks(int* count) const;
  std::string WaitingText() const;
  template <typename Message>
  void Send(uint64_t peer, Message message);
  void SendWaiting(uint64_t peer);
  void Refuse(uint64_t peer, RefusedMessage message);
  Outputs TakeOutputs();

  const Options options_;
  std::string manager_;
  bool awaits_manager_;
  ObservedClock clock_;
  int64_t now_ns_ = 0;  // on that clock, like all times below
  Phase phase_ = Phase::kGathering;
  int round_ = -1;
  int restart_count_ = 0;
  int64_t arrivals_ = 0;
  std::map<uint64_t, Connection> connections_;
  size_t joined_ = 0;  // of these

  int64_t gather_deadline_ns_ = 0;
  bool gathered_before_ = false;              // this gathering began with enough nodes: no last call
  std::optional<int64_t> last_call_ends_ns_;  // since min_nodes are there
  int64_t hurry_since_ns_ = 0;                // since when it settles, or has ended
  int64_t settle_ends_ns_ = 0;
  int64_t stop_deadline_ns_ = 0;
  int64_t next_ping_ns_ = 0;
  int64_t next_waiting_ns_ = 0;
  std::string waiting_said_;
  int64_t ping_id_ = 0;
  int64_t probe_id_ = 0;               // of the ping that nodes have to answer before a failure is decided
  std::vector<RankFailure> failures_;  // of the current round, in the order of arrival
  std::vector<std::string> lost_;      // nodes lost in the current round, as people name them
  std::string why_lost_;               // of the first
  std::vector<int> lost_group_ranks_;  // the same
  std::string last_stop_;              // why the last round ended
  EndMessage end_;
  Outputs outputs_;
};

}  // namespace taskd::run
