#include "common/switch.h"

#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "common/utf8.h"
#include "fmt/format.h"
#include "nlohmann/json.hpp"

namespace taskd {
namespace {

constexpr std::array<std::string_view, kNumSwitches> kNames = {"step", "save_checkpoint", "fp", "dataloader",
                                                               "communication"};
constexpr std::array<std::string_view, kNumSwitches> kClusterdNames = {"Step", "SaveCheckpoint", "FP", "DataLoader",
                                                                       "CommunicationOperator"};
constexpr std::array<std::string_view, kNumSwitches> kWords = {"step", "checkpoint", "forward", "dataloader",
                                                               "communication"};
constexpr size_t kMaxSwitchJsonBytes = size_t{1024} * 1024;

KindMask Apply(KindMask mask, const SwitchChange& change) {
  for (int i = 0; i < kNumSwitches; ++i) {
    if (change[i].has_value()) mask = *change[i] ? mask | (1u << i) : mask & ~(1u << i);
  }
  return mask;
}

}  // namespace

std::string_view SwitchKindName(SwitchKind kind) { return kNames[static_cast<size_t>(kind)]; }

std::string_view SwitchKindWord(SwitchKind kind) { return kWords[static_cast<size_t>(kind)]; }

std::string_view ClusterdSwitchName(SwitchKind kind) { return kClusterdNames[static_cast<size_t>(kind)]; }

std::optional<SwitchKind> SwitchKindFromName(std::string_view name) {
  for (int i = 0; i < kNumSwitches; ++i) {
    if (name == kNames[i] || name == kWords[i]) return static_cast<SwitchKind>(i);
  }
  return std::nullopt;
}

absl::StatusOr<KindMask> ParseKinds(std::string_view text) {
  if (text == "all") return kAllKindsMask;
  KindMask kinds = 0;
  for (const absl::string_view name : absl::StrSplit(absl::string_view(text.data(), text.size()), ',')) {
    const std::optional<SwitchKind> kind = SwitchKindFromName({name.data(), name.size()});
    if (!kind) return absl::InvalidArgumentError(kSwitchKindsRule);
    kinds |= MaskOf(*kind);
  }
  return kinds;
}

absl::StatusOr<std::optional<bool>> ParseSwitchValue(std::string_view field, std::string_view value) {
  if (value == "on") return std::optional<bool>(true);
  if (value == "off") return std::optional<bool>(false);
  if (value.empty()) return std::optional<bool>();
  // A hostile value may be megabytes long; the message goes into logs and answers.
  return absl::InvalidArgumentError(
      fmt::format("{}: '{}' is not \"on\", \"off\" or empty (leave as it is)", field, CutUtf8(value, 64)));
}

SwitchState ApplyClusterdChange(const SwitchState& state, const SwitchChange& change) {
  SwitchState next;
  next.revision = state.revision + 1;
  next.requested = Apply(state.requested, change);
  constexpr KindMask kCommunication = MaskOf(SwitchKind::kCommunication);
  if (next.requested != 0) next.effective = kAllKindsMask & ~kCommunication;
  next.effective |= next.requested & kCommunication;
  return next;
}

SwitchState ApplyKindChange(const SwitchState& state, const SwitchChange& change) {
  return {state.revision + 1, Apply(state.requested, change), Apply(state.effective, change)};
}

absl::StatusOr<SwitchChange> ParseSwitchJson(std::string_view text) {
  if (text.size() > kMaxSwitchJsonBytes) {
    return absl::InvalidArgumentError(
        fmt::format("profilingSwitch: {} bytes are more than the {} allowed", text.size(), kMaxSwitchJsonBytes));
  }
  nlohmann::json json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return absl::InvalidArgumentError("profilingSwitch: is not one JSON object");
  SwitchChange change;
  bool known = false;
  for (int i = 0; i < kNumSwitches; ++i) {
    auto field = json.find(std::string(kClusterdNames[i]));
    if (field == json.end()) continue;
    known = true;
    if (!field->is_string()) {
      return absl::InvalidArgumentError(
          fmt::format("profilingSwitch: {} is a {}, not a string", kClusterdNames[i], field->type_name()));
    }
    auto value = ParseSwitchValue(kClusterdNames[i], field->get_ref<const std::string&>());
    if (!value.ok()) return value.status();
    change[i] = *value;
  }
  if (!known) {
    return absl::InvalidArgumentError(
        "profilingSwitch: has none of CommunicationOperator, Step, SaveCheckpoint, FP, DataLoader");
  }
  return change;
}

}  // namespace taskd
