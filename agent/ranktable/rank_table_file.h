// Rank tables where they are: in a file that a platform may not have finished yet.
#pragma once

#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "agent/ranktable/rank_table.h"

namespace taskd::ranktable {

// A regular file, without a byte order mark at its begin. NOT_FOUND: there is none. INVALID_ARGUMENT: it cannot be read. RESOURCE_EXHAUSTED: it has more than
// `max_bytes`.
absl::StatusOr<std::string> ReadRankTableFile(const std::string& path, size_t max_bytes = kDefaultInputBytes);

// The file's name is judged too: it has to end in .json. Otherwise as CheckRankTable and ReadRankTableFile.
absl::StatusOr<RankTableCheck> CheckRankTableFile(const std::string& path, ChipRules chip,
                                                  size_t max_bytes = kDefaultInputBytes);

// After so many reads in a row of the same bytes that are no JSON, the file is not being written any more.
inline constexpr int kRankTableLooks = 3;

// Reads the file until it is there, whole and completed. `pause` is called between two reads and returns whether there
// is time for another one. DEADLINE_EXCEEDED: there was none; the message has what was missing. INVALID_ARGUMENT: it is
// no JSON and does not change (kRankTableLooks); at once: it cannot be read, or a completed table breaks a rule, of
// which the first is reported. RESOURCE_EXHAUSTED at once: it takes more than `max_bytes`.
absl::StatusOr<RankTable> WaitForRankTable(const std::string& path, ChipRules chip, const std::function<bool()>& pause,
                                           size_t max_bytes = kDefaultInputBytes);

}  // namespace taskd::ranktable
