// `taskd run` as one rank of a job whose processes something else has started: srun with several tasks a node, mpirun.
#pragma once

#include <optional>
#include <string>

#include "agent/modes/plans/mode_options.h"
#include "common/environment.h"

namespace taskd::commands {

// The exit code. Nothing: the mode and the variables ask for no such rank; PlanMode() decides.
std::optional<int> RunTaskCommand(const modes::ModeOptions& options, const Environment& environment);

}  // namespace taskd::commands
