// `taskd jobs`: this user's jobs on this machine, those that run and those that have ended.
#pragma once

#include <memory>

#include "agent/commands/command_line.h"

namespace taskd::commands {

std::unique_ptr<Command> MakeJobsCommand();

}  // namespace taskd::commands
