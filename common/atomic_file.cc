#include "common/atomic_file.h"

#include <fcntl.h>
#include <sys/random.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <ctime>

#include "absl/strings/str_cat.h"
#include "common/unique_fd.h"

namespace taskd {
namespace {

absl::Status FileError(const std::string& path, int error) {
  return absl::UnavailableError(absl::StrCat(path, ": ", std::strerror(error)));
}

// Another process of the same id, in another container, may write the same file.
std::string FreshName(const std::string& name) {
  uint64_t random = 0;
  if (getrandom(&random, sizeof random, 0) != sizeof random) random = static_cast<uint64_t>(time(nullptr));
  return absl::StrCat(".", name, ".", getpid(), "-", absl::Hex(random), ".new");
}

// 0, or the error.
int WriteWhole(int file, std::string_view content) {
  while (!content.empty()) {
    const ssize_t size = ::write(file, content.data(), content.size());
    if (size >= 0) {
      content.remove_prefix(static_cast<size_t>(size));
    } else if (errno != EINTR) {
      return errno;
    }
  }
  return 0;
}

int SyncDescriptor(int file) {
  int result = 0;
  do {
    result = ::fsync(file);
  } while (result != 0 && errno == EINTR);
  return result == 0 ? 0 : errno;
}

}  // namespace

absl::Status WriteFileAtomically(int folder, const std::string& name, std::string_view content,
                                 const std::string& path) {
  const std::string fresh = FreshName(name);
  UniqueFd file(openat(folder, fresh.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (!file.valid()) return FileError(path, errno);
  int error = WriteWhole(file.get(), content);
  if (error == 0) error = SyncDescriptor(file.get());
  if (error == 0 && renameat(folder, fresh.c_str(), folder, name.c_str()) != 0) error = errno;
  if (error != 0) {
    unlinkat(folder, fresh.c_str(), 0);
    return FileError(path, error);
  }
  error = SyncDescriptor(folder);
  // Some file systems cannot do that with a folder.
  return error == 0 || error == EINVAL || error == ENOTSUP ? absl::OkStatus() : FileError(path, error);
}

absl::Status WriteFileAtomically(const std::string& path, std::string_view content) {
  const size_t slash = path.rfind('/');
  const std::string parent = slash == std::string::npos ? "." : path.substr(0, slash + 1);
  const UniqueFd folder(open(parent.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!folder.valid()) return FileError(path, errno);
  return WriteFileAtomically(folder.get(), path.substr(slash + 1), content, path);
}

}  // namespace taskd
