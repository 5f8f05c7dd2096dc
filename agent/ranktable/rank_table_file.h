// Rank tables where they are: in a file that a platform may not have finished yet.
#pragma once

#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "agent/ranktable/rank_table.h"

namespace taskd::ranktable {

// A regular file of at most kMaxJsonBytes. NOT_FOUND: there is none. INVALID_ARGUMENT: it cannot be read.
absl::StatusOr<std::string> ReadRankTableFile(const std::string& path);

// The file's name is judged too: it has to end in .json. Otherwise as CheckRankTable and ReadRankTableFile.
absl::StatusOr<RankTableCheck> CheckRankTableFile(const std::string& path, ChipRules chip);

// So many looks in a row that find the same bytes, which are no JSON: nobody is writing them.
inline constexpr int kRankTableLooks = 3;

// Reads the file until it is there, whole and completed. `pause` is called between two looks and says whether there is
// time for another one. DEADLINE_EXCEEDED: there was none; the text says what was missing. INVALID_ARGUMENT: it is no
// JSON and stays as it is (kRankTableLooks); at once: it is there and cannot be read, or a completed table breaks a
// rule, the first of which is told.
absl::StatusOr<RankTable> WaitForRankTable(const std::string& path, ChipRules chip, const std::function<bool()>& pause);

}  // namespace taskd::ranktable
