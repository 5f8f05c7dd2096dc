// Preparing a node of a mode: its plan, the ports that its command needs, signals and guard, the job's secret, manager
// and proxy, and the way to the other nodes.
#pragma once

#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "agent/modes/job_member.h"
#include "agent/modes/node_parts.h"

namespace taskd::modes {

// The plan as far as it can be known now: with the addresses that were found, and the environment as it is. PlanMode()
// has the errors.
absl::StatusOr<ModePlan> MakePlan(const NodeParts& parts);

// INVALID_ARGUMENT: a port that this node's command has to listen on is taken; the message names the process.
absl::Status CheckPorts(const ModePlan& plan);

// Before the process's first thread: blocks signals, forks the guard, makes the group.
absl::Status PrepareProcesses(NodeParts* parts, process::SignalWatch::OnSignal on_signal,
                              process::WorkerGroup::Callbacks callbacks);

// Starts the manager, if the mode puts it on this node and none serves there yet, and the proxy. UNAVAILABLE: no
// manager.
absl::Status StartDaemons(NodeParts* parts);

// Modes mpi and horovod: what MPI needs on the node. Called after parts->member was made, before JoinJob().
absl::Status StartMpi(NodeParts* parts, std::function<void(const std::string& why)> failed);
// Mode ray.
void MakeRay(NodeParts* parts);

absl::Status JoinJob(const NodeParts& parts);

}  // namespace taskd::modes
