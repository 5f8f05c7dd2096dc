#include "proxy/rank_files.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace taskd {
namespace {

// A write never has more than this: a longer one in an intent is a hostile segment's.
constexpr int64_t kMaxWriteBytes = int64_t{64} * 1024 * 1024;
// Read back at take-over: a file of the limit and the write that took it there.
constexpr int64_t kMaxReadBytes = kMaxMarkFileBytes + kMaxWriteBytes;

// Names of mark files, ascending.
absl::StatusOr<std::vector<uint64_t>> ListMarkFiles(int folder) {
  int copy = fcntl(folder, F_DUPFD_CLOEXEC, 0);
  if (copy < 0) return absl::ErrnoToStatus(errno, "dup");
  std::unique_ptr<DIR, int (*)(DIR*)> dir(fdopendir(copy), closedir);
  if (dir == nullptr) return absl::ErrnoToStatus(errno, "opendir");
  rewinddir(dir.get());
  std::vector<uint64_t> files;
  while (const dirent* entry = readdir(dir.get())) {
    uint64_t number;
    if (IsMarkFileName(entry->d_name) && absl::SimpleAtoi(entry->d_name, &number)) files.push_back(number);
  }
  std::sort(files.begin(), files.end());
  return files;
}

std::string FileName(uint64_t file) {
  std::string digits = absl::StrCat(file);
  return std::string(10 - std::min<size_t>(10, digits.size()), '0') + digits;
}

}  // namespace

bool IsMarkFileName(std::string_view name) {
  return name.size() == 10 && name.find_first_not_of("0123456789") == std::string_view::npos;
}

absl::Status RankFiles::OpenFile(int folder, uint64_t file, bool create) {
  const std::string name = FileName(file);
  int flags = O_RDWR | O_APPEND | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK | (create ? O_CREAT | O_EXCL : 0);
  UniqueFd fd(openat(folder, name.c_str(), flags, 0644));
  struct stat info;
  if (!fd.valid() || fstat(fd.get(), &info) != 0) {
    int error = errno;
    if (error == ELOOP) {
      return absl::FailedPreconditionError(absl::StrCat(path(), "/", name, ": is a symbolic link, which is refused"));
    }
    return absl::ErrnoToStatus(error, absl::StrCat(path(), "/", name));
  }
  if (!S_ISREG(info.st_mode)) {
    return absl::FailedPreconditionError(absl::StrCat(path(), "/", name, ": is not a regular file"));
  }
  // Tells whoever ages this folder that the file is in use. A file system without locks is no reason to stop.
  (void)flock(fd.get(), LOCK_SH | LOCK_NB);
  fd_ = std::move(fd);
  file_ = file;
  size_ = info.st_size;
  return absl::OkStatus();
}

bool RankFiles::StillThere() const {
  struct stat info;
  return fd_.valid() && fstat(fd_.get(), &info) == 0 && info.st_nlink > 0 && info.st_size == size_;
}

absl::StatusOr<RankFiles::Target> RankFiles::Prepare(int64_t now_unix_s) {
  // Somebody may have removed or truncated the file; then look at the folder again.
  if (!StillThere()) fd_.reset();
  if (fd_.valid() && size_ <= kMaxMarkFileBytes) return Target{file_, size_};
  absl::StatusOr<UniqueFd> folder = OpenFolder();
  if (!folder.ok()) return folder.status();
  absl::StatusOr<std::vector<uint64_t>> files = ListMarkFiles(folder->get());
  if (!files.ok()) return files.status();
  uint64_t next = static_cast<uint64_t>(std::max<int64_t>(now_unix_s, 0));
  if (!files->empty()) {
    next = std::max(next, files->back() + 1);
    absl::Status opened = absl::OkStatus();
    if (!fd_.valid() || file_ != files->back()) opened = OpenFile(folder->get(), files->back(), false);
    // What is no regular file is left alone; the marks go into a file of their own.
    if (!opened.ok() && !absl::IsFailedPrecondition(opened)) return opened;
    char last = '\n';
    bool whole = opened.ok() && (size_ == 0 || (pread(fd_.get(), &last, 1, size_ - 1) == 1 && last == '\n'));
    if (whole && size_ <= kMaxMarkFileBytes) return Target{file_, size_};
  }
  if (absl::Status opened = OpenFile(folder->get(), next, true); !opened.ok()) return opened;
  return Target{file_, size_};
}

absl::Status RankFiles::Append(std::string_view lines) {
  ssize_t written = write(fd_.get(), lines.data(), lines.size());
  if (written == static_cast<ssize_t>(lines.size())) {
    size_ += written;
    return absl::OkStatus();
  }
  int error = written < 0 ? errno : ENOSPC;
  // Half a line would be read as a broken one for ever.
  if (written > 0 && ftruncate(fd_.get(), size_) != 0) fd_.reset();
  return absl::ErrnoToStatus(error, absl::StrCat(path(), "/", FileName(file_)));
}

absl::StatusOr<bool> RankFiles::SettleInterruptedWrite(uint64_t file, int64_t offset, int64_t bytes) {
  if (file > 9'999'999'999 || offset < 0 || offset > kMaxReadBytes || bytes <= 0 || bytes > kMaxWriteBytes) {
    return absl::InvalidArgumentError(absl::StrCat("rank ", rank_, ": the note of the last write is garbage"));
  }
  absl::StatusOr<UniqueFd> folder = OpenFolder();
  if (!folder.ok()) return folder.status();
  absl::Status opened = OpenFile(folder->get(), file, false);
  if (absl::IsNotFound(opened)) return false;
  if (!opened.ok()) return opened;
  if (size_ <= offset) return false;
  if (size_ >= offset + bytes) return true;
  if (ftruncate(fd_.get(), offset) != 0) return absl::ErrnoToStatus(errno, absl::StrCat(path(), "/", FileName(file)));
  size_ = offset;
  return false;
}

absl::StatusOr<std::string> RankFiles::ReadNewest(int count_from_newest) const {
  absl::StatusOr<UniqueFd> folder = OpenFolder();
  if (!folder.ok()) return folder.status();
  absl::StatusOr<std::vector<uint64_t>> files = ListMarkFiles(folder->get());
  if (!files.ok()) return files.status();
  if (files->size() <= static_cast<size_t>(count_from_newest)) return absl::NotFoundError("no such mark file");
  const std::string name = FileName((*files)[files->size() - 1 - count_from_newest]);
  UniqueFd fd(openat(folder->get(), name.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK));
  struct stat info;
  if (!fd.valid() || fstat(fd.get(), &info) != 0) return absl::ErrnoToStatus(errno, absl::StrCat(path(), "/", name));
  std::string text(std::min<int64_t>(info.st_size, kMaxReadBytes), '\0');
  size_t have = 0;
  while (have < text.size()) {
    ssize_t got = pread(fd.get(), text.data() + have, text.size() - have, static_cast<off_t>(have));
    if (got < 0) return absl::ErrnoToStatus(errno, absl::StrCat(path(), "/", name));
    if (got == 0) break;
    have += got;
  }
  text.resize(have);
  return text;
}

}  // namespace taskd
