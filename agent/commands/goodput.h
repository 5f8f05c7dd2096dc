// `taskd goodput`: where the job's time went; from a manager or from mark files.
#pragma once

#include <memory>

#include "agent/commands/command_line.h"

namespace taskd::commands {

std::unique_ptr<Command> MakeGoodputCommand();

}  // namespace taskd::commands
