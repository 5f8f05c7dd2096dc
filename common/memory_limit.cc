#include "common/memory_limit.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <optional>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/files.h"

namespace taskd {
namespace {

// "max" and what is no number are no limit.
std::optional<uint64_t> ReadBytes(const std::string& path) {
  uint64_t bytes = 0;
  return absl::SimpleAtoi(FirstLineOfSystemFile(path), &bytes) ? std::optional(bytes) : std::nullopt;
}

// The limit of the group `path` below `folder` and of all above it. In a container its own group is often mounted as
// the top one while /proc names it as the machine sees it: then only the top is found.
uint64_t LeastLimit(const std::string& folder, std::string path, const char* file) {
  uint64_t least = UINT64_MAX;
  while (true) {
    least = std::min(least, ReadBytes(absl::StrCat(folder, path, "/", file)).value_or(UINT64_MAX));
    if (path.empty()) return least;
    path.resize(path.rfind('/') == std::string::npos ? 0 : path.rfind('/'));
  }
}

}  // namespace

uint64_t AvailableMemoryBytes(const std::string& root) {
  uint64_t least = static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  std::ifstream groups(root + "/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {  // "4:memory:/path", "0::/path"
    const std::vector<std::string> fields = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (fields.size() != 3) continue;
    if (fields[0] == "0") least = std::min(least, LeastLimit(root + "/sys/fs/cgroup", fields[2], "memory.max"));
    const std::vector<std::string> controllers = absl::StrSplit(fields[1], ',');
    if (std::find(controllers.begin(), controllers.end(), "memory") == controllers.end()) continue;
    least = std::min(least, LeastLimit(root + "/sys/fs/cgroup/memory", fields[2], "memory.limit_in_bytes"));
  }
  return least;
}

}  // namespace taskd
