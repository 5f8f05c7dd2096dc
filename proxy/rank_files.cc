#include "proxy/rank_files.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "proxy/folder.h"

namespace taskd::proxy {
namespace {

// A write never has more than this: a longer one in an intent is a hostile segment's.
constexpr int64_t kMaxWriteBytes = int64_t{64} * 1024 * 1024;
// Read back at take-over: a file of the limit and the write that took it there.
constexpr int64_t kMaxReadBytes = kMaxMarkFileBytes + kMaxWriteBytes;

// More in one folder than any job makes: then the newest of those that were seen.
constexpr size_t kMaxListed = 1 << 16;

// Names of mark files, ascending.
absl::StatusOr<std::vector<uint64_t>> ListMarkFiles(int folder) {
  std::vector<uint64_t> files;
  absl::Status listed = ListFolder(folder, [&files](const char* name) {
    uint64_t number;
    if (IsMarkFileName(name) && absl::SimpleAtoi(name, &number)) files.push_back(number);
    return files.size() < kMaxListed;
  });
  if (!listed.ok()) return listed;
  std::sort(files.begin(), files.end());
  return files;
}

// The name of the file that follows all of `files` (ascending). Where something has the last of all names, the file
// goes before it: ten digits are all that readers know.
uint64_t NextName(const std::vector<uint64_t>& files, int64_t now_unix_s) {
  const uint64_t now = std::clamp<int64_t>(now_unix_s, 0, kLastMarkFile);
  if (files.empty()) return now;
  if (files.back() < kLastMarkFile) return std::max(now, files.back() + 1);
  uint64_t end = kLastMarkFile;  // taken, as are all above
  size_t left = files.size() - 1;
  for (; left > 0 && files[left - 1] + 1 == end; --left) --end;
  const uint64_t begin = left > 0 ? files[left - 1] + 1 : 0;
  return std::clamp(now, begin, end - 1);
}

// Left alone; the marks go into a file of their own.
bool InTheWay(const absl::Status& opened) {
  return absl::IsFailedPrecondition(opened) || absl::IsPermissionDenied(opened) || absl::IsNotFound(opened);
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
  const std::string path = absl::StrCat(this->path(), "/", name);
  UniqueFd fd;
  if (create) {
    fd.reset(openat(folder, name.c_str(), O_RDWR | O_APPEND | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644));
    if (!fd.valid()) return absl::ErrnoToStatus(errno, path);
  } else {
    absl::StatusOr<UniqueFd> opened = OpenRegular(folder, name, O_RDWR | O_APPEND, path);
    if (!opened.ok()) return opened.status();
    fd = *std::move(opened);
  }
  struct stat info;
  if (fstat(fd.get(), &info) != 0) return absl::ErrnoToStatus(errno, path);
  // Marks the file as in use for proxies that age this folder. A file system without locks is no reason to stop.
  (void)flock(fd.get(), LOCK_SH | LOCK_NB);
  fd_ = std::move(fd);
  has_part_ = false;
  file_ = file;
  size_ = info.st_size;
  return absl::OkStatus();
}

bool RankFiles::StillThere() const {
  struct stat info;
  return fd_.valid() && fstat(fd_.get(), &info) == 0 && info.st_nlink > 0 && info.st_size == size_;
}

absl::StatusOr<RankFiles::Target> RankFiles::Prepare(int64_t now_unix_s) {
  if (absl::Status removed = RemovePart(); !removed.ok()) return removed;
  // The file may have been removed or truncated; then look at the folder again.
  if (!StillThere()) fd_.reset();
  if (fd_.valid() && size_ <= kMaxMarkFileBytes) return Target{file_, size_};
  absl::StatusOr<UniqueFd> folder = dir_.OpenRank(rank_);
  if (!folder.ok()) return folder.status();
  absl::StatusOr<std::vector<uint64_t>> files = ListMarkFiles(folder->get());
  if (!files.ok()) return files.status();
  if (!files->empty()) {
    absl::Status opened = absl::OkStatus();
    if (!fd_.valid() || file_ != files->back()) opened = OpenFile(folder->get(), files->back(), false);
    if (!opened.ok() && !InTheWay(opened)) return opened;
    char last = '\n';
    bool whole = opened.ok() && (size_ == 0 || (pread(fd_.get(), &last, 1, size_ - 1) == 1 && last == '\n'));
    if (whole && size_ <= kMaxMarkFileBytes) return Target{file_, size_};
  }
  if (absl::Status made = OpenFile(folder->get(), NextName(*files, now_unix_s), true); !made.ok()) return made;
  return Target{file_, size_};
}

absl::Status RankFiles::Append(std::string_view lines) {
  ssize_t written = write(fd_.get(), lines.data(), lines.size());
  if (written == static_cast<ssize_t>(lines.size())) {
    size_ += written;
    return absl::OkStatus();
  }
  int error = written < 0 ? errno : ENOSPC;
  has_part_ = written > 0;
  (void)RemovePart();
  return absl::ErrnoToStatus(error, absl::StrCat(path(), "/", FileName(file_)));
}

// Half a line would be read as a broken one for ever, and the whole lines before it are about to be written again.
absl::Status RankFiles::RemovePart() {
  struct stat info;
  if (!has_part_ || fstat(fd_.get(), &info) != 0) return absl::OkStatus();
  if (info.st_nlink > 0 && info.st_size > size_ && ftruncate(fd_.get(), size_) != 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat(path(), "/", FileName(file_)));
  }
  has_part_ = false;
  return absl::OkStatus();
}

absl::StatusOr<bool> RankFiles::SettleInterruptedWrite(uint64_t file, int64_t offset, int64_t bytes) {
  if (file > kLastMarkFile || offset < 0 || offset > kMaxReadBytes || bytes <= 0 || bytes > kMaxWriteBytes) {
    return absl::InvalidArgumentError(absl::StrCat("rank ", rank_, ": the note of the last write is garbage"));
  }
  absl::StatusOr<UniqueFd> folder = dir_.OpenRank(rank_);
  if (!folder.ok()) return folder.status();
  fd_.reset();  // its lock is ours
  absl::Status opened = OpenFile(folder->get(), file, false);
  // Whatever has its name now, the write is not in it.
  if (absl::IsNotFound(opened) || absl::IsFailedPrecondition(opened)) return false;
  if (!opened.ok()) return opened;
  if (flock(fd_.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
    fd_.reset();
    return absl::UnavailableError(absl::StrCat(path(), "/", FileName(file),
                                               ": another process has it open; it may be the proxy before this one"));
  }
  (void)flock(fd_.get(), LOCK_SH | LOCK_NB);
  struct stat info;
  if (fstat(fd_.get(), &info) != 0) return absl::ErrnoToStatus(errno, path());
  size_ = info.st_size;
  if (size_ <= offset) return false;
  if (size_ >= offset + bytes) return true;
  if (ftruncate(fd_.get(), offset) != 0) return absl::ErrnoToStatus(errno, absl::StrCat(path(), "/", FileName(file)));
  size_ = offset;
  return false;
}

absl::StatusOr<std::string> RankFiles::ReadNewest(int count_from_newest) const {
  absl::StatusOr<UniqueFd> folder = dir_.OpenRank(rank_);
  if (!folder.ok()) return folder.status();
  absl::StatusOr<std::vector<uint64_t>> files = ListMarkFiles(folder->get());
  if (!files.ok()) return files.status();
  for (auto file = files->rbegin(); file != files->rend(); ++file) {
    const std::string path = absl::StrCat(this->path(), "/", FileName(*file));
    absl::StatusOr<UniqueFd> fd = OpenRegular(folder->get(), FileName(*file), O_RDONLY, path);
    if (!fd.ok() && InTheWay(fd.status())) continue;
    if (!fd.ok()) return fd.status();
    if (count_from_newest-- > 0) continue;
    struct stat info;
    if (fstat(fd->get(), &info) != 0) return absl::ErrnoToStatus(errno, path);
    std::string text(std::min<int64_t>(info.st_size, kMaxReadBytes), '\0');
    size_t have = 0;
    while (have < text.size()) {
      ssize_t got = pread(fd->get(), text.data() + have, text.size() - have, static_cast<off_t>(have));
      if (got < 0) return absl::ErrnoToStatus(errno, path);
      if (got == 0) break;
      have += got;
    }
    text.resize(have);
    return text;
  }
  return absl::NotFoundError("no such mark file");
}

}  // namespace taskd::proxy
