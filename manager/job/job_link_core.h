// How the nodes of a job that was started in a mode of `taskd run` begin together and end with one code
// (proto/taskd/v1/job_link.proto). Pure: no transport, no threads, time is given.
//
// Design:
// 1. One attempt of the job at a time. Its first node says how many nodes there are and what the plan is.
// 2. It ends once: with the first code that is not 0, with 1 when a node's stream has been gone for too long, or with 0
//    when all nodes that somebody waits for have ended with 0. Every node of it hears that, those that come late too.
// 3. A `taskd run` that is started again says so by a new run id. It waits until the ended attempt has no stream left.
// 4. What all nodes are told about progress goes out once a second, or 2,048 nodes that join would be told of each
//    other four million times.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace taskd::manager {

// taskd.v1.NodeEnded and JobEnd.
struct JobEnd {
  int code = 0;  // 0..255
  std::string reason;
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

// taskd.v1.JobState.
struct JobState {
  bool first_joined = false;
  bool all_joined = false;
  bool all_ready = false;
  uint32_t missing_count = 0;
  std::vector<uint32_t> missing;
  bool hosted = false;
  uint32_t connected = 0;
};

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

// Not thread safe. Every call may be made at any time with any peer; what makes no sense at the moment is ignored.
// Time never runs backwards.
class JobLinkCore {
 public:
  struct Options {
    bool hosted = false;
  };
  using Message = std::variant<JobState, JobEnd, JobRefusal, JobMpirunCall, RemoteOrder, RemoteAnswer, StreamEnd>;
  // To be sent to `peer`, in this order. After JobRefusal and StreamEnd the core has forgotten the peer.
  struct Output {
    uint64_t peer = 0;
    Message message;
  };
  using Outputs = std::vector<Output>;

  static constexpr uint32_t kMaxNodes = 65536;
  static constexpr size_t kMaxMissingListed = 16;
  static constexpr size_t kMaxAddresses = 64;
  static constexpr size_t kMaxNameBytes = 256;  // names, addresses and run ids: beyond it the join is refused
  static constexpr size_t kMaxPlanBytes = 4096;
  static constexpr size_t kMaxJoinBytes = size_t{64} << 20;  // of all joins of an attempt, or for the next
  static constexpr size_t kMaxTextBytes = 1024;              // reasons are cut there
  static constexpr size_t kMaxMpirunEvents = 131072;
  static constexpr size_t kMaxQueuedBytes = size_t{16} << 20;  // of one remote command, both directions
  static constexpr int64_t kComeBackNs = 5'000'000'000;        // for a node whose stream broke
  static constexpr int64_t kRememberNs = 10'000'000'000;       // an ended attempt, from its end
  static constexpr int64_t kStateIntervalNs = 1'000'000'000;

  explicit JobLinkCore(Options options) : options_(options) {}

  // Of nodes. `peer` is a stream's number, used once and never 0; nodes' and callers' are different ones.
  Outputs Join(uint64_t peer, JobJoin join, int64_t now_ns);
  Outputs Ready(uint64_t peer, int64_t now_ns);
  Outputs Ended(uint64_t peer, JobEnd end, int64_t now_ns);
  Outputs Mpirun(uint64_t peer, const JobMpirunCall& call, int64_t now_ns);  // of node 0
  Outputs Answer(uint64_t peer, RemoteAnswer answer, int64_t now_ns);

  // Of callers. `host`: a name or address that a node of the job is known by.
  Outputs Call(uint64_t caller, const std::string& host, std::string command, int64_t now_ns);
  Outputs Input(uint64_t caller, std::string input, int64_t now_ns);
  Outputs InputEnd(uint64_t caller, int64_t now_ns);

  // A RemoteOrder or RemoteAnswer with `data_bytes` of data has left this process. Returns the command's caller, 0 if
  // it is over.
  uint64_t Sent(uint64_t id, size_t data_bytes);
  size_t queued_bytes(uint64_t caller) const;  // 0 for unknown ones

  // The stream has ended; of a caller: its command is to end.
  Outputs Lost(uint64_t peer, int64_t now_ns);
  Outputs Tick(int64_t now_ns);
  int64_t next_tick_ns() const;  // when Tick is due at the latest

 private:
  struct Node {
    JobJoin info;                              // with what it reported since
    uint64_t peer = 0;                         // 0: no stream now
    int64_t give_up_ns = 0;                    // where it has none and somebody minds: then it counts as failed
    uint64_t told_version = 0;                 // of the state
    std::set<uint64_t> commands;               // ids that run there
    std::vector<uint64_t> lost_commands = {};  // to be cancelled when it is back: their callers have given up
  };
  struct Pending {
    uint64_t peer = 0;
    JobJoin join;
    std::vector<JobMpirunCall> mpirun;
  };
  struct Attempt {
    uint32_t nodes = 0;
    std::string plan;
    uint32_t first = 0;               // index of the node that came first
    std::map<uint32_t, Node> joined;  // by index
    std::set<uint32_t> not_joined;    // of 0..nodes-1
    std::set<uint32_t> not_ready;     // those that serve, of those that have joined
    std::set<uint32_t> awaited;       // those that do not serve and have not ended, of those that have joined
    uint32_t connected = 0;
    size_t bytes = 0;  // of the joins
    std::vector<JobMpirunCall> mpirun;
    std::set<std::pair<uint32_t, bool>> mpirun_known;  // number, ended
    int64_t empty_ns = 0;                              // since when nobody is connected
    std::optional<JobEnd> end;
    int64_t end_ns = 0;
  };
  // An ended attempt that made way for the next: some of its nodes may not have heard of the end.
  struct Past {
    std::set<std::string> run_ids;
    JobEnd end;
    int64_t until_ns = 0;
  };
  struct Command {
    uint64_t caller = 0;
    uint32_t index = 0;  // of the node
    bool input_ended = false;
    size_t queued_bytes = 0;
  };

  Node* FindNode(uint64_t peer);
  std::vector<Pending>::iterator FindPending(uint64_t peer);
  void ErasePending(std::vector<Pending>::iterator pending);
  void Admit(uint64_t peer, JobJoin join);
  void Enter(uint64_t peer, JobJoin join);
  void Return(Node& node, uint64_t peer, JobJoin join);
  void Wait(uint64_t peer, JobJoin join);
  void Readmit();
  void Refuse(uint64_t peer, std::string text);
  std::string WhyRefused(const JobJoin& join) const;  // empty: it fits the attempt
  void TellSoFar(Node& node);
  void TakeReady(Node& node);
  void TakeEnded(Node& node, JobEnd end);
  void TakeMpirun(uint64_t peer, const JobMpirunCall& call);
  void EndIfAllDone();
  void ForgetWhatIsOver();
  void End(int code, std::string reason);
  void BeginNextIfFree();
  JobState State() const;
  void StateChanged();  // tells it at once where that is due
  void TellState();
  void DropStream(Node& node);
  void DropFromLost(Node& node);

  absl::StatusOr<uint32_t> FindHost(const std::string& host) const;
  void EndCommand(uint64_t id);  // forgets it
  void FailCommand(uint64_t id, const absl::Status& status);
  void Queue(uint64_t id, uint64_t peer, Message message, size_t data_bytes);
  void Cancel(uint64_t id, const Command& command);

  void Send(uint64_t peer, Message message) { outputs_.push_back({peer, std::move(message)}); }
  Outputs TakeOutputs() { return std::exchange(outputs_, {}); }

  const Options options_;
  int64_t now_ns_ = 0;
  std::optional<Attempt> attempt_;
  std::vector<Pending> pending_;  // in order of arrival; for the next attempt
  size_t pending_bytes_ = 0;      // of their joins
  std::optional<Past> past_;
  std::map<uint64_t, uint32_t> peers_;           // the attempt's streams: index of the node
  std::set<std::pair<int64_t, uint32_t>> lost_;  // when nodes without a stream are given up

  uint64_t version_ = 0;  // of the attempt's state
  bool first_told_ = false, all_joined_told_ = false, all_ready_told_ = false;
  bool state_due_ = false;
  int64_t state_told_ns_ = -kStateIntervalNs;

  uint64_t next_id_ = 1;
  std::map<uint64_t, Command> commands_;  // by id
  std::map<uint64_t, uint64_t> callers_;  // their command's id
  Outputs outputs_;
};

}  // namespace taskd::manager
