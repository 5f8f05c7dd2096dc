#include "agent/engine/placement.h"

namespace taskd::engine {

absl::StatusOr<Placement> FindPlacement(const Environment& environment, const EngineMachine& machine) {
  absl::StatusOr<Placement> placement = PlaceBySlurm(environment, machine);
  if (!placement.ok() || !placement->where.empty()) return placement;
  return PlaceByKubernetes(environment, machine);
}

}  // namespace taskd::engine
