// Which folder the mark files of a proxy go to. Looked for once, when it starts; nothing is made before there are marks.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace taskd::proxy {

inline constexpr char kDefaultProfilingDir[] = "/user/cluster-info/profiling";

struct MarkFolder {
  std::string path;  // absolute; empty: there is none that can be written
  // Why not the first one that was looked at: "/user/cluster-info/profiling: Permission denied". Empty: it is that one.
  std::string refusal;
};

struct MarkFolderWishes {
  std::string given;  // --profiling-dir: this one or none; empty: the first of the others
  std::string first = kDefaultProfilingDir;
  std::vector<std::string> working_dirs;  // in which a folder may be made; those that are not absolute are left out
  std::string name;                       // of that folder: "taskd-<job>"
  std::string task_folder;                // that will be made in it
};

// A folder counts if <folder>/<task> can be written or made by this user, as far as can be told without trying. In a
// working folder that everybody may write to, one of that name must be this user's own. Storage that does not say within
// `patience` counts as well: what is to be written there waits for it.
MarkFolder ChooseMarkFolder(const MarkFolderWishes& wishes, std::chrono::milliseconds patience);

// OK, or why nothing can be written to <path>/<task>, with the path: "/x: Permission denied".
absl::Status CheckMarkFolder(const std::string& path, const std::string& task_folder);

}  // namespace taskd::proxy
