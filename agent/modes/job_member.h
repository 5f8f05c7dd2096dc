// This node as a member of its job: what it reports to the job's manager, and what it knows about the other nodes.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "agent/modes/job_link_client.h"
#include "agent/modes/plans/mode_plan.h"
#include "common/event_loop.h"
#include "common/node_timeout.h"
#include "common/observed_clock.h"

namespace taskd::modes {

// Mode and nodes of a job in one line, equal on all its nodes; it differs on a node that was configured differently.
std::string PlanText(const ModePlan& plan);

// On the loop's thread. Without a manager (a job of one node) all nodes count as present and nothing is reported.
class JobMember {
 public:
  struct Callbacks {
    std::function<void()> state;                                   // MayStart() and the like may have changed
    std::function<void(int code, const std::string& reason)> end;  // of the job
    std::function<void(const std::string& why)> failed;            // this node cannot be part of the job
    std::function<void(const v1::MpirunCall&)> mpirun;
    std::function<void(const v1::RemoteCommand&)> remote;
  };
  struct Options {
    std::string dial;  // the manager as this node reaches it
    proto::Security security;
    std::string run_id;
    std::vector<std::string> addresses;  // names and addresses of this node
    bool hosts_manager = false;
    double node_timeout_s = kNodeTimeoutS;  // of silence; where this is not node 0, node 0's holds
    bool remote_start = false;              // this node runs commands that other nodes' mpirun asks for
  };

  // `plan` outlives this.
  JobMember(EventLoop* loop, const ModePlan* plan, Callbacks callbacks);
  ~JobMember();  // what was reported last is given a second to be sent
  JobMember(const JobMember&) = delete;
  JobMember& operator=(const JobMember&) = delete;

  absl::Status Join(const Options& options);

  bool connected() const { return connected_; }
  bool has_manager() const { return !plan_->manager.empty(); }
  bool MayStart() const;  // the condition in plan.start holds
  bool all_joined() const { return !has_manager() || state_.all_joined(); }
  bool alone() const { return client_ == nullptr || (state_.connected() <= 1); }
  std::string Missing() const;  // the nodes that MayStart() waits for, as text for people
  std::string NodeName(size_t index) const;

  void Ready();
  // The first call counts. `signal`: that this process was sent, and ends because of; 0: none.
  void Ended(int code, const std::string& reason, int signal = 0);
  void Mpirun(uint32_t number, bool ended, int code);
  void Send(v1::NodeReport report);

 private:
  void On(const v1::JobNotice& notice);
  void OnLost(const absl::Status& status);
  // Every now and then, once the manager has spoken.
  void Watch();
  void Look();
  void Fail(const std::string& why);

  EventLoop* const loop_;
  const ModePlan* const plan_;
  const Callbacks callbacks_;
  Options options_;
  std::unique_ptr<JobLinkClient> client_;
  v1::JobState state_;
  bool connected_ = false;
  bool was_connected_ = false;
  bool ended_ = false;      // reported, or of no use any more
  bool job_ended_ = false;  // after that nobody is waited for
  bool failed_ = false;
  std::string lost_why_ = "no answer yet";
  std::optional<EventLoop::TimerId> watch_timer_;
  ObservedClock clock_;   // of the next two: while this process does not run it neither reads nor connects
  int64_t heard_ns_ = 0;  // when the manager spoke last
  int64_t lost_ns_ = 0;   // since when there is no stream, where there was one
};

}  // namespace taskd::modes
