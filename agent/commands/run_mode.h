// `taskd run --mode M -- CMD`: starts CMD on this node as a training platform would.
#pragma once

#include <string>
#include <vector>

#include "agent/modes/plans/mode_plan.h"

namespace taskd::commands {

// `arguments`: after `taskd run`. The result is the exit code.
int RunModeCommand(const std::vector<std::string>& arguments, Environment environment);

// Prints the line of a wrong usage, and is its exit code.
int Refuse(const absl::Status& status);

}  // namespace taskd::commands
