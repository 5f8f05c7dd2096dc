#include "proxy/profiling_dir.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/task_name.h"
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

// *made: those that were missing, the outermost first.
absl::Status MakeParents(const std::string& path, std::vector<std::string>* made) {
  for (size_t slash = path.find('/', 1); slash != std::string::npos; slash = path.find('/', slash + 1)) {
    std::string parent = path.substr(0, slash);
    if (mkdir(parent.c_str(), 0755) == 0) {
      made->push_back(std::move(parent));
    } else if (errno != EEXIST) {
      return absl::ErrnoToStatus(errno, parent);
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<UniqueFd> OpenRoot(const std::string& path, std::vector<std::string>* made) {
  absl::StatusOr<UniqueFd> root = OpenFolder(AT_FDCWD, path, path);
  if (!absl::IsNotFound(root.status())) return root;
  if (absl::Status parents = MakeParents(path, made); !parents.ok()) return parents;
  if (mkdir(path.c_str(), 0755) == 0) {
    made->push_back(path);
  } else if (errno != EEXIST) {
    return absl::ErrnoToStatus(errno, path);
  }
  return OpenFolder(AT_FDCWD, path, path);
}

// Each node of a large job may have a proxy that begins in the same second.
constexpr int64_t kMostTasksOfASecond = 100'000;

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

std::string ProfilingDir::TaskPath() const { return absl::StrCat(path_ == "/" ? "" : path_, "/", task_folder_); }

std::string ProfilingDir::RankPath(int rank) const { return absl::StrCat(TaskPath(), "/", rank); }

absl::StatusOr<std::string> ProfilingDir::MakeDefaultTask(const std::string& path, int64_t unix_s,
                                                          std::vector<std::string>* made) {
  absl::StatusOr<UniqueFd> root = OpenRoot(path, made);
  if (!root.ok()) return root.status();
  for (int64_t second = unix_s; second < unix_s + kMostTasksOfASecond; ++second) {
    std::string name = DefaultTaskName(second);
    if (mkdirat(root->get(), name.c_str(), 0755) == 0) {
      made->push_back(absl::StrCat(path, "/", name));
      return name;
    }
    if (errno != EEXIST) return absl::ErrnoToStatus(errno, absl::StrCat(path, "/", name));
  }
  return absl::ResourceExhaustedError(
      absl::StrCat(path, ": has too many folders ", DefaultTaskName(unix_s), " and on"));
}

absl::StatusOr<UniqueFd> ProfilingDir::OpenRank(int rank) const {
  std::vector<std::string> made;
  absl::StatusOr<UniqueFd> root = OpenRoot(path_, &made);
  if (!root.ok()) return root;
  absl::StatusOr<UniqueFd> task = OpenOrMake(root->get(), task_folder_, absl::StrCat(path_, "/", task_folder_));
  if (!task.ok()) return task;
  return OpenOrMake(task->get(), absl::StrCat(rank), RankPath(rank));
}

absl::StatusOr<UniqueFd> ProfilingDir::FindRank(int rank) const {
  absl::StatusOr<UniqueFd> root = OpenFolder(AT_FDCWD, path_, path_);
  if (!root.ok()) return root;
  absl::StatusOr<UniqueFd> task = OpenFolder(root->get(), task_folder_, absl::StrCat(path_, "/", task_folder_));
  if (!task.ok()) return task;
  return OpenFolder(task->get(), absl::StrCat(rank), RankPath(rank));
}

absl::Status ProfilingDir::WriteRankInfo(int rank, const std::string& json) const {
  absl::StatusOr<UniqueFd> folder = OpenRank(rank);
  if (!folder.ok()) return folder.status();
  return ReplaceFile(folder->get(), ".rank.json", json, absl::StrCat(RankPath(rank), "/.rank.json"));
}

absl::Status CheckTaskFolder(const std::string& name) {
  if (name.empty() || name.front() == '.' || name.size() > 200 || name.find('/') != std::string::npos) {
    return absl::InvalidArgumentError(
        absl::StrCat("MINDX_TASK_ID: '", name, "' cannot name a folder (no '/', no leading '.', 1 to 200 bytes)"));
  }
  return absl::OkStatus();
}

}  // namespace taskd::proxy
