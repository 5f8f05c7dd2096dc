// `taskd trace`: mark files as a timeline that Perfetto and chrome://tracing open.
#pragma once

#include <memory>

#include "agent/commands/command_line.h"

namespace taskd::commands {

std::unique_ptr<Command> MakeTraceCommand();

}  // namespace taskd::commands
