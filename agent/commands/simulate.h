// `taskd simulate`: a synthetic job's marks, with faults whose place and cost are known, as mark files or fed to a
// manager as its proxies would.
#pragma once

#include <memory>

#include "agent/commands/command_line.h"

namespace taskd::commands {

std::unique_ptr<Command> MakeSimulateCommand();

}  // namespace taskd::commands
