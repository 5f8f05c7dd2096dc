// One node of a job in a mode of `taskd run`: waits for the other nodes as its mode requires, starts the processes of
// its plan, and ends with the job's exit code. Contract: modes-routing §1, "A job, really run".
#pragma once

#include "agent/modes/mode_run.h"

namespace taskd::modes {

// Once a process, before its first thread: blocks signals and forks the guard. The result is the exit code; everything
// that people have to know went to stderr. 2: nothing was done.
int RunMode(ModeRun run);

}  // namespace taskd::modes
