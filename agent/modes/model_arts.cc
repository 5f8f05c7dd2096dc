#include "agent/modes/platform_modes.h"

namespace taskd {

absl::Status ReadModelArtsNodes(const ModeInput&, ModePlan*) { return absl::UnimplementedError("not written"); }
absl::Status PlanModelArtsMpi(const ModeInput&, ModePlan*) { return absl::UnimplementedError("not written"); }
absl::Status PlanPytorchGpu(const ModeInput&, ModePlan*) { return absl::UnimplementedError("not written"); }

}  // namespace taskd
