// The switch, and what ranks made of it, as messages of taskd.v1 and back: proxies and the manager send both to each
// other, and the manager to whoever asks.
#pragma once

#include <cstdint>
#include <string_view>

#include "absl/status/statusor.h"
#include "common/rank_report.h"
#include "common/switch.h"
#include "taskd/v1/node.pb.h"
#include "taskd/v1/switch.pb.h"

namespace taskd::proto {

void FillKinds(KindMask kinds, v1::KindStates* message);
KindMask ReadKinds(const v1::KindStates& message);

// The state that ranks are to have: `effective` at `revision`.
void FillWanted(const SwitchState& state, v1::WantedState* message);

void FillRankReport(const RankReport& report, v1::RankStatus* message);
// A serialized v1::RankStatus, without Protobuf's object: each rank's comes every second. INVALID_ARGUMENT: Protobuf would
// not take it either.
absl::StatusOr<RankReport> ReadRankReport(std::string_view wire);

void FillRankAnswer(const RankAnswer& answer, v1::RankAnswer* message);
// A state that this release does not know is kUnreachable.
RankAnswer ReadRankAnswer(const v1::RankAnswer& message);

}  // namespace taskd::proto
