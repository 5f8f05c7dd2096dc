// `taskd run`: torchrun's command line, and the launcher behind it (run/launcher.h).
#pragma once

#include <string>
#include <vector>

#include "agent/commands/command_line.h"
#include "agent/run/options.h"
#include "common/environment.h"

namespace taskd::commands {

// `arguments`: everything after `taskd run`, unparsed. The result is the program's exit code. Before the first thread.
int RunRunCommand(const std::vector<std::string>& arguments);

// The help texts of `taskd run`, without and with --mode.
std::vector<OwnHelp> RunHelps();

// The launcher, with what it needs of TaskD. `environment`: of `taskd run`.
int LaunchRanks(run::RunOptions options, Environment environment);

}  // namespace taskd::commands
