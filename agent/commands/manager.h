// `taskd manager`: the job's manager, in the foreground.
#pragma once

#include <memory>

#include "agent/commands/command_line.h"

namespace taskd::commands {

std::unique_ptr<Command> MakeManagerCommand();

}  // namespace taskd::commands
