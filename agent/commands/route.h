// `taskd route`: plans the order of a job's nodes from its rank table and a topology, and writes it down. modes-routing
// §4.
#pragma once

#include <memory>

#include "agent/commands/command_line.h"

namespace taskd::commands {

std::unique_ptr<Command> MakeRouteCommand();

}  // namespace taskd::commands
