// `taskd store`: a TCPStore server for clients of PyTorch, or a tier of one, in the foreground.
#pragma once

#include <memory>

#include "agent/commands/command_line.h"

namespace taskd::commands {

std::unique_ptr<Command> MakeStoreCommand();

}  // namespace taskd::commands
