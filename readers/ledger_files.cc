#include "readers/ledger_files.h"

#include <fcntl.h>
#include <sqlite3.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "common/files.h"
#include "common/printable.h"
#include "common/unique_fd.h"

namespace taskd::readers {
namespace {

constexpr int kBusyMs = 2000;  // its manager may be writing
constexpr size_t kMaxListed = 20;
constexpr size_t kMaxDatabaseLedgers = 4096;
constexpr int kOperationsAStep = 10'000;  // of SQLite's virtual machine
constexpr int kMaxSteps = 5000;           // about a second; a manager's own database needs one

absl::StatusOr<ledger::KeptLedger> ReadLedger(const std::string& path) {
  absl::StatusOr<std::string> text = ReadFile(path, ledger::kMaxKeptBytes, {.shown = "it", .follow_links = true});
  if (!text.ok()) return absl::InvalidArgumentError(absl::StripPrefix(text.status().message(), "it: "));
  return ledger::ReadKept(*text);
}

std::string NameOf(const ledger::KeptLedger& ledger) {
  return ledger.task.empty() ? Printable(ledger.job)
                             : absl::StrCat(Printable(ledger.job), " (task ", Printable(ledger.task), ")");
}

}  // namespace

absl::StatusOr<std::vector<LedgerFile>> ListLedgers(const std::string& folder) {
  std::error_code error;
  std::vector<LedgerFile> ledgers;
  for (auto entry = std::filesystem::directory_iterator(folder, error);
       !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    const std::string path = entry->path().string();
    if (absl::EndsWith(path, ledger::kKeptSuffix)) ledgers.push_back({path, ReadLedger(path)});
  }
  if (error) return absl::InvalidArgumentError(absl::StrCat(folder, ": ", error.message()));
  if (ledgers.empty()) return absl::InvalidArgumentError(absl::StrCat(folder, ": no ledger is in it"));
  std::sort(ledgers.begin(), ledgers.end(), [](const LedgerFile& a, const LedgerFile& b) { return a.path < b.path; });
  return ledgers;
}

namespace {

// Opens the database without its journal, for a folder without write permission.
std::string ImmutableUri(const std::string& path) {
  std::string uri = "file:";
  for (const char c : path) {
    absl::StrAppend(&uri, absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '/'
                              ? std::string(1, c)
                              : absl::StrCat("%", absl::Hex(static_cast<unsigned char>(c), absl::kZeroPad2)));
  }
  return uri + "?immutable=1";
}

// The file may be from an untrusted user: a view in place of the table may call functions, or never end. `steps` counts
// while the database is open.
void Distrust(sqlite3* db, int* steps) {
  sqlite3_db_config(db, SQLITE_DBCONFIG_DEFENSIVE, 1, nullptr);
  sqlite3_db_config(db, SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0, nullptr);
  sqlite3_limit(db, SQLITE_LIMIT_LENGTH, static_cast<int>(ledger::kMaxKeptBytes) + 1);
  sqlite3_progress_handler(
      db, kOperationsAStep, [](void* count) { return ++*static_cast<int*>(count) > kMaxSteps ? 1 : 0; }, steps);
}

// SQLite opens these by itself, and would block on a FIFO.
absl::Status CheckDatabaseFiles(const std::string& path) {
  for (const char* suffix : {"", "-journal", "-wal", "-shm"}) {
    const absl::Status good = OpenFile(path + suffix, O_RDONLY).status();
    if (absl::IsFailedPrecondition(good)) return absl::InvalidArgumentError(good.message());
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<LedgerFile>> ReadDatabase(const std::string& path, const std::string& name, int flags) {
  sqlite3* opened = nullptr;
  const int open_code = sqlite3_open_v2(name.c_str(), &opened, flags | SQLITE_OPEN_NOMUTEX, nullptr);
  const std::unique_ptr<sqlite3, decltype(&sqlite3_close)> db(opened, sqlite3_close);
  sqlite3_stmt* prepared = nullptr;
  int code = open_code;
  int steps = 0;
  if (code == SQLITE_OK) {
    sqlite3_busy_timeout(db.get(), kBusyMs);
    Distrust(db.get(), &steps);
    code = sqlite3_prepare_v2(db.get(), "SELECT state FROM ledger ORDER BY job, task_id", -1, &prepared, nullptr);
  }
  const std::unique_ptr<sqlite3_stmt, decltype(&sqlite3_finalize)> rows(prepared, sqlite3_finalize);
  std::vector<LedgerFile> ledgers;
  if (code == SQLITE_ERROR) return ledgers;  // the table does not exist
  while (code == SQLITE_OK || code == SQLITE_ROW) {
    code = sqlite3_step(rows.get());
    if (code != SQLITE_ROW) break;
    if (ledgers.size() == kMaxDatabaseLedgers)
      return absl::InvalidArgumentError(absl::StrCat(path, ": has too many rows"));
    const auto* text = reinterpret_cast<const char*>(sqlite3_column_text(rows.get(), 0));
    const auto size = static_cast<size_t>(sqlite3_column_bytes(rows.get(), 0));
    ledgers.push_back({path, ledger::ReadKept(text == nullptr ? std::string_view() : std::string_view(text, size))});
  }
  if (code != SQLITE_DONE) {
    const char* why = db == nullptr ? sqlite3_errstr(code) : sqlite3_errmsg(db.get());
    const bool read_only = code == SQLITE_CANTOPEN || (code & 0xff) == SQLITE_READONLY;
    return absl::Status(read_only ? absl::StatusCode::kPermissionDenied : absl::StatusCode::kInvalidArgument,
                        absl::StrCat(path, ": ", why));
  }
  return ledgers;
}

// Lists the ledgers of a release that kept them in the database.
absl::StatusOr<std::vector<LedgerFile>> ListDatabaseLedgers(const std::string& path, std::string* note) {
  if (absl::Status good = CheckDatabaseFiles(path); !good.ok()) return good;
  // Open for writing: if the manager was killed during a change, SQLite first has to restore the data from the journal.
  absl::StatusOr<std::vector<LedgerFile>> ledgers = ReadDatabase(path, path, SQLITE_OPEN_READWRITE);
  if (!absl::IsPermissionDenied(ledgers.status()) || access(path.c_str(), R_OK) != 0) return ledgers;
  ledgers = ReadDatabase(path, ImmutableUri(path), SQLITE_OPEN_READONLY | SQLITE_OPEN_URI);
  if (ledgers.ok() && access((path + "-journal").c_str(), F_OK) == 0) {
    *note = absl::StrCat(path, ": cannot be written to, so that a change that its manager had begun is not taken back");
  }
  return ledgers;
}

}  // namespace

absl::StatusOr<std::vector<LedgerFile>> ListStateLedgers(const std::string& folder, std::string* note) {
  absl::StatusOr<std::vector<LedgerFile>> files = ListLedgers(folder);
  const std::string path = absl::StrCat(folder, "/manager.db");
  if (files.ok() || access(path.c_str(), F_OK) != 0) return files;
  absl::StatusOr<std::vector<LedgerFile>> ledgers = ListDatabaseLedgers(path, note);
  if (!ledgers.ok()) return absl::InvalidArgumentError(ledgers.status().message());
  return ledgers->empty() ? files : ledgers;
}

absl::StatusOr<ledger::KeptLedger> ChooseLedger(const std::vector<LedgerFile>& ledgers, const std::string& job) {
  std::vector<const LedgerFile*> chosen;
  std::vector<std::string> names;
  for (const LedgerFile& file : ledgers) {
    if (!file.ledger.ok() || job.empty() || file.ledger->job == job) chosen.push_back(&file);
    if (file.ledger.ok() && names.size() < kMaxListed) names.push_back(NameOf(*file.ledger));
  }
  if (!job.empty()) {
    // An unreadable ledger may be the job's. It is chosen only if no readable one is.
    const bool found = std::any_of(chosen.begin(), chosen.end(), [](const auto* file) { return file->ledger.ok(); });
    if (found) std::erase_if(chosen, [](const LedgerFile* file) { return !file->ledger.ok(); });
  }
  if (chosen.size() == 1 && !chosen[0]->ledger.ok()) {
    const absl::Status& status = chosen[0]->ledger.status();
    return absl::Status(status.code(), absl::StrCat(chosen[0]->path, ": ", status.message()));
  }
  if (chosen.size() == 1) return *chosen[0]->ledger;
  if (chosen.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("no ledger of job ", Printable(job), " is there, but of ", absl::StrJoin(names, ", ")));
  }
  return absl::InvalidArgumentError(absl::StrCat(
      chosen.size(), " ledgers are there, --job NAMESPACE/NAME chooses one: ", absl::StrJoin(names, ", ")));
}

}  // namespace taskd::readers
