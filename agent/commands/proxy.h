// `taskd proxy`: the node's proxy, in the foreground.
#pragma once

#include <memory>

#include "agent/commands/command_line.h"

namespace taskd::commands {

std::unique_ptr<Command> MakeProxyCommand();

}  // namespace taskd::commands
