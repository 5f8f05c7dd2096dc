// Readers of the files that describe a network. modes-routing §4, the table of formats.
//
// They take the whole content and give the one model, or kInvalidArgument with one line: what, the value, the rule; or
// kUnavailable: the file is well-formed, but its writer has not completed it (`status`). Content is foreign: bounded
// time and memory for any bytes, kResourceExhausted where its bytes, what they unpack to and what is made of them are
// more than `max_bytes` (input_budget.h).
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "agent/route/topology.h"

namespace taskd::route {

enum class TopologyFormat { kAuto, kTorList, kTorNodeCm, kSlurm, kIbnetdiscover, kHypernode, kCsv, kRankTable2 };

// "auto", "tor-list", …; nothing for another word.
std::optional<TopologyFormat> TopologyFormatFromName(std::string_view name);
inline constexpr std::string_view kTopologyFormatNames =
    "auto, tor-list, tor-node-cm, slurm, ibnetdiscover, hypernode, csv, ranktable2";

// `job_names`: what the job's nodes are called, for HyperNodes that select them by a pattern.
absl::StatusOr<Topology> ReadTopology(std::string_view content, TopologyFormat format,
                                      size_t max_bytes = kDefaultInputBytes,
                                      absl::Span<const std::string> job_names = {});

}  // namespace taskd::route
