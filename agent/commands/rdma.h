// `taskd rdma env` and `taskd rdma check`: the variables of an RDMA network, and whether NCCL's log proves its use.
#pragma once

#include <memory>

#include "agent/commands/command_line.h"

namespace taskd::commands {

std::unique_ptr<Command> MakeRdmaEnvironmentCommand();
std::unique_ptr<Command> MakeRdmaCheckCommand();

}  // namespace taskd::commands
