// `taskd run --route`: renumbers the nodes along the switches before CMD starts, all of them or none.
#pragma once

#include <functional>
#include <string>

#include "absl/status/status.h"
#include "agent/modes/plans/mode_plan.h"
#include "agent/process/child_processes.h"
#include "common/input_budget.h"

namespace taskd::modes {

struct RouteStepOptions {
  std::string program;  // this one
  std::string folder;   // of this run's own, for what the plan writes
  std::string dial;     // the manager, as this node reaches it; empty: one node
  std::string self;     // --self; empty: the platform's name for this node
  std::string rank_table, topology;
  double wait_s = 300;
  int max_input_mb = kDefaultInputMb;
};

// This node in the rank table: `given`, else MA_CURRENT_IP, MA_CURRENT_HOST_IP, NAME (the pod's, as the requirement's
// pod names it), else the machine's name.
std::string RouteSelf(const std::string& given, const Environment& environment);

// Runs `taskd route --agree`; `done` gets what it ended with. OK: the files are in the folder.
absl::Status StartRouteStep(const RouteStepOptions& options, const ModePlan& plan, const Environment& environment,
                            process::ChildProcesses* children, std::function<void(absl::Status)> done);

// Applies the plan to this node: to the environment of its processes (RANK_AFTER_ACC, MA_MASTER_INDEX, and what its
// mode derives from the rank) and to its arguments. `address`: of a node's name. Modes torch, pytorch-gpu and ascend.
absl::Status ApplyRoute(const std::string& folder, const std::function<std::string(const std::string&)>& address,
                        ModePlan* plan);

}  // namespace taskd::modes
