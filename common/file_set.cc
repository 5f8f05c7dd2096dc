#include "common/file_set.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/unique_fd.h"

namespace taskd {
namespace {

absl::Status Error(const std::string& path) {
  return absl::UnavailableError(absl::StrCat(path, " cannot be written: ", std::strerror(errno)));
}

bool WriteAll(int fd, std::string_view data) {
  while (!data.empty()) {
    const ssize_t written = ::write(fd, data.data(), data.size());
    if (written >= 0) {
      data.remove_prefix(static_cast<size_t>(written));
    } else if (errno != EINTR) {
      return false;
    }
  }
  return true;
}

std::string Folder(const std::string& path) {
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? "." : path.substr(0, slash + 1);
}

}  // namespace

FileSet::~FileSet() {
  for (const File& file : files_) {
    if (!file.temporary.empty()) ::unlink(file.temporary.c_str());
  }
}

absl::Status FileSet::Add(const std::string& path, std::string_view content) {
  const std::string folder = Folder(path);
  const std::string name = path.substr(path.rfind('/') + 1);
  std::string temporary = absl::StrCat(folder.ends_with('/') ? folder : folder + "/", ".", name, ".XXXXXX");
  UniqueFd fd(::mkostemp(temporary.data(), O_CLOEXEC));
  if (!fd.valid()) return Error(path);
  files_.push_back({path, temporary});
  const mode_t mask = ::umask(0);
  ::umask(mask);
  // Without the data on the disk a crash of the machine could leave the name with nothing behind it.
  if (::fchmod(fd.get(), 0666 & ~mask) != 0 || !WriteAll(fd.get(), content) || ::fsync(fd.get()) != 0) {
    return Error(path);
  }
  return absl::OkStatus();
}

absl::Status FileSet::Commit() {
  for (File& file : files_) {
    if (::rename(file.temporary.c_str(), file.path.c_str()) != 0) {
      absl::Status status = Error(file.path);
      for (const File& done : files_) {
        if (done.temporary.empty()) ::unlink(done.path.c_str());
      }
      return status;
    }
    file.temporary.clear();
  }
  for (const File& file : files_) {
    // Best effort: the names are there, and not every file system can do this.
    const UniqueFd folder(::open(Folder(file.path).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (folder.valid()) ::fsync(folder.get());
  }
  return absl::OkStatus();
}

}  // namespace taskd
