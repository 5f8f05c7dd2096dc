#include "manager/switch/state_db.h"

#include <fcntl.h>
#include <sqlite3.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <ctime>
#include <filesystem>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/files.h"
#include "common/foreign_owner.h"
#include "common/log.h"
#include "common/runtime_dir.h"
#include "taskd/own_user.h"

namespace taskd::manager {
namespace {

constexpr int kBusyMs = 2000;  // somebody looks at the file with a tool

// A rollback journal, not WAL: WAL needs memory that all users of the file share, which a network file system does not
// give. Two syncs a change are affordable: switches and faults are rare, and verdicts are saved every few seconds at most
// (DiagnosisCore::kSaveAgain).
constexpr char kSchema[] = R"sql(
  PRAGMA journal_mode = TRUNCATE;
  PRAGMA synchronous = NORMAL;
  BEGIN IMMEDIATE;
  CREATE TABLE IF NOT EXISTS wanted_state (
    job TEXT NOT NULL,
    task_id TEXT NOT NULL,
    revision INTEGER NOT NULL,
    requested INTEGER NOT NULL,
    effective INTEGER NOT NULL,
    last_file TEXT,
    last_clusterd TEXT,
    PRIMARY KEY (job, task_id));
  CREATE TABLE IF NOT EXISTS verdicts (
    job TEXT NOT NULL,
    task_id TEXT NOT NULL,
    position INTEGER NOT NULL,
    verdict BLOB NOT NULL,
    PRIMARY KEY (job, task_id, position));
  CREATE TABLE IF NOT EXISTS faults (
    job TEXT NOT NULL,
    task_id TEXT NOT NULL,
    verdict INTEGER NOT NULL,
    state INTEGER NOT NULL,
    request BLOB NOT NULL,
    PRIMARY KEY (job, task_id, verdict));
  CREATE TABLE IF NOT EXISTS actions (
    job TEXT NOT NULL,
    task_id TEXT NOT NULL,
    state BLOB NOT NULL,
    PRIMARY KEY (job, task_id));
  COMMIT;
)sql";
constexpr char kLoad[] =
    "SELECT revision, requested, effective, last_file, last_clusterd FROM wanted_state WHERE job = ? AND task_id = ?";
constexpr char kSave[] = "INSERT OR REPLACE INTO wanted_state VALUES (?, ?, ?, ?, ?, ?, ?)";
constexpr char kLoadVerdicts[] = "SELECT verdict FROM verdicts WHERE job = ? AND task_id = ? ORDER BY position";
constexpr char kClearVerdicts[] = "DELETE FROM verdicts WHERE job = ? AND task_id = ?";
constexpr char kSaveVerdict[] = "INSERT INTO verdicts VALUES (?, ?, ?, ?)";
constexpr char kLoadFaults[] =
    "SELECT verdict, state, request FROM faults WHERE job = ? AND task_id = ? ORDER BY verdict";
constexpr char kSaveFault[] = "INSERT OR REPLACE INTO faults VALUES (?, ?, ?, ?, ?)";
constexpr char kLoadActions[] = "SELECT state FROM actions WHERE job = ? AND task_id = ?";
constexpr char kSaveActions[] = "INSERT OR REPLACE INTO actions VALUES (?, ?, ?)";
constexpr char kPruneFaults[] =
    "DELETE FROM faults WHERE job = ?1 AND task_id = ?2 AND verdict NOT IN "
    "(SELECT verdict FROM faults WHERE job = ?1 AND task_id = ?2 ORDER BY verdict DESC LIMIT ?3)";

class Statement {
 public:
  Statement(sqlite3* db, const char* sql) : code_(sqlite3_prepare_v2(db, sql, -1, &statement_, nullptr)) {}
  ~Statement() { sqlite3_finalize(statement_); }
  Statement(const Statement&) = delete;
  Statement& operator=(const Statement&) = delete;

  void Bind(int at, const std::string& text) {
    if (code_ == SQLITE_OK) {
      code_ = sqlite3_bind_text(statement_, at, text.data(), static_cast<int>(text.size()), SQLITE_TRANSIENT);
    }
  }
  void Bind(int at, uint64_t number) {
    if (code_ == SQLITE_OK) code_ = sqlite3_bind_int64(statement_, at, static_cast<sqlite3_int64>(number));
  }
  void BindBytes(int at, const std::string& bytes) {
    if (code_ == SQLITE_OK) {
      code_ = sqlite3_bind_blob(statement_, at, bytes.data(), static_cast<int>(bytes.size()), SQLITE_TRANSIENT);
    }
  }
  // SQLITE_ROW, SQLITE_DONE or an error.
  int Step() { return code_ == SQLITE_OK ? sqlite3_step(statement_) : code_; }

  bool IsNull(int column) { return sqlite3_column_type(statement_, column) == SQLITE_NULL; }
  int64_t Number(int column) { return sqlite3_column_int64(statement_, column); }
  std::string Text(int column) {
    const auto* text = reinterpret_cast<const char*>(sqlite3_column_text(statement_, column));
    return text == nullptr ? std::string()
                           : std::string(text, static_cast<size_t>(sqlite3_column_bytes(statement_, column)));
  }
  std::string Bytes(int column) {
    const auto* bytes = static_cast<const char*>(sqlite3_column_blob(statement_, column));
    return bytes == nullptr ? std::string()
                            : std::string(bytes, static_cast<size_t>(sqlite3_column_bytes(statement_, column)));
  }

 private:
  sqlite3_stmt* statement_ = nullptr;
  int code_;
};

absl::Status DbError(const std::string& path, sqlite3* db) {
  return absl::UnavailableError(absl::StrCat(path, ": ", sqlite3_errmsg(db)));
}

// One character a kind, by SwitchKind: '1' on, '0' off, '-' as it is.
std::string Encode(const SwitchChange& change) {
  std::string text;
  for (const auto& value : change) text += value.has_value() ? (*value ? '1' : '0') : '-';
  return text;
}

std::optional<SwitchChange> Decode(const std::string& text) {
  if (text.size() != kNumSwitches) return std::nullopt;
  SwitchChange change;
  for (int i = 0; i < kNumSwitches; ++i) {
    if (text[i] != '-') change[i] = text[i] == '1';
  }
  return change;
}

bool IsCorrupt(int code) { return code == SQLITE_CORRUPT || code == SQLITE_NOTADB; }

// The handle, or null and the reason. *corrupt: the file is there, but it is no sound database.
sqlite3* OpenFile(const std::string& path, bool* corrupt, absl::Status* status) {
  sqlite3* db = nullptr;
  constexpr int kFlags = SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX | SQLITE_OPEN_NOFOLLOW;
  int code = sqlite3_open_v2(path.c_str(), &db, kFlags, nullptr);
  if (code == SQLITE_OK) {
    sqlite3_busy_timeout(db, kBusyMs);
    code = sqlite3_exec(db, kSchema, nullptr, nullptr, nullptr);
  }
  if (code == SQLITE_OK) {
    Statement check(db, "PRAGMA quick_check(1)");
    code = check.Step();
    if (code == SQLITE_ROW) code = check.Text(0) == "ok" ? SQLITE_OK : SQLITE_CORRUPT;
  }
  if (code == SQLITE_OK) {
    // A table of that name with other columns: somebody else's file, or a later release's.
    for (const char* sql : {kLoad, kLoadVerdicts, kLoadFaults}) {
      Statement load(db, sql);
      load.Bind(1, std::string());
      load.Bind(2, std::string());
      code = load.Step();
      if (code != SQLITE_ROW && code != SQLITE_DONE) break;
    }
    if (code == SQLITE_ROW || code == SQLITE_DONE) return db;
  }
  *corrupt = IsCorrupt(code);
  *status = absl::UnavailableError(absl::StrCat(path, ": ",
                                                *corrupt        ? sqlite3_errstr(code)
                                                : db != nullptr ? sqlite3_errmsg(db)
                                                                : "out of memory"));
  sqlite3_close(db);
  return nullptr;
}

constexpr char kDbFile[] = "manager.db";
constexpr char kJournalFile[] = "manager.db-journal";
constexpr char kLockFile[] = "manager.lock";

// Whoever can write there can command the job through its next manager.
absl::Status CheckMine(const std::string& path, const struct stat& status) {
  if (!IsOwnUserOrRoot(status.st_uid)) {
    return absl::InvalidArgumentError(absl::StrCat("--state-dir: ", path, " ", ForeignOwner(status.st_uid)));
  }
  if ((status.st_mode & 022) != 0) {
    return absl::InvalidArgumentError(absl::StrCat("--state-dir: others can write to ", path, " (mode ",
                                                   absl::Hex(status.st_mode >> 6 & 7),
                                                   absl::Hex(status.st_mode >> 3 & 7), absl::Hex(status.st_mode & 7),
                                                   "); take that from them or name a new folder below it"));
  }
  return absl::OkStatus();
}

absl::Status CheckFile(int folder, const std::string& folder_path, const char* name) {
  const std::string path = absl::StrCat(folder_path, "/", name);
  struct stat status;
  if (fstatat(folder, name, &status, AT_SYMLINK_NOFOLLOW) != 0) {
    if (errno == ENOENT) return absl::OkStatus();
    return absl::UnavailableError(absl::StrCat("--state-dir: ", path, ": ", strerror(errno)));
  }
  if (!S_ISREG(status.st_mode)) {
    return absl::InvalidArgumentError(absl::StrCat("--state-dir: ", path, " is not a plain file"));
  }
  return CheckMine(path, status);
}

// The folder is ours while the descriptor lives. The file stays: who removed it would have to hold the lock.
absl::StatusOr<UniqueFd> Lock(int folder, const std::string& folder_path) {
  const std::string path = absl::StrCat(folder_path, "/", kLockFile);
  absl::StatusOr<UniqueFd> opened = OpenOrCreateFile(kLockFile, O_RDWR, 0600, {.folder = folder, .shown = path});
  if (!opened.ok()) return absl::UnavailableError(absl::StrCat("--state-dir: cannot open ", opened.status().message()));
  UniqueFd file = *std::move(opened);
  if (flock(file.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) {
      return absl::UnavailableError(absl::StrCat("--state-dir: cannot lock ", path, ": ", strerror(errno)));
    }
    char text[16] = {};
    const ssize_t size = pread(file.get(), text, sizeof(text) - 1, 0);
    int pid = 0;
    if (size <= 0 || !absl::SimpleAtoi(text, &pid)) pid = 0;
    return absl::InvalidArgumentError(absl::StrCat("--state-dir: another manager",
                                                   pid > 0 ? absl::StrCat(" (pid ", pid, ")") : "", " has ",
                                                   folder_path, "; each needs a folder of its own"));
  }
  // For people and the message above; the lock does not need it.
  const std::string pid = absl::StrCat(getpid(), "\n");
  if (ftruncate(file.get(), 0) != 0 || pwrite(file.get(), pid.data(), pid.size(), 0) < 0) {
    spdlog::warn("--state-dir: cannot write this process's id to {}: {}", path, strerror(errno));
  }
  return file;
}

// The folder, made where it is missing, and ours alone.
absl::StatusOr<UniqueFd> OpenFolder(const std::string& folder) {
  absl::StatusOr<UniqueFd> opened = OpenNamedDir(folder);
  if (!opened.ok()) return absl::InvalidArgumentError(absl::StrCat("--state-dir: ", opened.status().message()));
  UniqueFd directory = *std::move(opened);
  struct stat owned;
  if (fstat(directory.get(), &owned) != 0) {
    return absl::UnavailableError(absl::StrCat("--state-dir: ", folder, ": ", strerror(errno)));
  }
  if (absl::Status mine = CheckMine(folder, owned); !mine.ok()) return mine;
  for (const char* name : {kDbFile, kJournalFile, kLockFile}) {
    if (absl::Status mine = CheckFile(directory.get(), folder, name); !mine.ok()) return mine;
  }
  return directory;
}

// The database, a new one where it was corrupt.
absl::StatusOr<sqlite3*> OpenOrReplace(const std::string& path) {
  bool corrupt = false;
  absl::Status status;
  sqlite3* db = OpenFile(path, &corrupt, &status);
  if (db == nullptr && corrupt) {
    std::string aside = absl::StrCat(path, ".corrupt-", time(nullptr));
    spdlog::warn("{}; moved to {}, the wanted state begins anew", status.message(), aside);
    if (rename(path.c_str(), aside.c_str()) != 0) {
      return absl::UnavailableError(absl::StrCat("--state-dir: cannot move ", path, " aside: ", strerror(errno)));
    }
    // Its journal would be rolled back into the new file.
    unlink((path + "-journal").c_str());
    db = OpenFile(path, &corrupt, &status);
  }
  if (db == nullptr) return absl::UnavailableError(absl::StrCat("--state-dir: ", status.message()));
  return db;
}

}  // namespace

absl::StatusOr<std::unique_ptr<StateDb>> StateDb::Open(const std::string& given_folder, const JobShape& shape) {
  std::string folder = given_folder;
  while (folder.size() > 1 && folder.back() == '/') folder.pop_back();  // else its parent would be itself
  absl::StatusOr<UniqueFd> directory = OpenFolder(folder);
  if (!directory.ok()) return directory.status();
  // From here on by the path that it has now, so that no link is followed on the way either.
  std::error_code no_path;
  const std::string real = std::filesystem::read_symlink(absl::StrCat("/proc/self/fd/", directory->get()), no_path);
  if (no_path) return absl::UnavailableError(absl::StrCat("--state-dir: ", folder, ": ", no_path.message()));
  absl::StatusOr<UniqueFd> lock = Lock(directory->get(), folder);
  if (!lock.ok()) return lock.status();
  std::string path = absl::StrCat(real, "/", kDbFile);
  absl::StatusOr<sqlite3*> db = OpenOrReplace(path);
  if (!db.ok()) return db.status();
  return std::unique_ptr<StateDb>(new StateDb(*std::move(lock), path, *db, shape));
}

StateDb::~StateDb() { sqlite3_close(db_); }

absl::StatusOr<KeptState> StateDb::Load() {
  std::lock_guard lock(mutex_);
  Statement load(db_, kLoad);
  load.Bind(1, job_);
  load.Bind(2, task_id_);
  int code = load.Step();
  KeptState state;
  if (code == SQLITE_DONE) return state;
  if (code != SQLITE_ROW) return DbError(path_, db_);
  state.wanted.revision = static_cast<uint64_t>(load.Number(0));
  state.wanted.requested = static_cast<KindMask>(load.Number(1)) & kAllKindsMask;
  state.wanted.effective = static_cast<KindMask>(load.Number(2)) & kAllKindsMask;
  if (!load.IsNull(3)) state.last_file = Decode(load.Text(3));
  if (!load.IsNull(4)) state.last_clusterd = Decode(load.Text(4));
  return state;
}

absl::Status StateDb::Save(const KeptState& state) {
  std::lock_guard lock(mutex_);
  Statement save(db_, kSave);
  save.Bind(1, job_);
  save.Bind(2, task_id_);
  save.Bind(3, state.wanted.revision);
  save.Bind(4, uint64_t{state.wanted.requested});
  save.Bind(5, uint64_t{state.wanted.effective});
  if (state.last_file.has_value()) save.Bind(6, Encode(*state.last_file));
  if (state.last_clusterd.has_value()) save.Bind(7, Encode(*state.last_clusterd));
  return save.Step() == SQLITE_DONE ? absl::OkStatus() : DbError(path_, db_);
}

absl::StatusOr<std::vector<std::string>> StateDb::LoadVerdicts() {
  std::lock_guard lock(mutex_);
  Statement load(db_, kLoadVerdicts);
  load.Bind(1, job_);
  load.Bind(2, task_id_);
  std::vector<std::string> verdicts;
  int code;
  while ((code = load.Step()) == SQLITE_ROW) verdicts.push_back(load.Bytes(0));
  if (code != SQLITE_DONE) return DbError(path_, db_);
  return verdicts;
}

absl::Status StateDb::SaveVerdicts(const std::vector<std::string>& verdicts) {
  std::lock_guard lock(mutex_);
  if (sqlite3_exec(db_, "BEGIN IMMEDIATE", nullptr, nullptr, nullptr) != SQLITE_OK) return DbError(path_, db_);
  absl::Status status = ReplaceVerdicts(verdicts);
  if (status.ok() && sqlite3_exec(db_, "COMMIT", nullptr, nullptr, nullptr) != SQLITE_OK) status = DbError(path_, db_);
  // Some errors have rolled back already; then there is nothing to do.
  if (!status.ok() && sqlite3_get_autocommit(db_) == 0) sqlite3_exec(db_, "ROLLBACK", nullptr, nullptr, nullptr);
  return status;
}

absl::Status StateDb::ReplaceVerdicts(const std::vector<std::string>& verdicts) {
  Statement clear(db_, kClearVerdicts);
  clear.Bind(1, job_);
  clear.Bind(2, task_id_);
  if (clear.Step() != SQLITE_DONE) return DbError(path_, db_);
  for (size_t i = 0; i < verdicts.size(); ++i) {
    Statement save(db_, kSaveVerdict);
    save.Bind(1, job_);
    save.Bind(2, task_id_);
    save.Bind(3, uint64_t{i});
    save.BindBytes(4, verdicts[i]);
    if (save.Step() != SQLITE_DONE) return DbError(path_, db_);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<KeptFault>> StateDb::LoadFaults() {
  std::lock_guard lock(mutex_);
  Statement load(db_, kLoadFaults);
  load.Bind(1, job_);
  load.Bind(2, task_id_);
  std::vector<KeptFault> faults;
  int code;
  while ((code = load.Step()) == SQLITE_ROW) {
    int64_t state = load.Number(1);
    if (state < 0 || state > static_cast<int64_t>(KeptFault::State::kRefused)) continue;
    faults.push_back({static_cast<uint64_t>(load.Number(0)), static_cast<KeptFault::State>(state), load.Bytes(2)});
  }
  if (code != SQLITE_DONE) return DbError(path_, db_);
  return faults;
}

absl::Status StateDb::SaveFault(const KeptFault& fault) {
  std::lock_guard lock(mutex_);
  Statement save(db_, kSaveFault);
  save.Bind(1, job_);
  save.Bind(2, task_id_);
  save.Bind(3, fault.verdict);
  save.Bind(4, static_cast<uint64_t>(fault.state));
  save.BindBytes(5, fault.request);
  if (save.Step() != SQLITE_DONE) return DbError(path_, db_);
  Statement prune(db_, kPruneFaults);
  prune.Bind(1, job_);
  prune.Bind(2, task_id_);
  prune.Bind(3, uint64_t{kMaxKeptFaults});
  return prune.Step() == SQLITE_DONE ? absl::OkStatus() : DbError(path_, db_);
}

absl::StatusOr<std::string> StateDb::LoadActions() {
  std::lock_guard lock(mutex_);
  Statement load(db_, kLoadActions);
  load.Bind(1, job_);
  load.Bind(2, task_id_);
  const int code = load.Step();
  if (code == SQLITE_DONE) return "";
  return code == SQLITE_ROW ? absl::StatusOr<std::string>(load.Bytes(0)) : DbError(path_, db_);
}

absl::Status StateDb::SaveActions(const std::string& state) {
  std::lock_guard lock(mutex_);
  Statement save(db_, kSaveActions);
  save.Bind(1, job_);
  save.Bind(2, task_id_);
  save.BindBytes(3, state);
  return save.Step() == SQLITE_DONE ? absl::OkStatus() : DbError(path_, db_);
}

absl::StatusOr<std::string> DefaultStateDir(const std::string& task_id) {
  absl::StatusOr<std::string> folder = RuntimeDir(absl::StrCat(task_id, "/manager"));
  if (folder.ok()) return folder;
  return absl::InvalidArgumentError(absl::StrCat("--state-dir: the default is refused: ", folder.status().message()));
}

}  // namespace taskd::manager
