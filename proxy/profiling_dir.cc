#include "proxy/profiling_dir.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "marks/mark_folder.h"
#include "proxy/folder.h"

namespace taskd::proxy {
namespace {

// Opens `name` below `parent` (AT_FDCWD: by path), making it where it is missing.
absl::StatusOr<UniqueFd> OpenOrMake(int parent, const std::string& name, const std::string& path) {
  absl::StatusOr<UniqueFd> folder = OpenFolder(parent, name, path);
  if (!absl::IsNotFound(folder.status())) return folder;
  if (mkdirat(parent, name.c_str(), 0755) != 0 && errno != EEXIST) return absl::ErrnoToStatus(errno, path);
  return OpenFolder(parent, name, path);
}

absl::StatusOr<UniqueFd> OpenOrMakeRoot(const std::string& path) {
  absl::StatusOr<UniqueFd> root = OpenFolder(AT_FDCWD, path, path);
  if (!absl::IsNotFound(root.status())) return root;
  std::vector<std::string> made;
  if (absl::Status there = MakeFolders(path, &made); !there.ok()) return there;
  return OpenFolder(AT_FDCWD, path, path);
}

}  // namespace

ProfilingDir::ProfilingDir(std::string path, std::string task_folder)
    : path_(std::move(path)), task_folder_(std::move(task_folder)) {
  // A slash at the end would make O_NOFOLLOW follow.
  while (path_.size() > 1 && path_.back() == '/') path_.pop_back();
}

ProfilingDir ProfilingDir::WithoutMarkFiles(const std::string& socket) {
  const size_t slash = socket.rfind('/');
  const std::string folder = slash == std::string::npos ? "." : slash == 0 ? "/" : socket.substr(0, slash);
  ProfilingDir dir(folder, absl::StrCat(socket.substr(slash + 1), ".ranks"));
  dir.has_mark_files_ = false;
  return dir;
}

std::string ProfilingDir::TaskPath() const {
  return task_folder_.empty() ? path_ : absl::StrCat(path_ == "/" ? "" : path_, "/", task_folder_);
}

std::string ProfilingDir::RankPath(int rank) const { return absl::StrCat(TaskPath(), "/", rank); }

absl::StatusOr<UniqueFd> ProfilingDir::OpenRank(int rank) const {
  absl::StatusOr<UniqueFd> folder = OpenOrMakeRoot(path_);
  if (folder.ok() && !task_folder_.empty()) folder = OpenOrMake(folder->get(), task_folder_, TaskPath());
  if (!folder.ok()) return folder;
  return OpenOrMake(folder->get(), absl::StrCat(rank), RankPath(rank));
}

absl::StatusOr<UniqueFd> ProfilingDir::FindRank(int rank) const {
  absl::StatusOr<UniqueFd> folder = OpenFolder(AT_FDCWD, path_, path_);
  if (folder.ok() && !task_folder_.empty()) folder = OpenFolder(folder->get(), task_folder_, TaskPath());
  if (!folder.ok()) return folder;
  return OpenFolder(folder->get(), absl::StrCat(rank), RankPath(rank));
}

absl::Status ProfilingDir::WriteRankInfo(int rank, const std::string& json) const {
  absl::StatusOr<UniqueFd> folder = OpenRank(rank);
  if (!folder.ok()) return folder.status();
  return ReplaceFile(folder->get(), ".rank.json", json, absl::StrCat(RankPath(rank), "/.rank.json"));
}

absl::Status CheckTaskFolder(const char* variable, const std::string& name) {
  if (name.empty() || name.front() == '.' || name.size() > 200 || name.find('/') != std::string::npos) {
    return absl::InvalidArgumentError(
        absl::StrCat(variable, ": '", name, "' cannot name a folder (no '/', no leading '.', 1 to 200 bytes)"));
  }
  return absl::OkStatus();
}

}  // namespace taskd::proxy
