// `taskd switch`: asks the manager to record kinds of marks or not, and prints what each rank answered.
#pragma once

#include <memory>

#include "agent/commands/command_line.h"

namespace taskd::commands {

std::unique_ptr<Command> MakeSwitchCommand();

}  // namespace taskd::commands
