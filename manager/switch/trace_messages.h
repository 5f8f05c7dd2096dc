// ClusterD's ProfilingSwitch, for the service and for the client of it.
#pragma once

#include "absl/status/statusor.h"
#include "common/switch.h"
#include "profiling.pb.h"

namespace taskd::manager {

// The five strings of the requested state.
void FillSwitch(const SwitchState& state, ProfilingSwitch* out);

// INVALID_ARGUMENT: a value that is not "on", "off" or empty, or nothing that is on or off.
absl::StatusOr<SwitchChange> ReadSwitch(const ProfilingSwitch& message);

}  // namespace taskd::manager
