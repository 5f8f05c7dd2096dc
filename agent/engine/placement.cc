#include "agent/engine/placement.h"

#include <limits.h>
#include <unistd.h>

#include <cstddef>
#include <fstream>

namespace taskd::engine {
namespace {

constexpr size_t kMaxFileBytes = size_t{1} << 20;

std::string ReadSmallFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string text(kMaxFileBytes + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(file.gcount()));
  return text.size() > kMaxFileBytes ? "" : text;
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
