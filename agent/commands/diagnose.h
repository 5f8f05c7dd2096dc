// `taskd diagnose`: who is slow, since when, why, and what it costs; from a manager or from mark files.
#pragma once

#include <memory>

#include "agent/commands/command_line.h"

namespace taskd::commands {

std::unique_ptr<Command> MakeDiagnoseCommand();

}  // namespace taskd::commands
