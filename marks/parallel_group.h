// Reads parallel_group.json of a rank's directory (TaskD contract §4.8). It lists the ranks of each process group and
// the purpose of the group:
//   {"<name in the marks>": {"group_name": "tp", "group_rank": 0, "global_ranks": [0, 1, 2, 3]}, …}
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "common/unique_fd.h"
#include "marks/step_fold.h"

namespace taskd {

inline constexpr size_t kMaxParallelGroupBytes = size_t{16} * 1024 * 1024;
inline constexpr size_t kMaxParallelGroups = 1024;

// Returns the groups in the order of the text. Unknown keys, and members that are not ranks, are ignored.
// INVALID_ARGUMENT: the text is not a JSON object of objects, exceeds kMaxParallelGroupBytes, or has more than
// kMaxParallelGroups groups.
absl::StatusOr<std::vector<GroupInfo>> ParseParallelGroups(std::string_view text);

// NOT_FOUND: there is no such file. FAILED_PRECONDITION: it is a symbolic link or not a regular file. Other errors are
// as above.
absl::StatusOr<std::vector<GroupInfo>> ReadParallelGroups(const std::string& path);
// Reads an open file. `path` is for messages.
absl::StatusOr<std::vector<GroupInfo>> ReadParallelGroups(const UniqueFd& file, const std::string& path);

}  // namespace taskd
