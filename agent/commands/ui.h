// `taskd ui`: the address of the manager's page.
#pragma once

#include <memory>

#include "agent/commands/command_line.h"

namespace taskd::commands {

std::unique_ptr<Command> MakeUiCommand();

}  // namespace taskd::commands
