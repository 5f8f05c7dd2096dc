#include "agent/commands/output_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <climits>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/files.h"
#include "common/foreign_owner.h"
#include "taskd/own_user.h"

namespace taskd::commands {
namespace {

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

absl::Status Refused(const std::string& path, const std::string& why) {
  return absl::InvalidArgumentError(absl::StrCat("'", path, "' cannot be written: ", why));
}

// The descriptor that the path is a name of, as "/dev/fd/3" and "/dev/stdout" are, or -1.
int DescriptorOf(const std::string& path) {
  std::error_code error;
  const std::filesystem::path link = std::filesystem::read_symlink(path, error);
  for (const std::string& name : {path, error ? std::string() : link.string()}) {
    for (const char* folder : {"/dev/fd/", "/proc/self/fd/"}) {
      int descriptor = -1;
      if (absl::StartsWith(name, folder) && absl::SimpleAtoi(name.substr(std::strlen(folder)), &descriptor)) {
        return descriptor;
      }
    }
  }
  return -1;
}

// Describes the file at a path, after links are followed. `mode` is the mode of its replacement; without a value the
// umask decides.
struct Found {
  bool is_regular = true;  // or there is nothing yet
  std::optional<mode_t> mode = {};
};

absl::StatusOr<Found> Look(const std::string& path) {
  struct stat named;
  if (::lstat(path.c_str(), &named) != 0) {
    if (errno == ENOENT && !path.empty()) return Found{};
    return Refused(path, std::strerror(errno));
  }
  struct stat target = named;
  const bool is_link = S_ISLNK(named.st_mode);
  if (is_link) {
    if (!IsOwnUserOrRoot(named.st_uid)) {
      return Refused(path, absl::StrCat("it is a symbolic link that ", ForeignOwner(named.st_uid)));
    }
    if (::stat(path.c_str(), &target) != 0) {
      if (errno != ENOENT) return Refused(path, std::strerror(errno));
      return Found{.mode = 0600};  // the link's target does not exist, so its readers are unknown
    }
  }
  if (S_ISDIR(target.st_mode)) return Refused(path, std::strerror(EISDIR));
  if (S_ISREG(target.st_mode)) {
    const bool is_own = IsOwnUserOrRoot(target.st_uid);
    if (is_link && !is_own) return Found{.mode = 0600};
    return is_own ? Found{.mode = target.st_mode & 0777} : Found{};
  }
  if (!S_ISCHR(target.st_mode) && !IsOwnUserOrRoot(target.st_uid)) {
    return Refused(path, absl::StrCat("it is a pipe or socket that ", ForeignOwner(target.st_uid)));
  }
  return Found{.is_regular = false};
}

// A pipe or device is opened as any program does that is given one, and waits for a pipe's reader.
absl::StatusOr<UniqueFd> OpenSpecial(const std::string& path) {
  UniqueFd file(::open(path.c_str(), O_WRONLY | O_NOCTTY | O_CLOEXEC));
  struct stat status;
  if (!file.valid() || ::fstat(file.get(), &status) != 0) return Refused(path, std::strerror(errno));
  if (S_ISREG(status.st_mode)) return Refused(path, "a regular file replaced it while it was being opened");
  return file;
}

}  // namespace

absl::StatusOr<OutputFile> OutputFile::Create(const std::string& path) {
  OutputFile file;
  file.path_ = path == "-" ? "stdout" : path;
  const int descriptor = path == "-" ? STDOUT_FILENO : DescriptorOf(path);
  if (descriptor >= 0) {
    file.direct_.reset(::fcntl(descriptor, F_DUPFD_CLOEXEC, 0));
    if (!file.direct_.valid()) return Refused(file.path_, std::strerror(errno));
    return file;
  }
  absl::StatusOr<Found> found = Look(path);
  if (!found.ok()) return found.status();
  if (!found->is_regular) {
    absl::StatusOr<UniqueFd> special = OpenSpecial(path);
    if (!special.ok()) return special.status();
    file.direct_ = *std::move(special);
    return file;
  }
  if (path.size() + NAME_MAX >= sizeof(pending_name)) return Refused(path, std::strerror(ENAMETOOLONG));
  // Nothing may end the process between the file and its handler.
  sigset_t ending, before;
  ::sigemptyset(&ending);
  for (int signal : kEnding) ::sigaddset(&ending, signal);
  ::pthread_sigmask(SIG_BLOCK, &ending, &before);
  absl::StatusOr<FreshFile> fresh = FreshFile::Create(path, found->mode ? 0600 : 0666);
  const absl::Status made = fresh.status();
  if (made.ok()) {
    const std::string temporary = absl::StrCat(path.substr(0, path.rfind('/') + 1), fresh->fresh_name());
    pending_name[temporary.copy(pending_name, sizeof(pending_name) - 1)] = '\0';
    pending = true;
    for (int signal : kEnding) {
      if (::signal(signal, RemoveAndEnd) == SIG_IGN) ::signal(signal, SIG_IGN);
    }
    if (found->mode) ::fchmod(fresh->fd(), *found->mode);
    file.fresh_.emplace(*std::move(fresh));
  }
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (!made.ok()) return absl::InvalidArgumentError(made.message());
  return file;
}

OutputFile::OutputFile(OutputFile&& other) noexcept
    : path_(std::move(other.path_)), fresh_(std::move(other.fresh_)), direct_(std::move(other.direct_)) {
  other.fresh_.reset();  // else its destructor would take the name from the handler
}

OutputFile::~OutputFile() {
  if (!fresh_) return;
  fresh_.reset();
  pending = false;
}

absl::Status OutputFile::Write(std::string_view data) {
  const int error = WriteAll(fresh_ ? fresh_->fd() : direct_.get(), data);
  return error == 0 ? absl::OkStatus() : Error(path_, error);
}

absl::Status OutputFile::Commit() {
  // Some file systems report only here that there was no room.
  UniqueFd file = fresh_ ? fresh_->TakeFile() : std::move(direct_);
  if (::close(file.release()) != 0) return Error(path_, errno);
  if (!fresh_) return absl::OkStatus();
  if (absl::Status status = fresh_->Commit(); !status.ok()) return status;
  fresh_.reset();
  pending = false;
  return absl::OkStatus();
}

}  // namespace taskd::commands
