#include "agent/engine/placement.h"

namespace taskd::engine {

absl::StatusOr<Placement> PlaceBySlurm(const Environment& /*environment*/, const EngineMachine& /*machine*/) {
  return Placement();
}

}  // namespace taskd::engine
