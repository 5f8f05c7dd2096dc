#include "manager/switch/trace_messages.h"

#include <optional>
#include <utility>

namespace taskd::manager {

void FillSwitch(const SwitchState& state, ProfilingSwitch* out) {
  auto text = [&](SwitchKind kind) { return (state.requested & MaskOf(kind)) != 0 ? "on" : "off"; };
  out->set_communicationoperator(text(SwitchKind::kCommunication));
  out->set_step(text(SwitchKind::kStep));
  out->set_savecheckpoint(text(SwitchKind::kSaveCheckpoint));
  out->set_fp(text(SwitchKind::kForward));
  out->set_dataloader(text(SwitchKind::kDataLoader));
}

absl::StatusOr<SwitchChange> ReadSwitch(const ProfilingSwitch& message) {
  SwitchChange change;
  bool any = false;
  for (auto [kind, value] :
       {std::pair(SwitchKind::kCommunication, &message.communicationoperator()),
        std::pair(SwitchKind::kStep, &message.step()),
        std::pair(SwitchKind::kSaveCheckpoint, &message.savecheckpoint()),
        std::pair(SwitchKind::kForward, &message.fp()), std::pair(SwitchKind::kDataLoader, &message.dataloader())}) {
    absl::StatusOr<std::optional<bool>> parsed = ParseSwitchValue(ClusterdSwitchName(kind), *value);
    if (!parsed.ok()) return parsed.status();
    change[static_cast<int>(kind)] = *parsed;
    any = any || parsed->has_value();
  }
  if (!any) return absl::InvalidArgumentError("profilingSwitch: no switch is on or off, there is nothing to do");
  return change;
}

}  // namespace taskd::manager
