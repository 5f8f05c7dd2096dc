// Which folder the mark files of a proxy go to. Looked for once, when it starts. Nothing is made before there are marks,
// but the folder of a task that nobody has named: that no other proxy takes the same name.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace taskd::proxy {

inline constexpr char kDefaultProfilingDir[] = "/user/cluster-info/profiling";

struct MarkFolder {
  std::string path;              // absolute; empty: there is none that can be written
  std::string task_folder = {};  // in it
  // What was made for a task that has no name, the outermost first: to go at the proxy's end where it is empty.
  std::vector<std::string> made = {};
  // Why not the first one that was looked at: "/user/cluster-info/profiling: Permission denied". Empty: it is that one.
  std::string refusal;
};

struct MarkFolderWishes {
  std::string given;  // --profiling-dir: this one or none; empty: the first of the others
  std::string first = kDefaultProfilingDir;
  std::vector<std::string> working_dirs;  // in which a folder may be made; those that are not absolute are left out
  std::string name;                       // of that folder: "taskd-<job>"
  std::string task_folder;                // that will be made in it; empty: one of its own is made at once
  int64_t unix_s = 0;                     // now, for its name
};

// A folder counts if a folder for a task that has no name could be made in it, or <folder>/<task> can be written or made by this user, as far as can be told without trying. In a
// working folder that everybody may write to, one of that name must be this user's own. Storage that does not say within
// `patience` counts as well: what is to be written there waits for it.
MarkFolder ChooseMarkFolder(const MarkFolderWishes& wishes, std::chrono::milliseconds patience);

// OK, or why nothing can be written to <path>/<task>, with the path: "/x: Permission denied".
absl::Status CheckMarkFolder(const std::string& path, const std::string& task_folder);

}  // namespace taskd::proxy
