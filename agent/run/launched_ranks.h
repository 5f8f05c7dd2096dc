// The ranks of this node: started per assignment, watched and ended. Also what the manager may ask the node's
// agent for: it can end the ranks and start them again in their place in the job ("held" in between).
#pragma once

#include <sys/types.h>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "agent/process/guard.h"
#include "agent/process/worker_group.h"
#include "agent/run/agent_line.h"
#include "agent/run/launcher_event.h"
#include "agent/run/options.h"
#include "agent/run/rendezvous_messages.h"
#include "agent/run/worker_env.h"
#include "common/address.h"
#include "common/event_loop.h"

namespace taskd::run {

// On the loop's thread.
class LaunchedRanks {
 public:
  struct Callbacks {
    std::function<void(const LauncherEvent&)> event;  // kStarted and kExited
    // A rank has failed. `log_folder`: of the rank; empty: it has none. Not after Stop().
    std::function<void(const process::WorkerExit&, std::string log_folder)> failed;
    std::function<void()> succeeded;  // all have. Not after Stop()
    std::function<void()> stopped;    // nothing of them runs any more: after Stop(), and when the manager ended them
    std::function<void(pid_t pid, int wait_status)> other_exit;  // of a child of this process that is no rank
    std::function<absl::Status()> restart;                       // the manager asks for it, for all nodes
  };

  // Before the process's first thread, and after its signals were blocked: forks the guard. `options` and `loop` outlive
  // the result. `environment`: the launcher's own. `host`: this node, as people call it.
  static absl::StatusOr<std::unique_ptr<LaunchedRanks>> Create(EventLoop* loop, const RunOptions* options,
                                                               std::map<std::string, std::string> environment,
                                                               std::string host, Callbacks callbacks);
  LaunchedRanks(const LaunchedRanks&) = delete;
  LaunchedRanks& operator=(const LaunchedRanks&) = delete;

  // Before the first Start(), until it succeeds: makes the folder for logs. `store`: MASTER_ADDR and MASTER_PORT.
  absl::Status Prepare(const HostPort& store);
  // `extra`: added to the environment of each rank, wins over everything. Not while ranks run.
  absl::Status Start(const Assignment& assignment, std::map<std::string, std::string> extra);

  std::map<int, pid_t> pids() const { return group_->pids(); }  // local rank -> pid, of those that run
  // The exit code of the rank that has ended last in this round before Stop(); none: none has.
  std::optional<int> ended_by_itself() const { return ended_by_itself_; }
  const LogFolder& logs() const { return context_.logs; }

  const process::Guard& guard() const { return *guard_; }

  // WorkerGroup's.
  void Spare(pid_t pid) { group_->Spare(pid); }
  void Signal(int signal) { group_->Signal(signal); }
  void Stop(int first_signal);

  // From now on the manager cannot ask for anything.
  void CloseAgentLine() { agent_line_.reset(); }

 private:
  LaunchedRanks(EventLoop* loop, const RunOptions* options, Callbacks callbacks);

  absl::Status StartWorkers(const std::vector<process::WorkerSpec>& workers);
  void OnExit(const process::WorkerExit& exit);
  void OnStopped();
  std::string LogFolderOf(int local_rank) const;
  void Report(LauncherEvent event);

  AgentOperations Operations();
  void EndForManager(AgentOperations::Done done);
  absl::Status StartForManager(const std::vector<int>& local_ranks);

  EventLoop* const loop_;
  const RunOptions* const options_;
  const Callbacks callbacks_;
  WorkerContext context_;
  std::unique_ptr<process::Guard> guard_;
  std::unique_ptr<process::WorkerGroup> group_;
  std::unique_ptr<AgentLine> agent_line_;

  Assignment assignment_;  // of the newest Start()
  bool running_ = false;   // from Start() to Stop()
  std::optional<int> ended_by_itself_;
  int left_ = 0;                                      // ranks that have not succeeded
  std::map<int, AgentOperations::RankState> states_;  // by local rank
  bool held_ = false;                                 // the manager has ended the ranks: that is no failure
  std::vector<AgentOperations::Done> when_stopped_;
};

}  // namespace taskd::run
