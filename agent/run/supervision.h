// What `taskd run` adds to its launcher so that the manager hears of the job, and so that a hang is looked into before
// anything is ended: the launcher of group rank 0 reports events and hears of hangs, every launcher gives its ranks a
// folder for their stacks and collects them.
//
// A hang, in a thread of its own: stacks of all ranks are asked for, waited for (5 s) and merged; they go to the log,
// to a file and to the manager; only then comes the action.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "agent/run/launcher.h"
#include "agent/run/supervision_client.h"
#include "agent/stacks/stack_collector.h"

namespace taskd {

// Thread safety: any thread.
class RunSupervision {
 public:
  struct Options {
    Security security;
    double hang_factor = 10;             // 0: never a hang (RunOptions)
    double hang_floor_s = 0;             // 0: the manager's own
    std::string hang_action = "report";  // report, restart, stop
    std::string file_folder;             // for the whole stacks; empty: the runtime folder's "stacks"
    std::string stack_folder;            // made for stacks under way; empty, or it cannot be made: a fresh one
  };
  // What a launcher can be asked for, from any thread. Each may be empty.
  struct Control {
    std::function<void(int id)> collect_stacks;  // of all nodes; on_stacks answers
    std::function<void(const std::string& reason)> restart;
    std::function<void(const std::string& reason)> stop;
  };

  explicit RunSupervision(const Options& options);
  ~RunSupervision();  // what is queued is given a second to be sent
  RunSupervision(const RunSupervision&) = delete;
  RunSupervision& operator=(const RunSupervision&) = delete;

  // Adds to the hooks, after what they do already. The hooks must not outlive this object.
  void AddTo(LauncherHooks* hooks);
  // The job's, where the options have none; before the first assignment.
  void SetSecret(const std::string& secret);
  void SetControl(Control control);

  // The folder that ranks get as TASKD_STACK_DIR; empty where none could be made.
  const std::string& stack_folder() const { return folder_; }

 private:
  void OnEvent(const std::string& json);
  void OnAssignment(const Assignment& assignment);
  void OnNotice(const v1::HangNotice& notice);
  void OnStacks(int id, const std::string& text);
  std::string Collect(const std::map<int, pid_t>& pids);
  std::vector<RankStacks> Gather(int id, int nodes);
  std::string WriteFile(const v1::HangNotice& notice, const std::string& text);

  Options options_;
  std::string folder_;

  std::mutex mutex_;  // guards from here
  std::condition_variable changed_;
  bool stopping_ = false;
  Control control_;
  Assignment assignment_;
  int started_round_ = -1;                           // that was reported
  std::vector<v1::SupervisionEvent> early_;          // from before there was a client
  std::map<int, std::vector<std::string>> answers_;  // by id: one text a node
  int waiting_for_ = -1;
  std::unique_ptr<SupervisionClient> client_;
};

}  // namespace taskd
