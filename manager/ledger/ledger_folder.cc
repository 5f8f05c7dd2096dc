#include "manager/ledger/ledger_folder.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <random>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/atomic_file.h"
#include "common/files.h"
#include "common/foreign_owner.h"
#include "common/log.h"
#include "common/printable.h"
#include "common/runtime_dir.h"
#include "ledger/kept.h"
#include "taskd/own_user.h"

namespace taskd::manager {
namespace {

constexpr size_t kMaxLockBytes = 1024;

std::string NewId() {
  std::random_device random;
  return absl::StrCat(absl::Hex(random(), absl::kZeroPad8), absl::Hex(random(), absl::kZeroPad8));
}

// When it was started, in ticks since the boot: what tells two processes of one number apart. Empty: there is none that
// runs; one that nobody has waited for yet does not.
std::string StartOf(int pid) {
  const std::string line = FirstLineOfSystemFile(absl::StrCat("/proc/", pid, "/stat"));
  const std::vector<std::string> fields = absl::StrSplit(line.substr(line.rfind(')') + 1), ' ', absl::SkipEmpty());
  return fields.size() > 19 && fields[0] != "Z" && fields[0] != "X" ? fields[19] : "";
}

// Processes that have it in common have their process ids in common.
std::string PidsOf() {
  std::error_code error;
  const std::string space = std::filesystem::read_symlink("/proc/self/ns/pid", error).string();
  return absl::StrCat(FirstLineOfSystemFile("/proc/sys/kernel/random/boot_id"), " ", error ? "-" : space);
}

std::string LockText(const std::string& id) {
  char host[256] = {};
  if (gethostname(host, sizeof(host) - 1) != 0) host[0] = 0;
  return absl::StrCat(id, "\n", getpid(), "\n", StartOf(getpid()), "\n", PidsOf(), "\n", host, "\n");
}

absl::Status CheckOwner(const std::string& path, const struct stat& status) {
  if (!IsOwnUserOrRoot(status.st_uid)) {
    return absl::UnavailableError(absl::StrCat(path, " ", ForeignOwner(status.st_uid)));
  }
  if ((status.st_mode & 022) != 0) {
    return absl::UnavailableError(
        absl::StrCat("others can write to ", path, "; take that from them or name a new folder below it"));
  }
  return absl::OkStatus();
}

}  // namespace

LedgerFolder::LedgerFolder(std::string folder, std::string job, std::string task, Guard guard)
    : path_(std::move(folder)),
      job_(std::move(job)),
      task_(std::move(task)),
      ledger_name_(absl::StrCat(ledger::KeptName(job_, task_), ledger::kKeptSuffix)),
      lock_name_(absl::StrCat(ledger::KeptName(job_, task_), ".lock")),
      id_(NewId()),
      lock_text_(LockText(id_)),
      guard_(guard) {}

LedgerFolder::~LedgerFolder() {
  std::string text;
  if (!owns_ || ReadLock(&text).value_or("") != id_) return;
  if (unlinkat(folder_.get(), lock_name_.c_str(), 0) != 0) spdlog::warn("{}", Error(lock_name_).message());
}

absl::Status LedgerFolder::Error(const std::string& name) const {
  return absl::UnavailableError(absl::StrCat(path_, "/", name, ": ", strerror(errno)));
}

absl::Status LedgerFolder::OpenFolder() {
  if (folder_.get() >= 0) return absl::OkStatus();
  absl::StatusOr<UniqueFd> folder = OpenNamedDir(path_);
  struct stat status;
  if (!folder.ok()) return absl::UnavailableError(folder.status().message());
  if (fstat(folder->get(), &status) != 0) return absl::UnavailableError(absl::StrCat(path_, ": ", strerror(errno)));
  if (absl::Status mine = CheckOwner(path_, status); !mine.ok()) return mine;
  folder_ = *std::move(folder);
  return absl::OkStatus();
}

// NOT_FOUND: there is none.
absl::StatusOr<std::string> LedgerFolder::ReadWhole(const std::string& name) const {
  absl::StatusOr<std::string> text =
      ReadFile(name, ledger::kMaxKeptBytes,
               {.folder = folder_.get(), .shown = absl::StrCat(path_, "/", name), .only_own = true});
  if (text.ok() || absl::IsNotFound(text.status())) return text;
  return absl::UnavailableError(text.status().message());
}

absl::Status LedgerFolder::Replace(const std::string& name, const std::string& text) const {
  return WriteFileAtomically(folder_.get(), name, text, absl::StrCat(path_, "/", name));
}

absl::StatusOr<std::string> LedgerFolder::ReadLock(std::string* text) const {
  absl::StatusOr<std::string> read = ReadWhole(lock_name_);
  if (absl::IsNotFound(read.status())) return "";
  if (!read.ok()) return read.status();
  *text = read->substr(0, kMaxLockBytes);
  const std::vector<std::string> lines = absl::StrSplit(*text, '\n');
  const bool is_id = lines[0].size() == id_.size() &&
                     std::all_of(lines[0].begin(), lines[0].end(), [](unsigned char c) { return std::isxdigit(c); });
  return is_id ? lines[0] : std::string("unreadable");
}

bool LedgerFolder::IsDead(const std::string& lock_text) const {
  const std::vector<std::string> theirs = absl::StrSplit(lock_text, '\n');
  const std::vector<std::string> mine = absl::StrSplit(lock_text_, '\n');
  int pid = 0;
  if (theirs.size() < 5 || theirs[3] != mine[3] || !absl::SimpleAtoi(theirs[1], &pid) || pid <= 0) return false;
  return StartOf(pid) != theirs[2];
}

absl::StatusOr<bool> LedgerFolder::IsStale(std::initializer_list<std::string> names) const {
  // What the file system's clock says now.
  const std::string name = absl::StrCat(lock_name_, ".", id_, ".now");
  const UniqueFd now(openat(folder_.get(), name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
  struct stat status;
  if (now.get() < 0 || fstat(now.get(), &status) != 0) return Error(name);
  const int64_t now_s = status.st_mtime;
  unlinkat(folder_.get(), name.c_str(), 0);
  int64_t newest_s = 0;
  for (const std::string& written : names) {
    if (fstatat(folder_.get(), written.c_str(), &status, AT_SYMLINK_NOFOLLOW) == 0) {
      newest_s = std::max<int64_t>(newest_s, status.st_mtime);
    }
  }
  return now_s - newest_s >= kStaleS;
}

absl::Status LedgerFolder::TakeOver(const std::string& owner) {
  const std::string taken = absl::StrCat(lock_name_, ".", owner, ".taken");
  UniqueFd file(openat(folder_.get(), taken.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (file.get() < 0 && errno != EEXIST) return Error(taken);
  if (file.get() < 0) {
    // Whoever made it may have ended since. The lock is old by then, whoever takes it over.
    absl::StatusOr<bool> stale = IsStale({taken});
    if (stale.ok() && *stale) unlinkat(folder_.get(), taken.c_str(), 0);
    return absl::UnavailableError(absl::StrCat("another manager is taking over ", path_, "/", lock_name_));
  }
  // Another one may have taken it over between the look at the lock and this.
  std::string text;
  absl::StatusOr<std::string> now = ReadLock(&text);
  absl::Status status = now.status();
  if (now.ok() && *now != owner) status = absl::UnavailableError("another manager has just taken it over");
  if (status.ok()) status = Replace(lock_name_, lock_text_);
  unlinkat(folder_.get(), taken.c_str(), 0);
  return status;
}

absl::Status LedgerFolder::TakeLock() {
  if (guard_ == Guard::kByTheCaller) return absl::OkStatus();
  UniqueFd file(openat(folder_.get(), lock_name_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (file.get() >= 0) {
    errno = WriteAll(file.get(), lock_text_);
    if (errno == 0) return absl::OkStatus();
    const absl::Status status = Error(lock_name_);
    unlinkat(folder_.get(), lock_name_.c_str(), 0);
    return status;
  }
  if (errno != EEXIST) return Error(lock_name_);
  std::string text;
  absl::StatusOr<std::string> owner = ReadLock(&text);
  if (!owner.ok()) return owner.status();
  if (*owner == id_) return absl::OkStatus();
  if (owner->empty()) return absl::UnavailableError("another manager has just let it go");
  bool free = IsDead(text);
  if (!free) {
    absl::StatusOr<bool> stale = IsStale({lock_name_, ledger_name_});
    if (!stale.ok()) return stale.status();
    free = *stale;
  }
  if (free) return TakeOver(*owner);
  const std::vector<std::string> lines = absl::StrSplit(text, '\n');
  return absl::UnavailableError(absl::StrCat(
      "another manager has it (",
      lines.size() > 4 ? absl::StrCat("host ", Printable(lines[4]), ", pid ", Printable(lines[1])) : "unknown", ")"));
}

absl::StatusOr<std::string> LedgerFolder::Open() {
  if (absl::Status status = OpenFolder(); !status.ok()) return status;
  // Before the lock: what is not for this manager is left as it is.
  absl::StatusOr<std::string> text = ReadWhole(ledger_name_);
  absl::StatusOr<ledger::KeptLedger> read = absl::NotFoundError("");
  if (text.ok()) read = ledger::ReadKept(*text);
  if (absl::IsFailedPrecondition(read.status())) {
    return absl::FailedPreconditionError(absl::StrCat(path_, "/", ledger_name_, ": ", read.status().message(),
                                                      "; it is left as it is, and this attempt is not kept"));
  }
  const bool is_shared = guard_ == Guard::kLockFile;
  if (is_shared && read.ok() && (read->job != job_ || read->task != task_)) {
    return absl::FailedPreconditionError(absl::StrCat(path_, "/", ledger_name_, " is of job ", Printable(read->job),
                                                      ", task '", Printable(read->task), "'"));
  }
  if (absl::Status status = TakeLock(); !status.ok()) return status;
  owns_ = guard_ == Guard::kLockFile;
  text = ReadWhole(ledger_name_);  // its last owner may have written meanwhile
  if (absl::IsNotFound(text.status())) return "";
  if (!text.ok()) return text.status();
  if (read = ledger::ReadKept(*text); read.ok()) return text;
  const std::string aside = absl::StrCat(ledger_name_, ".unreadable-", time(nullptr));
  spdlog::warn("{}/{} cannot be read: {}; moved to {}, the ledger begins anew", path_, ledger_name_,
               read.status().message(), aside);
  if (renameat(folder_.get(), ledger_name_.c_str(), folder_.get(), aside.c_str()) != 0) return Error(aside);
  return "";
}

absl::Status LedgerFolder::Save(const std::string& text) {
  if (guard_ == Guard::kByTheCaller) return Replace(ledger_name_, text);
  std::string lock_text;
  absl::StatusOr<std::string> owner = ReadLock(&lock_text);
  if (!owner.ok()) return owner.status();
  if (*owner != id_) return absl::AbortedError("another manager has taken it over");
  return Replace(ledger_name_, text);
}

}  // namespace taskd::manager
