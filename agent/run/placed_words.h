// What a scheduler says of this launcher's place, put in where the command line and its variables are silent: option,
// then PET_* and TASKD_*, then the scheduler, then the default.
#pragma once

#include <map>
#include <string>

#include "absl/status/status.h"
#include "agent/engine/placement.h"
#include "agent/run/options.h"
#include "common/option_words.h"

namespace taskd::run {

// Adds to `words`, after their variables were read, and sets what RunOptions has of the placement. A launcher that has a
// rendezvous of its own (--standalone, --rdzv-...), or that an outer launcher has started, takes no part of it but the
// job's name. INVALID_ARGUMENT: the scheduler's variables contradict each other or what was given; or the scheduler
// knows several nodes, and each would train a world of its own, also below an outer launcher's rank.
absl::Status PlaceWords(const std::map<std::string, std::string>& environment, const engine::EngineMachine& machine,
                        OptionWords* words, RunOptions* options);

}  // namespace taskd::run
