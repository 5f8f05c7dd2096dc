// `taskd run --mode M -- CMD`: starts CMD on this node as a training platform would.
#pragma once

#include <string>
#include <vector>

#include "agent/modes/plans/mode_plan.h"

namespace taskd::commands {

// `arguments`: after `taskd run`. The result is the exit code.
int RunModeCommand(const std::vector<std::string>& arguments, const Environment& environment);

}  // namespace taskd::commands
