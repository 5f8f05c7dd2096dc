// What the manager knows and decides, without transport, clock or disk: those come in as parameters.
//
// Design:
// 1. There is one wanted state. Each change of it gets the next revision, is kept (`Persist`) and then told to every
//    connected node and subscriber, in the order of revisions.
// 2. A node is told the newest state only. A rank has answered a revision once its proxy says that its gate holds that
//    revision or a newer one, or that it cannot be switched.
// 3. Two locks. `change_mutex_` is held over keeping and telling a change, so a slow disk delays only other changes,
//    for as long as `Persist` takes; what it could not keep in time it says, and RetryPersist asks again. `mutex_`
//    guards everything else, for microseconds; sinks are called under it.
// 4. A node that has gone is remembered for kForgetGoneAfter, one that belongs to the job's shape for good. Of all that
//    is known there is a sum (kMaxNodes, kMaxKnownRanks); what goes above it makes room by forgetting the nodes that
//    have been gone longest, and is refused when all others are here.
// 5. `done` callbacks are called exactly once, without any lock, in the thread that brought the last answer (or that
//    called Wait, Expire, ... ).
//
// Every function may be called from any thread.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/node_identity.h"
#include "common/observed_clock.h"
#include "common/rank_report.h"
#include "common/switch.h"
#include "manager/switch/agent_calls.h"
#include "marks/mark_files.h"

namespace taskd::manager {

using SteadyTime = std::chrono::steady_clock::time_point;

inline constexpr int kMaxNodes = 65536;
inline constexpr int kMaxRanksPerNode = 4096;
inline constexpr int kMaxExpectedRanks = 131072;
inline constexpr int kMaxRankNumber = 1 << 30;    // of whatever launcher; so that one can count on from it
inline constexpr size_t kMaxKnownRanks = 131072;  // of all nodes, those that have gone too
inline constexpr std::chrono::minutes kForgetGoneAfter{10};
// A connected proxy says something each second.
inline constexpr std::chrono::seconds kSilent{5};          // from then on people are told
inline constexpr std::chrono::seconds kSilentTooLong{20};  // its stream is closed; a proxy that runs opens another
inline constexpr size_t kMaxTextBytes = 256;               // host, identity, version; reasons are cut there

// What was given on the command line. job: namespace/name, empty: any. nodes, procs_per_node: 0 if not known.
struct JobShape {
  std::string job;
  std::string task_id;
  int nodes = 0;
  int procs_per_node = 0;
  // What people are shown where `job` is empty; calls that name another job are answered all the same.
  std::string called = {};
  // The scheduler's names of the job's nodes; none: it has no list of them, and each node's word counts.
  std::optional<std::set<std::string>> node_names = {};

  const std::string& name() const { return job.empty() ? called : job; }
};

// What a manager's successor must know.
struct KeptState {
  SwitchState wanted;
  // The last content that the file and ClusterD gave: hearing the same again after a restart is not a new command.
  std::optional<SwitchChange> last_file;
  std::optional<SwitchChange> last_clusterd;

  friend bool operator==(const KeptState&, const KeptState&) = default;
};

// taskd.v1.NodeHello.
struct NodeHello {
  int node_rank = 0;
  std::string host, identity, version;
  std::optional<MarkFiles> mark_files = std::nullopt;  // an older proxy does not say it
  bool says_alive = false;
  NodeIdentity named = {};  // its host is `host`
};

// The way to one node's stream. Called under the core's lock: only takes note, never calls the core, never blocks.
class NodeSink {
 public:
  virtual void Wanted(const SwitchState& state) = 0;  // replaces one that was not sent yet
  virtual void Call(const AgentCall& call) = 0;
  virtual void Close(const std::string& reason) = 0;  // the core has forgotten the stream

 protected:
  ~NodeSink() = default;
};

// The way to one subscriber of the switch; same rules.
class ChangeSink {
 public:
  virtual void Changed(const SwitchState& state) = 0;  // every one, in order
  virtual void Close() = 0;

 protected:
  ~ChangeSink() = default;
};

struct JobSnapshot {
  struct Node {
    int node = 0;
    std::string host;
    bool connected = false;
    std::vector<RankReport> ranks;  // by rank
    std::optional<MarkFiles> mark_files = std::nullopt;
    std::string pod = {};            // empty: not in a pod
    std::string node_name = {};      // what the scheduler calls it; empty: nothing that may be used
    std::string name_refusal = {};   // then why
    std::chrono::seconds silent{0};  // connected and without a word, as a proxy that was stopped; 0: below kSilent
  };
  SwitchState wanted;
  // By node rank. Of a rank that several connected nodes report as attached, the first one to do so has it; with the
  // others it is not attached, and the reason says who has it.
  std::vector<Node> nodes;
  // By all ranks since the manager began, those that are forgotten too. They never fall.
  std::array<uint64_t, kNumMarkCounts> marks_total{};
  uint64_t lost_total = 0;
};

// A rank that lives.
struct RankPulse {
  int rank = 0;
  int pid = 0;
  int64_t step = -1;  // of the newest that ended; -1: none
  double step_ms = 0;
  std::array<uint64_t, kNumMarkCounts> marks{};
  // As in RankReport.
  uint64_t stopped_ms = 0;
  uint64_t recorded = 0;
  uint64_t cpu_busy_ms = 0;
  uint64_t io_busy_ms = 0;
  bool left_loop = false;
  bool steps_on = true;  // by what it has applied of the switch
  OpenPhase open = {};
};

// What can be seen of the ranks that live: the nodes that are connected and not silent have them.
struct JobPulse {
  SwitchState wanted;
  bool is_seen = false;          // there is such a node
  std::vector<RankPulse> ranks;  // each once, as JobSnapshot has it
};

class ManagerCore {
 public:
  // Makes a state last. Called in order of revisions, by one thread at a time.
  using Persist = std::function<absl::Status(const KeptState&)>;

  ManagerCore(JobShape shape, const KeptState& kept, Persist persist);
  ManagerCore(const ManagerCore&) = delete;
  ManagerCore& operator=(const ManagerCore&) = delete;

  const JobShape& shape() const { return shape_; }
  SwitchState wanted() const;

  // Changes of the wanted state; by ClusterD's rule or kind by kind (common/switch.h). Return the new state.
  SwitchState ChangeDomains(const SwitchChange& change);
  SwitchState ChangeKinds(const SwitchChange& change);
  // The file's content. Nothing happens if it is what the file said last.
  void ApplySwitchFile(const SwitchChange& change);
  // A message from ClusterD. `may_be_replay`: it may only repeat what was said before a reconnect; then nothing happens
  // if it is what ClusterD said last.
  void ApplyClusterdSwitch(const SwitchChange& change, bool may_be_replay);
  // Tries again to keep a state that could not be kept. Cheap when there is none.
  void RetryPersist();

  // Calls `done` when every attached rank of the nodes connected now has answered `revision`, or its node has gone, or
  // Expire was called. Returns the waiter's id, 0 if `done` was called already.
  uint64_t Wait(uint64_t revision, std::function<void()> done);
  void Expire(uint64_t waiter);
  // Every rank's answer, by rank: reported ranks and expected ones. Times count from `since`; `waited_s` is for the
  // text.
  std::vector<RankAnswer> Answers(uint64_t revision, SteadyTime since, double waited_s) const;

  // Takes a node's stream and tells it the wanted state. Returns the stream's id, never 0. A stream of the same node
  // rank and identity is closed. INVALID_ARGUMENT: a bad hello; RESOURCE_EXHAUSTED: too many nodes; UNAVAILABLE:
  // closed.
  absl::StatusOr<uint64_t> Connect(NodeHello hello, NodeSink* sink);
  // All ranks of the node. INVALID_ARGUMENT: too many ranks, a negative, double or huge one; RESOURCE_EXHAUSTED: more than
  // kMaxKnownRanks with those of the other connected nodes; in both nothing was taken.
  absl::Status Report(uint64_t stream, std::vector<RankReport> ranks, SteadyTime now);
  // The proxy's word that it switched its ranks.
  void Applied(uint64_t stream, uint64_t revision, const std::vector<RankAnswer>& ranks, SteadyTime now);
  void SetMarkFiles(uint64_t stream, MarkFiles files);
  void AgentReplied(uint64_t stream, uint64_t call, bool ok, std::string message);
  // Something came, whatever it was.
  void Heard(uint64_t stream);
  // After it the stream's sink is not called any more. Unknown streams are ignored.
  void Disconnect(uint64_t stream);
  // To be called once a second: forgets nodes that have gone, and closes the streams of proxies that are silent. Time
  // in which it was not called is nobody's silence.
  void Look(SteadyTime now);

  // Replays the present state to `sink` and tells it each change until Unsubscribe. False: the core is closed.
  bool Subscribe(ChangeSink* sink);
  void Unsubscribe(ChangeSink* sink);

  // Calls the agents of `nodes` (empty: of all); `done` gets one answer a node, by node. Returns the call's id, 0 if
  // `done` was called already. INVALID_ARGUMENT from CheckAgentCall is the caller's to ask for first.
  uint64_t CallAgents(AgentCall call, const std::vector<int>& nodes, AgentCalls::Done done);
  void ExpireCall(uint64_t call);

  JobSnapshot Snapshot() const;
  JobPulse Pulse() const;
  // How the node of that rank on that host is called; its name is empty where it may not be used (node_names.h), its
  // machine always. Empty where no such node is known.
  std::optional<NodeIdentity> Identify(int node, const std::string& host) const;

  // Ends every stream, subscription and wait, and takes no new ones.
  void Close();

 private:
  struct Rank {
    RankReport report;
    uint64_t attached_as = 0;        // a number that goes up with each rank that attaches; 0: it is not attached
    uint64_t answered_revision = 0;  // the newest one; of an attached rank only
    SteadyTime answered_at;
    std::string failure;  // not empty: the answer was "cannot"

    int number() const { return report.rank; }
  };
  using Ranks = std::vector<Rank>;              // by number
  static Rank* Find(Ranks& ranks, int number);  // null: it is not there
  struct Node {
    NodeHello hello;
    uint64_t stream = 0;  // 0: not connected
    NodeSink* sink = nullptr;
    int64_t heard_ns = 0;            // of clock_
    bool outran = false;             // this stream was already found ahead of us
    uint64_t answered_revision = 0;  // the newest that the proxy itself has answered on this stream
    Ranks ranks;
    mutable std::string name_refusal;      // while names_settled_
    uint64_t gone = 0;                     // its place in gone_, 0 while it is connected
    std::optional<SteadyTime> gone_since;  // as of the first Look afterwards
  };
  using NodeKey = std::pair<int, std::string>;  // node rank, identity
  using Nodes = std::map<NodeKey, Node>;
  struct Waiter {
    uint64_t revision;
    std::set<const Node*> pending;
    std::function<void()> done;
  };
  using Callbacks = AgentCalls::Callbacks;

  // `edit` changes a copy of the kept state and says whether there is anything to do.
  SwitchState Change(const std::function<bool(KeptState&)>& edit, bool tell_subscribers);
  void PersistHeldChange(const KeptState& state);
  void GoAbove(uint64_t revision);

  static absl::Status CheckHello(const NodeHello& hello);
  // Room for a node that is new. RESOURCE_EXHAUSTED: there is none.
  absl::Status MakeRoomFor(const NodeHello& hello);
  // Sorts them by number and cuts texts. INVALID_ARGUMENT: as Report says.
  static absl::Status CheckReports(std::vector<RankReport>& reports);
  // The ranks of those numbers, of which each keeps what is known of it.
  static void SetNumbers(const std::vector<RankReport>& reports, Ranks& ranks);
  // Forgets the nodes that have been gone longest, until `node` may have `ranks`. RESOURCE_EXHAUSTED: that is not
  // enough, and nobody was forgotten.
  absl::Status MakeRoomForRanks(const Node& node, size_t ranks);
  // Both return the revision that the rank holds where that is none of ours, else 0.
  uint64_t TakeReport(Rank& rank, RankReport report, SteadyTime now);
  // What the rank has answered, by what it had answered before and what its report says.
  uint64_t TakeAnswer(Rank& rank, SteadyTime now) const;
  // The ranks that some node knows, each with the node whose word counts.
  struct Holder {
    const Node* node;
    const Rank* rank;
    int score;
  };
  std::map<int, Holder> Holders() const;
  static RankAnswer AnswerOf(int number, const Holder& holder, uint64_t revision, SteadyTime since, double waited_s);

  Node* FindStream(uint64_t stream);
  void SettleNames() const;

  static bool Settled(const Node& node, uint64_t revision);
  // Moves the waits and calls that are over into `callbacks`.
  void SettleWaiters(const Node& node, Callbacks& callbacks);
  void DropStream(Node& node, Callbacks& callbacks);
  // Of a connected node.
  std::chrono::seconds SilenceOf(const Node& node) const;
  // Forgets a node that is not connected.
  Nodes::iterator Forget(Nodes::iterator node);
  void ForgetGone(SteadyTime now);
  bool ForgetLongestGone();  // false: all are connected
  static std::string NotConnected(int node);

  const JobShape shape_;
  const Persist persist_;

  std::mutex change_mutex_;
  bool persist_failed_ = false;  // guarded by change_mutex_

  mutable std::mutex mutex_;  // guards all below
  ObservedClock clock_{std::chrono::nanoseconds(std::chrono::seconds(1)).count()};
  KeptState kept_;
  bool closed_ = false;
  uint64_t next_id_ = 1;
  Nodes nodes_;
  mutable bool names_settled_ = false;
  size_t known_ranks_ = 0;                              // of all nodes_
  std::map<uint64_t, NodeKey> gone_;                    // in the order in which they went
  std::array<uint64_t, kNumMarkCounts> marks_total_{};  // JobSnapshot::marks_total
  uint64_t lost_total_ = 0;
  std::unordered_map<uint64_t, Node*> streams_;
  std::set<ChangeSink*> subscribers_;
  std::map<uint64_t, Waiter> waiters_;
  AgentCalls calls_;
};

// INVALID_ARGUMENT unless it is namespace/name: one slash, neither part empty, at most 512 bytes of UTF-8.
absl::Status CheckJobName(const std::string& job);

}  // namespace taskd::manager
