// Who descends from whom, read from /proc.
#pragma once

#include <sys/types.h>

#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace taskd::process {

// The executable of this process; empty where /proc does not show it.
std::string ThisProgram();

struct ProcessInfo {
  pid_t pid = 0;
  pid_t parent = 0;
  pid_t group = 0;
  char state = '?';  // as in /proc/PID/stat; Z: only waits to be waited for
};

// A line of /proc/PID/stat. nullopt: it is none.
std::optional<ProcessInfo> ParseProcessStat(std::string_view line);

// Children, their children and so on, without those in `except` and what descends from them. Not a snapshot of one
// moment: processes that are started meanwhile may be missing, so repeat until none is left.
std::vector<ProcessInfo> Descendants(pid_t of, const std::set<pid_t>& except);

// The user that a process acts as. Nothing: it is gone, or /proc does not show it.
std::optional<uid_t> UserOf(pid_t pid);

}  // namespace taskd::process
