#include "common/runtime_dir.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "taskd/own_user.h"

namespace taskd {
namespace {

constexpr mode_t kOthersMayWrite = S_IWGRP | S_IWOTH;
constexpr char kSharedFolder[] = "/tmp";
constexpr char kLastFolder[] = "/dev/shm";  // where that cannot be used

absl::Status Broken(const std::string& folder, const struct stat& info) {
  std::string nobody;
  if (IsUnmappedUser(info.st_uid)) {
    nobody = "; here that number is everybody whom this user namespace does not map";
    if (info.st_uid == geteuid()) nobody += ", this process as well: run TaskD as another user";
  }
  const bool is_own = IsOwnUser(info.st_uid) && (info.st_mode & S_ISVTX) == 0;
  const std::string advice = is_own ? absl::StrCat(": 'chmod go-w ", folder, "' mends that") : "";
  return absl::InvalidArgumentError(absl::StrFormat(
      "folder '%s' belongs to user %u, mode %04o: it has to belong to this user (%u) or root and not be writable by "
      "group or others%s%s",
      folder, info.st_uid, info.st_mode & 07777, geteuid(), nobody, advice));
}

absl::Status Unusable(const std::string& folder, int error) {
  const std::string message = absl::StrCat("folder '", folder, "': ", strerror(error));
  return error == ENOENT ? absl::NotFoundError(message) : absl::InvalidArgumentError(message);
}

// The folder reached so far, and what holds for the next one.
struct Walk {
  UniqueFd fd;
  std::string path;              // for messages
  bool systems = true;           // part 1 of the rule: a name in it is root's doing
  bool is_below_shared = false;  // strangers could write to a folder above
  bool is_named = false;         // OpenNamedDir()'s rule
  bool is_shared = false;        // strangers can write to this one
};

// Checks what `fd` is, and makes it the walk's folder.
absl::Status Enter(Walk& walk, UniqueFd fd, bool is_last) {
  struct stat info;
  if (fstat(fd.get(), &info) != 0) return Unusable(walk.path, errno);
  if (walk.is_named && (is_last || !walk.is_below_shared)) {
    walk.is_below_shared = (info.st_mode & S_IWOTH) != 0;
    walk.systems = !walk.is_below_shared;
    walk.is_shared = walk.is_below_shared;
    walk.fd = std::move(fd);
    return absl::OkStatus();
  }
  // Whom a user namespace does not map, root among them, it shows as one user.
  const bool roots = IsRoot(info.st_uid) || (!walk.is_below_shared && IsUnmappedUser(info.st_uid));
  if (!roots && !IsOwnUser(info.st_uid)) return Broken(walk.path, info);
  const bool shared = (info.st_mode & kOthersMayWrite) != 0;
  const bool may_be_shared = !is_last && ((info.st_mode & S_ISVTX) != 0 || (roots && walk.systems));
  if (shared && !may_be_shared) return Broken(walk.path, info);
  walk.systems = walk.systems && roots && !shared;
  walk.is_below_shared = walk.is_below_shared || shared;
  walk.is_shared = shared;
  walk.fd = std::move(fd);
  return absl::OkStatus();
}

absl::Status Descend(Walk& walk, const std::string& name, bool is_last, bool create) {
  absl::StrAppend(&walk.path, walk.path == "/" ? "" : "/", name);
  // A folder on the way to a named one has the mode that the umask gives, where Enter() takes any.
  const mode_t on_the_way = walk.is_below_shared ? 0755 : 0777;
  const mode_t mode = walk.is_named && !is_last ? on_the_way : 0700;
  if (create && mkdirat(walk.fd.get(), name.c_str(), mode) != 0 && errno != EEXIST) {
    // In a folder that cannot be written to what is there is still good: EROFS or EACCES may come before EEXIST.
    const int error = errno;
    if (faccessat(walk.fd.get(), name.c_str(), F_OK, AT_SYMLINK_NOFOLLOW) != 0) {
      return absl::InvalidArgumentError(absl::StrCat("folder '", walk.path, "' cannot be made: ", strerror(error)));
    }
  }
  // Folders on the way need not be readable.
  const bool follows = walk.is_named ? !is_last && !walk.is_shared : walk.systems;
  const int flags = O_DIRECTORY | O_CLOEXEC | (is_last ? O_RDONLY : O_PATH) | (follows ? 0 : O_NOFOLLOW);
  UniqueFd next(openat(walk.fd.get(), name.c_str(), flags));
  if (!next.valid()) {
    const int error = errno;
    struct stat info;
    if (fstatat(walk.fd.get(), name.c_str(), &info, AT_SYMLINK_NOFOLLOW) == 0 && S_ISLNK(info.st_mode) && !follows) {
      return absl::InvalidArgumentError(absl::StrCat("folder '", walk.path, "' is a symbolic link of user ",
                                                     info.st_uid, ": none is followed there"));
    }
    return Unusable(walk.path, error);
  }
  return Enter(walk, std::move(next), is_last);
}

// Where "taskd" is to be made, and as what.
struct Candidate {
  std::string base;
  std::string name;
  std::string path() const { return absl::StrCat(base, "/", name); }
};

// Without those in folders that all users share.
std::vector<Candidate> SessionCandidates() {
  std::vector<Candidate> candidates;
  const char* xdg = std::getenv("XDG_RUNTIME_DIR");
  if (xdg != nullptr && *xdg == '/') candidates.push_back({xdg, "taskd"});
  const std::string run_user = absl::StrCat("/run/user/", geteuid());
  if (candidates.empty() || candidates[0].base != run_user) candidates.push_back({run_user, "taskd"});
  std::erase_if(candidates, [](const Candidate& candidate) { return candidate.path().size() > kMaxRuntimeDirBytes; });
  return candidates;
}

Candidate SharedCandidate(const char* folder = kSharedFolder) { return {folder, absl::StrCat("taskd-", geteuid())}; }

absl::Status CheckSharedFolder(const char* folder = kSharedFolder) {
  struct stat info;
  if (stat(folder, &info) != 0) return Unusable(folder, errno);
  if ((info.st_mode & kOthersMayWrite) == 0 || (info.st_mode & S_ISVTX) != 0) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrFormat("folder '%s' has mode %04o: others may replace what is in it, as it has no sticky bit; "
                      "'chmod +t %s' mends that, or name a folder of this user's in XDG_RUNTIME_DIR",
                      folder, info.st_mode & 07777, folder));
}

// Whether the runtime folder is there or can be made, whoever owns it then.
bool IsThereOrMade(const Candidate& candidate) {
  struct stat info;
  return mkdir(candidate.path().c_str(), 0700) == 0 || lstat(candidate.path().c_str(), &info) == 0;
}

// The folder that all users share, in which the runtime folder is or can be made; null: there is none.
const char* SharedFolder() {
  for (const char* folder : {kSharedFolder, kLastFolder}) {
    if (CheckSharedFolder(folder).ok() && IsThereOrMade(SharedCandidate(folder))) return folder;
  }
  return nullptr;
}

// Empty: none of the login session's folders can be had.
absl::StatusOr<std::string> MakeSessionDir() {
  for (const Candidate& candidate : SessionCandidates()) {
    absl::StatusOr<UniqueFd> base = OpenOwnDir(candidate.base, false);
    if (!base.ok()) continue;
    if (mkdirat(base->get(), candidate.name.c_str(), 0700) != 0 &&
        faccessat(base->get(), candidate.name.c_str(), F_OK, AT_SYMLINK_NOFOLLOW) != 0) {
      continue;
    }
    if (absl::StatusOr<UniqueFd> own = OpenOwnDir(candidate.path(), false); !own.ok()) return own.status();
    return candidate.path();
  }
  return "";
}

absl::StatusOr<UniqueFd> WalkTo(const std::string& path, bool create, Walk walk) {
  std::error_code error;
  const std::string absolute = std::filesystem::absolute(path, error).string();
  if (error || path.empty() || path.find('\0') != std::string::npos) {
    return absl::InvalidArgumentError(absl::StrCat("folder '", path, "': is no path"));
  }
  const std::vector<std::string> names = absl::StrSplit(absolute, '/', absl::SkipEmpty());
  walk.path = "/";
  UniqueFd root(open("/", O_DIRECTORY | O_CLOEXEC | (names.empty() ? O_RDONLY : O_PATH)));
  if (!root.valid()) return Unusable(walk.path, errno);
  if (absl::Status entered = Enter(walk, std::move(root), names.empty()); !entered.ok()) return entered;
  for (size_t i = 0; i < names.size(); ++i) {
    if (names[i] == ".") continue;
    if (absl::Status entered = Descend(walk, names[i], i + 1 == names.size(), create); !entered.ok()) return entered;
  }
  return std::move(walk.fd);
}

}  // namespace

absl::StatusOr<UniqueFd> OpenOwnDir(const std::string& path, bool create) { return WalkTo(path, create, {}); }

absl::StatusOr<UniqueFd> OpenNamedDir(const std::string& path) {
  Walk walk;
  walk.is_named = true;
  return WalkTo(path, true, std::move(walk));
}

absl::StatusOr<std::string> RuntimeDir(const std::string& below) {
  const std::vector<std::string> names = absl::StrSplit(below, '/', absl::SkipEmpty());
  if (std::find(names.begin(), names.end(), "..") != names.end() || below.find('\0') != std::string::npos) {
    return absl::InvalidArgumentError(absl::StrCat("folder '", below, "': leads out of the runtime folder"));
  }
  absl::StatusOr<std::string> dir = MakeSessionDir();
  if (!dir.ok()) return dir.status();
  if (dir->empty()) {
    const char* shared = SharedFolder();
    if (absl::Status checked = CheckSharedFolder(); shared == nullptr && !checked.ok()) return checked;
    if (shared == nullptr) shared = kSharedFolder;  // OpenOwnDir() says why nothing can be made in it
    dir = SharedCandidate(shared).path();
  }
  for (const std::string& name : names) absl::StrAppend(&*dir, "/", name);
  if (absl::StatusOr<UniqueFd> own = OpenOwnDir(*dir, true); !own.ok()) return own.status();
  return dir;
}

std::vector<std::string> RuntimeDirCandidates() {
  std::vector<std::string> dirs;
  for (const Candidate& candidate : SessionCandidates()) {
    if (OpenOwnDir(candidate.base, false).ok()) dirs.push_back(candidate.path());
  }
  if (CheckSharedFolder().ok()) dirs.push_back(SharedCandidate().path());
  struct stat info;
  const std::string last = SharedCandidate(kLastFolder).path();
  if (CheckSharedFolder(kLastFolder).ok() && lstat(last.c_str(), &info) == 0) dirs.push_back(last);
  return dirs;
}

absl::StatusOr<std::string> MakeFreshDir() {
  absl::Status first;
  for (const char* folder : {kSharedFolder, kLastFolder}) {
    absl::Status status = CheckSharedFolder(folder);
    if (status.ok()) {
      std::string dir = absl::StrCat(folder, "/taskd-new-XXXXXX");  // no user's number could be the name
      if (mkdtemp(dir.data()) != nullptr) return dir;
      status = absl::InvalidArgumentError(absl::StrCat("folder '", dir, "' cannot be made: ", strerror(errno)));
    }
    first.Update(status);
  }
  return first;
}

}  // namespace taskd
