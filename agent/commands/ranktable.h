// `taskd ranktable check`: whether a rank table keeps the rules that HCCL and the launch modes rely on.
#pragma once

#include <memory>

#include "agent/commands/command_line.h"

namespace taskd::commands {

std::unique_ptr<Command> MakeRankTableCheckCommand();

}  // namespace taskd::commands
