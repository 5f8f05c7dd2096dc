// `taskd run` on one node: joins the job, runs the ranks that the rendezvous assigns, and ends with the job's code.
#pragma once

#include <map>
#include <string>

#include "agent/run/launcher_observer.h"
#include "agent/run/options.h"

namespace taskd::run {

// Once a process, before its first thread: blocks signals and forks the guard. `environment`: the launcher's own, which
// the ranks inherit. The result is the exit code of the program; everything that people have to know went to stderr.
int RunLauncher(RunOptions options, std::map<std::string, std::string> environment, LauncherObserver& observer);

}  // namespace taskd::run
