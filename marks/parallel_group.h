// parallel_group.json of a rank's directory (TaskD contract §4.8): which ranks make up a process group, and what it is
// for.
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

// Groups in the order of the text. Keys that it does not know are left out, members that are no ranks too.
// INVALID_ARGUMENT: no JSON object of objects, over kMaxParallelGroupBytes, or over kMaxParallelGroups groups.
absl::StatusOr<std::vector<GroupInfo>> ParseParallelGroups(std::string_view text);

// NOT_FOUND: there is no such file. FAILED_PRECONDITION: it is a symbolic link or no regular file. Otherwise as above.
absl::StatusOr<std::vector<GroupInfo>> ReadParallelGroups(const std::string& path);
// The same of a file that is open. `path` is for messages.
absl::StatusOr<std::vector<GroupInfo>> ReadParallelGroups(const UniqueFd& file, const std::string& path);

}  // namespace taskd
