// `taskd act`: the decisions on slow nodes.
#pragma once

#include <memory>

#include "agent/commands/command_line.h"

namespace taskd::commands {

std::unique_ptr<Command> MakeActListCommand();
std::unique_ptr<Command> MakeActWhyCommand();
std::unique_ptr<Command> MakeActEvictCommand();
std::unique_ptr<Command> MakeActCancelCommand();
std::unique_ptr<Command> MakeActPauseCommand();
std::unique_ptr<Command> MakeActAllowCommand();

}  // namespace taskd::commands
