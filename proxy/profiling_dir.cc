#include "proxy/profiling_dir.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <cerrno>

#include "absl/strings/str_cat.h"

namespace taskd {
namespace {

constexpr int kFolderFlags = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;

absl::Status FolderError(int error, const std::string& path) {
  // O_DIRECTORY | O_NOFOLLOW answers ENOTDIR for a symbolic link.
  struct stat info;
  if ((error == ENOTDIR || error == ELOOP) && lstat(path.c_str(), &info) == 0 && S_ISLNK(info.st_mode)) {
    return absl::FailedPreconditionError(absl::StrCat(path, ": is a symbolic link, which is refused"));
  }
  return absl::ErrnoToStatus(error, path);
}

// Opens `name` below `parent` (AT_FDCWD: by path), making it where it is missing.
absl::StatusOr<UniqueFd> OpenOrMake(int parent, const std::string& name, const std::string& path) {
  UniqueFd fd(openat(parent, name.c_str(), kFolderFlags));
  if (!fd.valid() && errno == ENOENT) {
    if (mkdirat(parent, name.c_str(), 0755) != 0 && errno != EEXIST) return FolderError(errno, path);
    fd.reset(openat(parent, name.c_str(), kFolderFlags));
  }
  if (!fd.valid()) return FolderError(errno, path);
  return fd;
}

absl::Status MakeParents(const std::string& path) {
  for (size_t slash = path.find('/', 1); slash != std::string::npos; slash = path.find('/', slash + 1)) {
    std::string parent = path.substr(0, slash);
    if (mkdir(parent.c_str(), 0755) != 0 && errno != EEXIST) return absl::ErrnoToStatus(errno, parent);
  }
  return absl::OkStatus();
}

}  // namespace

ProfilingDir::ProfilingDir(std::string path, std::string task_folder)
    : path_(std::move(path)), task_folder_(std::move(task_folder)) {
  // A slash at the end would make O_NOFOLLOW follow.
  while (path_.size() > 1 && path_.back() == '/') path_.pop_back();
}

std::string ProfilingDir::RankPath(int rank) const { return absl::StrCat(path_, "/", task_folder_, "/", rank); }

absl::StatusOr<UniqueFd> ProfilingDir::OpenRank(int rank) const {
  UniqueFd root(open(path_.c_str(), kFolderFlags));
  if (!root.valid()) {
    if (errno != ENOENT) return FolderError(errno, path_);
    if (absl::Status made = MakeParents(path_); !made.ok()) return made;
    absl::StatusOr<UniqueFd> opened = OpenOrMake(AT_FDCWD, path_, path_);
    if (!opened.ok()) return opened;
    root = *std::move(opened);
  }
  absl::StatusOr<UniqueFd> task = OpenOrMake(root.get(), task_folder_, absl::StrCat(path_, "/", task_folder_));
  if (!task.ok()) return task;
  return OpenOrMake(task->get(), absl::StrCat(rank), RankPath(rank));
}

absl::Status ProfilingDir::WriteRankInfo(int rank, const std::string& json) const {
  absl::StatusOr<UniqueFd> folder = OpenRank(rank);
  if (!folder.ok()) return folder.status();
  constexpr char kTemporary[] = ".rank.json.new";
  UniqueFd file(openat(folder->get(), kTemporary, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0644));
  if (!file.valid() || write(file.get(), json.data(), json.size()) != static_cast<ssize_t>(json.size()) ||
      renameat(folder->get(), kTemporary, folder->get(), ".rank.json") != 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat(RankPath(rank), "/.rank.json"));
  }
  return absl::OkStatus();
}

absl::Status CheckTaskFolder(const std::string& name) {
  if (name.empty() || name.front() == '.' || name.size() > 200 || name.find('/') != std::string::npos) {
    return absl::InvalidArgumentError(
        absl::StrCat("MINDX_TASK_ID: '", name, "' cannot name a folder (no '/', no leading '.', 1 to 200 bytes)"));
  }
  return absl::OkStatus();
}

}  // namespace taskd
