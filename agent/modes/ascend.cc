#include "agent/modes/platform_modes.h"

namespace taskd {

absl::Status PlanAscend(const ModeInput&, ModePlan*) { return absl::UnimplementedError("not written"); }

}  // namespace taskd
