// The way of a node of a mode until its command runs, one step after the other.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "agent/modes/node_end.h"
#include "agent/modes/node_parts.h"
#include "agent/modes/reach.h"

namespace taskd::modes {

// On the loop's thread. A step that is not this node's is over at once; one that fails ends the node (node_end.h).
class StartSteps {
 public:
  // All outlive this. `meet`: makes parts->daemons and parts->member, and joins the job.
  StartSteps(NodeParts* parts, NodeEnd* end, std::function<absl::Status()> meet);
  ~StartSteps() { Stop(); }
  StartSteps(const StartSteps&) = delete;
  StartSteps& operator=(const StartSteps&) = delete;

  // `has_plan`: parts->plan is there; else the rank table is waited for first.
  void Begin(bool has_plan);
  void OnJobState();  // of the manager's: who is there
  void Stop();        // whatever is under way; nothing comes afterwards

 private:
  struct Step {
    const char* name;
    void (StartSteps::*begin)();
  };
  static const Step kSteps[];

  void Next();

  void WaitForRankTable();
  void WaitForNames();
  void Meet();
  void StartRay();
  void WaitForOthers();
  void WaitForRemoteStart();
  void PlanRoute();
  void StartCommand();

  void OnNames(std::map<std::string, std::string> found);
  void OnRayHead();
  void OnRayStarted(int code);
  void OnRoute(absl::Status planned, const std::string& folder);
  absl::Status TakeRoute(const std::string& folder);
  // False: there is none, and the node ends with what is wrong.
  bool TakePlan(absl::StatusOr<ModePlan> plan);

  NodeParts* const parts_;
  NodeEnd* const end_;
  const std::function<absl::Status()> meet_;
  size_t next_ = 0;  // of kSteps
  bool has_plan_ = false;
  std::string rank_table_missing_;  // why there is no plan yet
  std::optional<EventLoop::TimerId> rank_table_timer_;
  std::unique_ptr<NameWait> names_;
  bool waits_for_others_ = false;
};

}  // namespace taskd::modes
