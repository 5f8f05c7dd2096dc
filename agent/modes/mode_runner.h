// One node of a job in a mode of `taskd run`: waits for the other nodes as its mode requires, starts the processes of
// its plan, and ends with the job's exit code. Contract: modes-routing §1, "A job, really run".
#pragma once

#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "agent/modes/plans/mode_plan.h"
#include "proto/security.h"

namespace taskd::modes {

struct ModeRun {
  ModeOptions options;
  Environment environment;  // of `taskd run`
  // The facts of this machine, except host names, which are resolved asynchronously.
  ModeMachine machine;
  proto::Security security;  // what the operator gave
  std::string program;       // this one
};

// Once a process, before its first thread: blocks signals and forks the guard. The result is the exit code; everything
// that people have to know went to stderr. 2: nothing was done.
int RunMode(ModeRun run);

}  // namespace taskd::modes
