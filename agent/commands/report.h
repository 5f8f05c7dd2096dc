// `taskd report`: the job as one HTML file, of a manager or of mark files.
#pragma once

#include <memory>

#include "agent/commands/command_line.h"

namespace taskd::commands {

std::unique_ptr<Command> MakeReportCommand();

}  // namespace taskd::commands
