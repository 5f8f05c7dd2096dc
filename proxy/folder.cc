#include "proxy/folder.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <memory>

#include "absl/strings/str_cat.h"

namespace taskd::proxy {
namespace {

constexpr int kNeverWait = O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC;

absl::Status NotAFile(const std::string& path, const struct stat& info) {
  return absl::FailedPreconditionError(
      absl::StrCat(path, S_ISLNK(info.st_mode) ? ": is a symbolic link, which is refused" : ": is not a regular file"));
}

}  // namespace

absl::StatusOr<UniqueFd> OpenFolder(int parent, const std::string& name, const std::string& path) {
  UniqueFd fd(openat(parent, name.c_str(), O_RDONLY | O_DIRECTORY | kNeverWait));
  if (fd.valid()) return fd;
  const int error = errno;
  // O_DIRECTORY | O_NOFOLLOW answers ENOTDIR for a symbolic link.
  struct stat info;
  if ((error == ENOTDIR || error == ELOOP) && fstatat(parent, name.c_str(), &info, AT_SYMLINK_NOFOLLOW) == 0 &&
      S_ISLNK(info.st_mode)) {
    return absl::FailedPreconditionError(absl::StrCat(path, ": is a symbolic link, which is refused"));
  }
  return absl::ErrnoToStatus(error, path);
}

absl::StatusOr<UniqueFd> OpenRegular(int folder, const std::string& name, int flags, const std::string& path) {
  // Looked at before it is opened: to open a device may do something already.
  struct stat info;
  if (fstatat(folder, name.c_str(), &info, AT_SYMLINK_NOFOLLOW) != 0) return absl::ErrnoToStatus(errno, path);
  if (!S_ISREG(info.st_mode)) return NotAFile(path, info);
  UniqueFd fd(openat(folder, name.c_str(), flags | kNeverWait));
  if (!fd.valid()) {
    const int error = errno;
    // Swapped in between for a link, a FIFO without a reader or a socket, a device without a driver.
    if (error == ELOOP || error == ENXIO || error == ENODEV) {
      return absl::FailedPreconditionError(absl::StrCat(path, ": is not a regular file"));
    }
    // It is no property of the file, unlike the codes that absl maps to the same status.
    if (error == EROFS) return absl::UnavailableError(absl::StrCat(path, ": ", strerror(error)));
    return absl::ErrnoToStatus(error, path);
  }
  if (fstat(fd.get(), &info) != 0) return absl::ErrnoToStatus(errno, path);
  if (!S_ISREG(info.st_mode)) return NotAFile(path, info);
  // What is written here must not appear anywhere else.
  if ((flags & O_ACCMODE) != O_RDONLY && info.st_nlink > 1) {
    return absl::FailedPreconditionError(absl::StrCat(path, ": is a hard link to a file that has other names"));
  }
  return fd;
}

absl::Status ReplaceFile(int folder, const std::string& name, std::string_view text, const std::string& path) {
  constexpr int kNames = 8;
  UniqueFd file;
  std::string fresh;
  for (int i = 0; i < kNames && !file.valid(); ++i) {
    fresh = absl::StrCat(".", name.starts_with('.') ? name.substr(1) : name, ".new");
    if (i > 0) absl::StrAppend(&fresh, ".", i);
    // Of an earlier proxy, or a trap. A folder stays where it is.
    if (unlinkat(folder, fresh.c_str(), 0) != 0 && errno != ENOENT && errno != EISDIR && errno != EPERM) break;
    file.reset(openat(folder, fresh.c_str(), O_WRONLY | O_CREAT | O_EXCL | kNeverWait, 0644));
    if (!file.valid() && errno != EEXIST) break;
  }
  if (!file.valid()) return absl::ErrnoToStatus(errno, path);
  const ssize_t written = write(file.get(), text.data(), text.size());
  if (written == static_cast<ssize_t>(text.size()) && renameat(folder, fresh.c_str(), folder, name.c_str()) == 0) {
    return absl::OkStatus();
  }
  const int error = written >= 0 && written < static_cast<ssize_t>(text.size()) ? ENOSPC : errno;
  unlinkat(folder, fresh.c_str(), 0);
  return absl::ErrnoToStatus(error, path);
}

absl::Status ListFolder(int folder, const std::function<bool(const char* name)>& visit) {
  // An open file description of its own: a copy of the descriptor would share its position.
  const int own = openat(folder, ".", O_RDONLY | O_DIRECTORY | kNeverWait);
  if (own < 0) return absl::ErrnoToStatus(errno, "opendir");
  std::unique_ptr<DIR, int (*)(DIR*)> dir(fdopendir(own), closedir);
  if (dir == nullptr) {
    const int error = errno;
    ::close(own);
    return absl::ErrnoToStatus(error, "opendir");
  }
  while (true) {
    errno = 0;
    const dirent* entry = readdir(dir.get());
    if (entry == nullptr) break;
    const std::string_view name = entry->d_name;
    if (name != "." && name != ".." && !visit(entry->d_name)) return absl::OkStatus();
  }
  return errno == 0 ? absl::OkStatus() : absl::ErrnoToStatus(errno, "readdir");
}

}  // namespace taskd::proxy
