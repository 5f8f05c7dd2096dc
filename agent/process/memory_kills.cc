#include "agent/process/memory_kills.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/unique_fd.h"

namespace taskd::process {
namespace {

constexpr size_t kMaxFileBytes = 1 << 20;
constexpr size_t kMaxDepth = 64;
constexpr uint64_t kNoLimit = uint64_t{1} << 60;  // v1 writes LONG_MAX in whole pages where there is none
constexpr uint64_t kMiB = 1 << 20;

// The number after `name` at the beginning of a line: "oom_kill 3".
std::optional<uint64_t> Field(const std::string& text, absl::string_view name) {
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    uint64_t value = 0;
    if (absl::ConsumePrefix(&line, name) && absl::ConsumePrefix(&line, " ") && absl::SimpleAtoi(line, &value)) {
      return value;
    }
  }
  return std::nullopt;
}

bool Lists(absl::string_view options, absl::string_view option) {
  const std::vector<absl::string_view> all = absl::StrSplit(options, ',');
  return std::find(all.begin(), all.end(), option) != all.end();
}

std::string Size(uint64_t bytes) {
  return bytes % (1024 * kMiB) == 0 ? absl::StrCat(bytes / (1024 * kMiB), " GiB") : absl::StrCat(bytes / kMiB, " MiB");
}

}  // namespace

std::string MemoryKills::ReadText(const std::string& path) const {
  UniqueFd fd(::open(absl::StrCat(root_, path).c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  std::string text;
  char buffer[1 << 14];
  while (fd.valid() && text.size() < kMaxFileBytes) {
    const ssize_t count = ::read(fd.get(), buffer, sizeof(buffer));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) break;
    text.append(buffer, static_cast<size_t>(count));
  }
  return text;
}

// "36 35 0:31 /kubepods/pod1 /sys/fs/cgroup/memory rw,nosuid - cgroup cgroup rw,memory"
std::vector<MemoryKills::Hierarchy> MemoryKills::ReadHierarchies() const {
  std::vector<Hierarchy> found;
  const std::string mounts = ReadText("/proc/self/mountinfo");
  for (absl::string_view line : absl::StrSplit(mounts, '\n')) {
    const size_t dash = line.find(" - ");
    if (dash == absl::string_view::npos) continue;
    const std::vector<absl::string_view> place = absl::StrSplit(line.substr(0, dash), ' ');
    const std::vector<absl::string_view> type = absl::StrSplit(line.substr(dash + 3), ' ');
    if (place.size() < 5 || type.size() < 3) continue;
    const bool is_v2 = type[0] == "cgroup2";
    if (!is_v2 && (type[0] != "cgroup" || !Lists(type[2], "memory"))) continue;
    found.push_back({is_v2, std::string(place[3]), std::string(place[4])});
  }
  return found;
}

std::vector<std::string> MemoryKills::FoldersOf(pid_t pid, bool* is_v2) const {
  // "4:memory:/a/b" where memory is v1's; else "0::/a/b".
  std::optional<std::string> v1, v2;
  const std::string cgroups = ReadText(absl::StrCat("/proc/", pid, "/cgroup"));
  for (absl::string_view line : absl::StrSplit(cgroups, '\n')) {
    const std::vector<absl::string_view> parts = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (parts.size() != 3) continue;
    if (Lists(parts[1], "memory")) v1 = std::string(parts[2]);
    if (parts[0] == "0" && parts[1].empty()) v2 = std::string(parts[2]);
  }
  if (!v1 && !v2) return {};
  *is_v2 = !v1;
  const std::string path = v1 ? *v1 : *v2;
  for (const Hierarchy& hierarchy : ReadHierarchies()) {
    if (hierarchy.is_v2 != *is_v2) continue;
    // A cgroup beside or above the one that is mounted here is not to be seen: "/../other", or another prefix.
    absl::string_view rest = path;
    const absl::string_view mounted = hierarchy.mount_root == "/" ? "" : absl::string_view(hierarchy.mount_root);
    if (!absl::ConsumePrefix(&rest, mounted) || !(rest.empty() || rest[0] == '/')) continue;
    if (absl::StrContains(rest, "/..")) continue;
    std::vector<std::string> folders;
    std::string folder = absl::StrCat(hierarchy.mount_point, rest == "/" ? "" : rest);
    while (folders.size() < kMaxDepth) {
      folders.push_back(folder);
      if (folder.size() <= hierarchy.mount_point.size()) break;
      folder.resize(folder.rfind('/'));
    }
    return folders;
  }
  return {};
}

MemoryKills::Counters MemoryKills::ReadCounters(const std::string& folder, bool is_v2) const {
  Counters counters;
  if (is_v2) {
    const std::string events = ReadText(folder + "/memory.events");
    counters.kills = Field(events, "oom_kill");
    counters.at_limit = Field(events, "oom").value_or(0);
    return counters;
  }
  counters.kills = Field(ReadText(folder + "/memory.oom_control"), "oom_kill");
  if (!absl::SimpleAtoi(ReadText(folder + "/memory.failcnt"), &counters.at_limit)) counters.at_limit = 0;
  return counters;
}

std::optional<uint64_t> MemoryKills::ReadLimit(const std::string& folder, bool is_v2) const {
  uint64_t limit = 0;
  const std::string text = ReadText(folder + (is_v2 ? "/memory.max" : "/memory.limit_in_bytes"));
  if (!absl::SimpleAtoi(text, &limit) || limit >= kNoLimit) return std::nullopt;
  return limit;
}

bool MemoryKills::HasReached(const std::string& folder, bool is_v2, uint64_t limit) const {
  if (ReadCounters(folder, is_v2).at_limit > before_.at(folder).at_limit) return true;
  // v1 counts nothing where the limit of memory and swap together, the same in most containers, is reached with it.
  uint64_t most = 0;
  return !is_v2 && absl::SimpleAtoi(ReadText(folder + "/memory.max_usage_in_bytes"), &most) && most + kMiB > limit;
}

void MemoryKills::Watch(pid_t pid) {
  Watched watched;
  watched.folders = FoldersOf(pid, &watched.is_v2);
  for (const std::string& folder : watched.folders) {
    // One that was watched earlier may have been killed by now.
    if (!before_.contains(folder)) before_[folder] = ReadCounters(folder, watched.is_v2);
  }
  watched_[pid] = std::move(watched);
}

const std::string* MemoryKills::Telling(const Watched& watched) const {
  for (const std::string& folder : watched.folders) {
    if (before_.at(folder).kills) return &folder;
    if (!watched.is_v2) break;  // what is above counts nothing of what is below
  }
  return nullptr;
}

bool MemoryKills::HasKill(pid_t pid) {
  const auto found = watched_.find(pid);
  const std::string* folder = found == watched_.end() ? nullptr : Telling(found->second);
  return folder != nullptr && ReadCounters(*folder, found->second.is_v2).kills.value_or(0) > *before_.at(*folder).kills;
}

std::string MemoryKills::Explain(pid_t pid) {
  const auto found = watched_.find(pid);
  const Watched watched = found == watched_.end() ? Watched() : found->second;
  if (found != watched_.end()) watched_.erase(found);
  const std::string* folder = Telling(watched);
  const std::optional<uint64_t> kills = folder == nullptr ? std::nullopt : ReadCounters(*folder, watched.is_v2).kills;
  if (!kills) return "SIGKILL from outside, or out of memory";
  Counters& before = before_.at(*folder);
  if (*kills <= *before.kills) return "SIGKILL from outside";
  ++*before.kills;
  // The innermost limit that was reached.
  for (const std::string& one : watched.folders) {
    const std::optional<uint64_t> limit = ReadLimit(one, watched.is_v2);
    if (!limit || !HasReached(one, watched.is_v2, *limit)) continue;
    return absl::StrCat("killed by the kernel: out of memory (limit ", Size(*limit), ")");
  }
  return "killed by the kernel: out of memory";
}

}  // namespace taskd::process
