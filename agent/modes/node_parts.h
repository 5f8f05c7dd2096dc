// What a node of a mode consists of while it runs. Made one after another: mode_runner.cc, node_setup.cc; used by the
// steps that start its command (start_steps.h) and by what ends it (node_end.h).
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "agent/modes/job_member.h"
#include "agent/modes/mode_run.h"
#include "agent/modes/mpi/mpi_node.h"
#include "agent/modes/patience.h"
#include "agent/modes/plans/mode_plan.h"
#include "agent/modes/ray_node.h"
#include "agent/process/child_processes.h"
#include "agent/process/daemons.h"
#include "agent/process/guard.h"
#include "agent/process/signals.h"
#include "agent/process/worker_group.h"
#include "common/event_loop.h"

namespace taskd::modes {

// In the order in which each needs those before it. On the loop's thread.
struct NodeParts {
  explicit NodeParts(ModeRun given) : run(std::move(given)) {}

  // Of a process of the node: `taskd run`'s, what the mode sets, what TaskD's own parts add.
  Environment CommandEnvironment(const Environment& of_mode) const;
  // Whether mpirun starts its processes on other nodes through `taskd rsh`.
  bool UsesTaskdRsh() const;

  ModeRun run;
  EventLoop loop;
  // Every wait for other nodes; calls `wait_is_over` when one takes too long.
  std::function<void(const std::string& line)> wait_is_over;
  Patience patience{&loop, run.options.wait_s, [this](const std::string& line) { wait_is_over(line); }};

  ModePlan plan;
  std::map<std::string, std::string> addresses;  // of the names in the plan that did not resolve at first

  std::unique_ptr<process::SignalWatch> signals;
  std::string cookie;  // the guard's
  std::unique_ptr<process::Guard> guard;
  std::unique_ptr<process::WorkerGroup> group;
  std::unique_ptr<process::ChildProcesses> children;

  std::unique_ptr<process::Daemons> daemons;
  std::string dial;  // the manager, as this node reaches it; empty: one node
  bool hosts_manager = false;
  std::unique_ptr<JobMember> member;
  std::unique_ptr<MpiNode> mpi;  // modes mpi and horovod
  std::unique_ptr<RayNode> ray;  // mode ray
};

}  // namespace taskd::modes
