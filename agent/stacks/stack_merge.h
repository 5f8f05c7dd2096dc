// The stacks of a job's ranks as text: between launchers, and merged for people.
#pragma once

#include <cstddef>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "agent/stacks/rank_stacks.h"

namespace taskd::stacks {

inline constexpr size_t kMaxLogStackBytes = size_t{64} * 1024;

// JSON, on one line: what launchers send to each other. What is not UTF-8 is replaced. At most about `max_bytes`: above
// it outer frames are left out, then all threads but the main ones.
std::string EncodeStacks(const std::vector<RankStacks>& stacks, size_t max_bytes = size_t{4} << 20);
// INVALID_ARGUMENT: not such a text, or more than 131,072 ranks. Unknown fields are ignored.
absl::StatusOr<std::vector<RankStacks>> DecodeStacks(const std::string& json);

struct MergedStacks {
  std::string title;  // one line: how many groups, and who is alone
  std::string log;    // the title and the groups, rarest first, at most kMaxLogStackBytes
  std::string full;   // everything
};

// Over the ranks of all nodes. Ranks whose main threads have equal stacks (by the names of their functions, Python's
// where there are some) make a group. Those with one of `origins`, of which it is known that the others wait for them,
// come first, then the rarest group: in a hang, who is alone is who is waited for. After them the other threads, grouped
// alike.
MergedStacks MergeStacks(std::vector<RankStacks> stacks, const std::set<int>& origins = {});

}  // namespace taskd::stacks
