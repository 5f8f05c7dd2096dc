#include "agent/engine/placement.h"

namespace taskd::engine {

absl::StatusOr<Placement> PlaceByKubernetes(const Environment& /*environment*/, const EngineMachine& /*machine*/) {
  return Placement();
}

}  // namespace taskd::engine
