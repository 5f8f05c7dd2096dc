#include "common/files.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/foreign_owner.h"
#include "taskd/own_user.h"

namespace taskd {
namespace {

constexpr int kNeverWait = O_NONBLOCK | O_NOCTTY | O_CLOEXEC;
constexpr size_t kMaxSystemBytes = size_t{16} << 20;
constexpr size_t kSmallBytes = 4096;
constexpr size_t kPieceBytes = size_t{1} << 16;

std::string Shown(const std::string& path, const FileRules& rules) { return rules.shown.empty() ? path : rules.shown; }

absl::Status SystemError(const std::string& shown, int error) {
  const std::string message = absl::StrCat(shown, ": ", std::strerror(error));
  if (error == ENOENT) return absl::NotFoundError(message);
  if (error == EEXIST) return absl::AlreadyExistsError(message);
  return absl::UnavailableError(message);
}

absl::Status Refused(const std::string& shown, const std::string& why) {
  return absl::FailedPreconditionError(absl::StrCat(shown, ": ", why));
}

absl::Status NotAFile(const std::string& shown, mode_t mode) {
  return Refused(shown, S_ISLNK(mode) ? "is a symbolic link, which is refused" : "is not a regular file");
}

int Open(const std::string& path, int flags, mode_t mode, const FileRules& rules) {
  int file = -1;
  do {
    file = ::openat(rules.folder, path.c_str(), flags | kNeverWait, mode);
  } while (file < 0 && errno == EINTR);
  return file;
}

absl::Status Check(const struct stat& info, int flags, const std::string& shown, const FileRules& rules) {
  if (!S_ISREG(info.st_mode)) return NotAFile(shown, info.st_mode);
  const bool may_have_names = rules.follow_own_links && IsOwnUserOrRoot(info.st_uid);
  if ((flags & O_ACCMODE) != O_RDONLY && info.st_nlink > 1 && !may_have_names) {
    return Refused(shown, "is a hard link to a file that has other names");
  }
  if (!rules.only_own) return absl::OkStatus();
  if (!IsOwnUserOrRoot(info.st_uid)) return Refused(shown, ForeignOwner(info.st_uid));
  return (info.st_mode & (S_IWGRP | S_IWOTH)) == 0 ? absl::OkStatus() : Refused(shown, "others can write to it");
}

// Reads up to `max_bytes` from `offset` on. Returns 0, or the error's number.
int Append(int file, size_t max_bytes, uint64_t offset, std::string* text) {
  while (text->size() < max_bytes) {
    const size_t had = text->size();
    const size_t wanted = std::min(kPieceBytes, max_bytes - had);
    text->resize(had + wanted);
    const ssize_t got = ::pread(file, text->data() + had, wanted, static_cast<off_t>(offset + had));
    const int error = errno;
    text->resize(had + static_cast<size_t>(std::max<ssize_t>(got, 0)));
    if (got == 0) return 0;
    if (got < 0 && error != EINTR) return error;
  }
  return 0;
}

}  // namespace

absl::StatusOr<UniqueFd> OpenFile(const std::string& path, int flags, const FileRules& rules) {
  const std::string shown = Shown(path, rules);
  // Looked at before it is opened: to open a device may do something already.
  struct stat info;
  bool follows = rules.follow_links;
  if (::fstatat(rules.folder, path.c_str(), &info, follows ? 0 : AT_SYMLINK_NOFOLLOW) != 0) {
    return SystemError(shown, errno);
  }
  if (S_ISLNK(info.st_mode) && rules.follow_own_links) {
    if (!IsOwnUserOrRoot(info.st_uid)) {
      return Refused(shown, absl::StrCat("is a symbolic link that ", ForeignOwner(info.st_uid)));
    }
    follows = true;
    if (::fstatat(rules.folder, path.c_str(), &info, 0) != 0) return SystemError(shown, errno);
  }
  if (absl::Status good = Check(info, flags, shown, rules); !good.ok()) return good;
  UniqueFd file(Open(path, flags | (follows ? 0 : O_NOFOLLOW), 0, rules));
  if (!file.valid()) {
    const int error = errno;
    // It was replaced meanwhile by a link, a FIFO without a reader or a socket, a device without a driver.
    const bool is_none = error == ELOOP || error == ENXIO || error == ENODEV;
    return is_none ? NotAFile(shown, 0) : SystemError(shown, error);
  }
  if (::fstat(file.get(), &info) != 0) return SystemError(shown, errno);
  if (absl::Status good = Check(info, flags, shown, rules); !good.ok()) return good;
  return file;
}

absl::StatusOr<UniqueFd> OpenOrCreateFile(const std::string& path, int flags, mode_t mode, const FileRules& rules) {
  // Two calls and not O_CREAT alone: that would open what another process puts there in between.
  constexpr int kTries = 8;
  absl::StatusOr<UniqueFd> file = absl::NotFoundError(Shown(path, rules));
  for (int i = 0; i < kTries && absl::IsNotFound(file.status()); ++i) {
    file = OpenFile(path, flags, rules);
    if (!absl::IsNotFound(file.status())) break;
    UniqueFd fresh(Open(path, flags | O_CREAT | O_EXCL | O_NOFOLLOW, mode, rules));
    if (fresh.valid()) return fresh;
    if (errno != EEXIST) return SystemError(Shown(path, rules), errno);
  }
  return file;
}

absl::StatusOr<UniqueFd> CreateFile(const std::string& path, mode_t mode, const FileRules& rules) {
  UniqueFd file(Open(path, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW, mode, rules));
  if (!file.valid()) return SystemError(Shown(path, rules), errno);
  return file;
}

absl::StatusOr<UniqueFd> OpenFolder(const std::string& path, const FileRules& rules) {
  UniqueFd folder(Open(path, O_RDONLY | O_DIRECTORY | (rules.follow_links ? 0 : O_NOFOLLOW), 0, rules));
  if (folder.valid()) return folder;
  const int error = errno;
  // O_DIRECTORY | O_NOFOLLOW answers ENOTDIR for a symbolic link.
  struct stat info;
  if ((error == ENOTDIR || error == ELOOP) && ::fstatat(rules.folder, path.c_str(), &info, AT_SYMLINK_NOFOLLOW) == 0) {
    return Refused(Shown(path, rules),
                   S_ISLNK(info.st_mode) ? "is a symbolic link, which is refused" : "is not a directory");
  }
  return SystemError(Shown(path, rules), error);
}

absl::StatusOr<std::string> ReadFile(const std::string& path, size_t max_bytes, const FileRules& rules) {
  absl::StatusOr<UniqueFd> file = OpenFile(path, O_RDONLY, rules);
  if (!file.ok()) return file.status();
  return ReadOpened(file->get(), max_bytes, Shown(path, rules));
}

absl::StatusOr<std::string> ReadOpened(int file, size_t max_bytes, const std::string& shown, uint64_t offset) {
  std::string text;
  // A byte more than the limit shows that there is more.
  const int error = Append(file, max_bytes + 1, offset, &text);
  if (error != 0) return SystemError(shown, error);
  if (text.size() <= max_bytes) return text;
  return absl::ResourceExhaustedError(absl::StrCat(shown, ": is larger than ", max_bytes, " bytes"));
}

std::string ReadSome(int file, size_t max_bytes, uint64_t offset) {
  std::string text;
  Append(file, max_bytes, offset, &text);
  return text;
}

std::string ReadSystemFile(const std::string& path) {
  UniqueFd file(Open(path, O_RDONLY, 0, {}));
  std::string text;
  while (file.valid() && text.size() < kMaxSystemBytes) {
    const size_t had = text.size();
    const size_t wanted = std::clamp(had, kSmallBytes, kPieceBytes);  // most are small
    text.resize(had + wanted);
    // read(): not every file of /proc has positions.
    const ssize_t got = ::read(file.get(), text.data() + had, wanted);
    const int error = errno;
    text.resize(had + static_cast<size_t>(std::max<ssize_t>(got, 0)));
    if (got == 0 || (got < 0 && error != EINTR)) break;
  }
  return text;
}

std::string FirstLineOfSystemFile(const std::string& path) {
  std::string text = ReadSystemFile(path);
  text.resize(std::min(text.size(), text.find('\n')));
  return text;
}

int WriteAll(int file, std::string_view data) {
  while (!data.empty()) {
    const ssize_t size = ::write(file, data.data(), data.size());
    if (size > 0) {
      data.remove_prefix(static_cast<size_t>(size));
    } else if (size == 0 || errno != EINTR) {
      return size == 0 ? ENOSPC : errno;
    }
  }
  return 0;
}

int SyncFile(int file) {
  int result = 0;
  do {
    result = ::fsync(file);
  } while (result != 0 && errno == EINTR);
  return result == 0 || errno == EINVAL || errno == ENOTSUP ? 0 : errno;
}

}  // namespace taskd
