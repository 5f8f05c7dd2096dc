// `taskd token`: what stands for the job's secret over HTTP (common/job_secret.h).
#pragma once

#include <memory>

#include "agent/commands/command_line.h"

namespace taskd::commands {

std::unique_ptr<Command> MakeTokenCommand();

}  // namespace taskd::commands
