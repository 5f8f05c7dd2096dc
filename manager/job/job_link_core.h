// How the nodes of a job that was started in a mode of `taskd run` begin together and end with one code
// (proto/taskd/v1/job_link.proto). Pure: no transport, no threads, time is given.
//
// Design:
// 1. One attempt of the job at a time. Its first node declares how many nodes there are and what the plan is.
// 2. It ends once: with the first code that is not 0, with 1 when a node's stream has been gone for too long, or with 0
//    when all nodes that somebody waits for have ended with 0. Every node of it hears that, those that come late too.
// 3. A `taskd run` that is started again shows it by a new run id. It waits until the ended attempt has no stream left.
// 4. How long a node is away or silent is counted as this object has seen it (ObservedClock): a manager that did not run
//    gives no node up for that. A node that has a stream says each 2 s that it runs; silence, as of a launcher that was
//    stopped or a machine that is moved, ends the job after node 0's --node-timeout.
// 5. What all nodes are sent about progress goes out once a second, or 2,048 nodes that join would hear of each
//    other four million times.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/observed_clock.h"
#include "manager/job/job_attempt.h"
#include "manager/job/job_messages.h"
#include "manager/job/remote_commands.h"

namespace taskd::manager {

// Not thread safe. Every call may be made at any time with any peer; what makes no sense at the moment is ignored.
// Time never runs backwards.
class JobLinkCore {
 public:
  struct Options {
    bool hosted = false;
  };

  static constexpr int64_t kComeBackNs = 5'000'000'000;                 // for a node whose stream broke
  static constexpr int64_t kRememberNs = 10'000'000'000;                // an ended attempt, from its end
  static constexpr int64_t kRememberSilentNs = 3600 * 1'000'000'000LL;  // where a silent node has not heard of it
  // Where the attempt has ended: then nobody waits for a silent node, but the next attempt for the end of its stream.
  static constexpr int64_t kSilentAfterEndNs = 8'000'000'000;
  static constexpr int64_t kStateIntervalNs = 1'000'000'000;
  static constexpr int64_t kLookNs = 1'000'000'000;

  explicit JobLinkCore(Options options) : options_(options) {}
  JobLinkCore(const JobLinkCore&) = delete;
  JobLinkCore& operator=(const JobLinkCore&) = delete;

  // Each returns what is to be sent, in this order.

  // Of nodes. `peer` is a stream's number, used once and never 0; nodes' and callers' are different ones.
  JobOutputs Join(uint64_t peer, JobJoin join, int64_t now_ns);
  JobOutputs Ready(uint64_t peer, int64_t now_ns);
  JobOutputs Ended(uint64_t peer, JobEnd end, int64_t now_ns);
  JobOutputs Mpirun(uint64_t peer, const JobMpirunCall& call, int64_t now_ns);  // of node 0
  JobOutputs Answer(uint64_t peer, RemoteAnswer answer, int64_t now_ns);
  JobOutputs Alive(uint64_t peer, int64_t now_ns);

  // Of callers. `host`: a name or address that a node of the job is known by.
  JobOutputs Call(uint64_t caller, const std::string& host, std::string command, int64_t now_ns);
  JobOutputs Input(uint64_t caller, std::string input, int64_t now_ns);
  JobOutputs InputEnd(uint64_t caller, int64_t now_ns);

  // As RemoteCommands has them.
  uint64_t Sent(uint64_t id, size_t data_bytes) { return commands_.Sent(id, data_bytes); }
  size_t queued_bytes(uint64_t caller) const { return commands_.queued_bytes(caller); }

  // The stream has ended; of a caller: its command is to end.
  JobOutputs Lost(uint64_t peer, int64_t now_ns);
  JobOutputs Tick(int64_t now_ns);
  int64_t next_tick_ns() const;  // when Tick is due at the latest
  // Whom the nodes that have joined wait for: "nodes 2, 5-7 (4 of 8 here)"; empty: for nobody.
  std::string WaitsFor() const;
  // How the attempt has ended; null: there is none, or it goes on.
  const JobEnd* end() const { return attempt_ && attempt_->end() ? &*attempt_->end() : nullptr; }

 private:
  using Node = JobAttempt::Node;
  // A node that waits for the next attempt, with what it reports meanwhile.
  struct Pending {
    uint64_t peer = 0;
    JobJoin join;
    std::vector<JobMpirunCall> mpirun;
    int64_t heard_ns = 0;
  };
  // An ended attempt that made way for the next: some of its nodes may not have heard of the end.
  struct Past {
    std::set<std::string> run_ids;
    JobEnd end;
    int64_t until_ns = 0;
  };

  Node* FindNode(uint64_t peer) { return attempt_ ? attempt_->FindPeer(peer) : nullptr; }
  std::vector<Pending>::iterator FindPending(uint64_t peer);
  void RefuseToWait(uint64_t peer);
  std::vector<Pending>::iterator ErasePending(std::vector<Pending>::iterator pending);
  void Admit(uint64_t peer, JobJoin join);
  void AdmitAgain(Node& node, uint64_t peer, JobJoin join);
  void Enter(uint64_t peer, JobJoin join);
  void Return(Node& node, uint64_t peer, JobJoin join);
  void Wait(uint64_t peer, JobJoin join);
  void Readmit();
  void Refuse(uint64_t peer, std::string text);
  void SendSoFar(Node& node);
  void TakeEnded(Node& node, JobEnd end);
  void TakeMpirun(uint64_t peer, const JobMpirunCall& call);
  void EndIfAllDone();
  void LoseWhoIsSilent();
  void ForgetWhatIsOver();
  void ForgetAttempt();
  void End(JobEnd end);
  void MakePast();
  void BeginNextIfFree();
  JobState State() const;
  void StateChanged();  // sends it at once where that is due
  void SendState();
  void DropStream(Node& node);
  // OK: the command can be started on that node.
  absl::StatusOr<const Node*> FindCalled(const std::string& host);

  void Send(uint64_t peer, JobMessage message) { outputs_.emplace_back(peer, std::move(message)); }
  JobOutputs TakeOutputs() { return std::exchange(outputs_, {}); }

  const Options options_;
  int64_t now_ns_ = 0;
  ObservedClock clock_{kLookNs};  // of the attempt's give_up_ns and empty_since_ns, and of heard_ns
  JobOutputs outputs_;
  std::optional<JobAttempt> attempt_;
  RemoteCommands commands_{&outputs_};  // on the attempt's nodes
  std::vector<Pending> pending_;        // in order of arrival; for the next attempt
  size_t pending_bytes_ = 0;            // of their joins and calls
  std::optional<Past> past_;
  bool silent_left_ = false;  // a node of the attempt was silent when it was given up, and may come back

  uint64_t version_ = 0;  // of the attempt's state
  JobProgress told_progress_ = JobProgress::kBegun;
  bool state_due_ = false;
  int64_t state_sent_ns_ = -kStateIntervalNs;
};

}  // namespace taskd::manager
