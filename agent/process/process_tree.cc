#include "agent/process/process_tree.h"

#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <filesystem>
#include <map>
#include <memory>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/files.h"
#include "common/unique_fd.h"

namespace taskd::process {
namespace {

std::optional<ProcessInfo> ReadProcess(const char* pid) {
  UniqueFd fd(::open(absl::StrCat("/proc/", pid, "/stat").c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid()) return std::nullopt;
  std::array<char, 512> line;  // what is needed stands at its beginning
  const ssize_t count = ::read(fd.get(), line.data(), line.size());
  if (count <= 0) return std::nullopt;
  return ParseProcessStat({line.data(), static_cast<size_t>(count)});
}

}  // namespace

std::string ThisProgram() {
  std::error_code error;
  return std::filesystem::read_symlink("/proc/self/exe", error).string();
}

std::optional<ProcessInfo> ParseProcessStat(std::string_view line) {
  // "12 (a name with ) and spaces) S 1 12 12 …"
  const size_t open = line.find('(');
  const size_t close = line.rfind(')');
  if (open == std::string_view::npos || close == std::string_view::npos || close < open) return std::nullopt;
  const std::string before(line.substr(0, open));
  const std::string after(line.substr(close + 1));
  const std::vector<std::string> fields = absl::StrSplit(after, absl::ByAnyChar(" \n"), absl::SkipEmpty());
  ProcessInfo process;
  if (fields.size() < 3 || fields[0].size() != 1 || !absl::SimpleAtoi(before, &process.pid) ||
      !absl::SimpleAtoi(fields[1], &process.parent) || !absl::SimpleAtoi(fields[2], &process.group)) {
    return std::nullopt;
  }
  process.state = fields[0][0];
  return process;
}

std::vector<ProcessInfo> Descendants(pid_t of, const std::set<pid_t>& except) {
  // Not /proc/PID/task/TID/children: it needs a kernel option that not every one has.
  std::multimap<pid_t, ProcessInfo> by_parent;
  std::unique_ptr<DIR, int (*)(DIR*)> proc(::opendir("/proc"), ::closedir);
  while (const dirent* entry = proc ? ::readdir(proc.get()) : nullptr) {
    if (!absl::ascii_isdigit(static_cast<unsigned char>(entry->d_name[0]))) continue;
    if (std::optional<ProcessInfo> process = ReadProcess(entry->d_name)) by_parent.emplace(process->parent, *process);
  }
  std::vector<ProcessInfo> found;
  std::vector<pid_t> parents = {of};
  while (!parents.empty()) {
    const pid_t parent = parents.back();
    parents.pop_back();
    const auto [begin, end] = by_parent.equal_range(parent);
    for (auto child = begin; child != end; ++child) {
      if (except.contains(child->second.pid)) continue;
      found.push_back(child->second);
      parents.push_back(child->second.pid);
    }
    by_parent.erase(parent);  // pids that are used again meanwhile make no circle
  }
  return found;
}

std::optional<uid_t> UserOf(pid_t pid) {
  // Not the owner of /proc/PID: it is root for a process that has changed its user without exec.
  const std::string status = ReadSystemFile(absl::StrCat("/proc/", pid, "/status"));
  for (const absl::string_view line : absl::StrSplit(status, '\n')) {
    if (!absl::StartsWith(line, "Uid:")) continue;
    const std::vector<std::string> ids = absl::StrSplit(line, absl::ByAnyChar("\t "), absl::SkipEmpty());
    uid_t user = 0;
    if (ids.size() == 5 && absl::SimpleAtoi(ids[4], &user))
      return user;  // real, effective, saved, of files and sockets
  }
  return std::nullopt;
}

}  // namespace taskd::process
