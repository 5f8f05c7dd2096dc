#include "agent/engine/placement.h"

#include <limits.h>
#include <unistd.h>

#include <cstddef>

#include "common/files.h"

namespace taskd::engine {
namespace {

constexpr size_t kMaxFileBytes = size_t{1} << 20;

std::string ReadSmallFile(const std::string& path) {
  return ReadFile(path, kMaxFileBytes, {.follow_links = true}).value_or("");
}

}  // namespace

const Default* Placement::Find(absl::string_view option) const {
  for (const Default& one : defaults) {
    if (one.option == option) return &one;
  }
  return nullptr;
}

EngineMachine ThisMachine() {
  char name[HOST_NAME_MAX + 1] = {};
  return {gethostname(name, sizeof(name) - 1) == 0 ? name : "", ReadSmallFile};
}

absl::StatusOr<Placement> FindPlacement(const Environment& environment, const EngineMachine& machine) {
  absl::StatusOr<Placement> placement = PlaceBySlurm(environment, machine);
  // A shell of Slurm's has no place, but a name.
  if (!placement.ok() || !placement->where.empty() || !placement->job.empty()) return placement;
  return PlaceByKubernetes(environment, machine);
}

}  // namespace taskd::engine
