// The switch: what users set ("on", "off", nothing) and which kinds of marks are recorded in consequence.
//
// Two ways to set it share one state (DESIGN of the interfaces; TaskD contract §1.1):
// - ClusterD's switches (gRPC ModifyTrainingDataTraceSwitch and the ConfigMap file): five strings, which make two
//   domains. Step, SaveCheckpoint, FP and DataLoader are one: off only if all five strings are "off". Communication is
//   on only if its string is "on".
// - `taskd switch`: every kind by itself.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace taskd {

// The order of the ring's kinds (ring.h); kNumSwitches of them can be switched.
enum class SwitchKind { kStep = 0, kSaveCheckpoint = 1, kForward = 2, kDataLoader = 3, kCommunication = 4 };
inline constexpr int kNumSwitches = 5;

// One bit a kind, 1 << SwitchKind.
using KindMask = uint32_t;
inline constexpr KindMask kAllKindsMask = (1u << kNumSwitches) - 1;

constexpr KindMask MaskOf(SwitchKind kind) { return 1u << static_cast<int>(kind); }

// Name of a kind in our own interfaces ("step", "save_checkpoint", "fp", "dataloader", "communication").
std::string_view SwitchKindName(SwitchKind kind);
// Its name in texts for people ("step", "checkpoint", "forward", "dataloader", "communication").
std::string_view SwitchKindWord(SwitchKind kind);
// Its name in ClusterD's interfaces ("Step", "SaveCheckpoint", "FP", "DataLoader", "CommunicationOperator").
std::string_view ClusterdSwitchName(SwitchKind kind);
// Also takes "forward" and "checkpoint".
std::optional<SwitchKind> SwitchKindFromName(std::string_view name);

inline constexpr char kSwitchKindsRule[] = "all, or a list of step, forward, dataloader, checkpoint, communication";
// "all", or names of kinds separated by commas. INVALID_ARGUMENT: kSwitchKindsRule, without the text.
absl::StatusOr<KindMask> ParseKinds(std::string_view text);

// A change as users ask for it; absent: leave as it is.
using SwitchChange = std::array<std::optional<bool>, kNumSwitches>;  // by SwitchKind

// "on", "off" or "". INVALID_ARGUMENT names the field and the value.
absl::StatusOr<std::optional<bool>> ParseSwitchValue(std::string_view field, std::string_view value);

// The wanted state. A value type; not thread-safe.
struct SwitchState {
  uint64_t revision = 0;   // 0: no change was requested yet; grows by one with each requested change
  KindMask requested = 0;  // the five strings, as asked for; what Get answers
  KindMask effective = 0;  // what is recorded

  friend bool operator==(const SwitchState&, const SwitchState&) = default;
};

// The two rules above, applied to a state. The revision grows even if nothing else changes: each request counts.
SwitchState ApplyClusterdChange(const SwitchState& state, const SwitchChange& change);
SwitchState ApplyKindChange(const SwitchState& state, const SwitchChange& change);

// Reads the ConfigMap's `profilingSwitch` text, e.g.
//   {"CommunicationOperator":"off","Step":"on","SaveCheckpoint":"on","FP":"on","DataLoader":"on"}
// Absent fields are left as they are. INVALID_ARGUMENT for anything that is not such an object, above 1 MiB, without
// one known field, or with a value other than "on", "off" and "".
absl::StatusOr<SwitchChange> ParseSwitchJson(std::string_view text);

}  // namespace taskd
