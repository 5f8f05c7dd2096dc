// `taskd status`: nodes, ranks, switch state, marks written and lost, overhead.
#pragma once

#include <memory>

#include "agent/commands/command_line.h"

namespace taskd::commands {

std::unique_ptr<Command> MakeStatusCommand();

}  // namespace taskd::commands
