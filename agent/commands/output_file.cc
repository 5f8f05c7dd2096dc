#include "agent/commands/output_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <climits>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"

namespace taskd::commands {
namespace {

constexpr int kMaxLinks = 40;
constexpr int kEnding[] = {SIGINT, SIGTERM, SIGHUP};

// For the handler: a name that it may read at any time.
char pending_name[PATH_MAX];
std::atomic<bool> pending = false;
static_assert(std::atomic<bool>::is_always_lock_free);

void RemoveAndEnd(int signal) {
  if (pending) ::unlink(pending_name);
  ::signal(signal, SIG_DFL);
  ::raise(signal);
}

absl::Status Error(const std::string& path, int error) {
  return absl::UnavailableError(absl::StrCat(path, ": ", std::strerror(error)));
}

// Follows symbolic links of the last part of `path`, also where they point to nothing yet.
std::string Resolve(std::string path) {
  for (int i = 0; i < kMaxLinks; ++i) {
    char link[PATH_MAX];
    ssize_t length = ::readlink(path.c_str(), link, sizeof(link));
    if (length < 0 || length == sizeof(link)) break;
    std::string target(link, static_cast<size_t>(length));
    size_t slash = path.rfind('/');
    if (target.starts_with('/') || slash == std::string::npos) {
      path = target;
    } else {
      path.replace(slash + 1, std::string::npos, target);
    }
  }
  return path;
}

mode_t NewFileMode() {
  mode_t mask = ::umask(0);
  ::umask(mask);
  return 0666 & ~mask;
}

}  // namespace

absl::StatusOr<OutputFile> OutputFile::Create(const std::string& path) {
  OutputFile file;
  file.path_ = path;
  if (path == "-") {
    file.fd_ = ::fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 0);
    if (file.fd_ < 0) return absl::InvalidArgumentError(absl::StrCat("stdout: ", std::strerror(errno)));
    file.path_ = "stdout";
    return file;
  }
  auto refuse = [&](const char* why) {
    return absl::InvalidArgumentError(absl::StrCat("'", path, "' cannot be written: ", why));
  };
  struct stat status;
  bool exists = ::stat(path.c_str(), &status) == 0;
  if (path.empty() || (exists && S_ISDIR(status.st_mode))) return refuse(std::strerror(path.empty() ? ENOENT : EISDIR));
  if (exists && !S_ISREG(status.st_mode)) {
    file.fd_ = ::open(path.c_str(), O_WRONLY | O_CLOEXEC);
    if (file.fd_ < 0) return refuse(std::strerror(errno));
    return file;
  }
  file.target_ = Resolve(path);
  size_t name = file.target_.rfind('/') + 1;
  std::string temporary = absl::StrCat(file.target_.substr(0, name), ".", file.target_.substr(name), ".XXXXXX");
  if (temporary.size() >= sizeof(pending_name)) return refuse(std::strerror(ENAMETOOLONG));
  // Nothing may end the process between the file and its handler.
  sigset_t ending, before;
  ::sigemptyset(&ending);
  for (int signal : kEnding) ::sigaddset(&ending, signal);
  ::pthread_sigmask(SIG_BLOCK, &ending, &before);
  file.fd_ = ::mkostemp(temporary.data(), O_CLOEXEC);
  int error = errno;
  if (file.fd_ >= 0) {
    file.temporary_ = temporary;
    pending_name[temporary.copy(pending_name, sizeof(pending_name) - 1)] = '\0';
    pending = true;
    for (int signal : kEnding) {
      if (::signal(signal, RemoveAndEnd) == SIG_IGN) ::signal(signal, SIG_IGN);
    }
  }
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (file.fd_ < 0) return refuse(std::strerror(error));
  ::fchmod(file.fd_, exists ? status.st_mode & 0777 : NewFileMode());
  return file;
}

OutputFile::OutputFile(OutputFile&& other) noexcept
    : path_(std::move(other.path_)),
      target_(std::move(other.target_)),
      temporary_(std::exchange(other.temporary_, "")),
      fd_(std::exchange(other.fd_, -1)) {}

OutputFile::~OutputFile() {
  if (fd_ >= 0) ::close(fd_);
  if (temporary_.empty()) return;
  ::unlink(temporary_.c_str());
  pending = false;
}

absl::Status OutputFile::Write(std::string_view data) {
  while (!data.empty()) {
    ssize_t written = ::write(fd_, data.data(), data.size());
    if (written < 0) {
      if (errno == EINTR) continue;
      return Error(path_, errno);
    }
    data.remove_prefix(static_cast<size_t>(written));
  }
  return absl::OkStatus();
}

absl::Status OutputFile::Commit() {
  // Some file systems report only here that there was no room.
  if (::close(std::exchange(fd_, -1)) != 0) return Error(path_, errno);
  if (temporary_.empty()) return absl::OkStatus();
  if (::rename(temporary_.c_str(), target_.c_str()) != 0) return Error(path_, errno);
  pending = false;
  temporary_.clear();
  return absl::OkStatus();
}

}  // namespace taskd::commands
