// The manager's memory across restarts, in <state-dir>/manager.db (SQLite): of each job one wanted state, its verdicts,
// the faults that were reported and its decisions on slow nodes. What is written often is kept elsewhere, or a switch would
// wait for its syncs: the ledger has a file of its own beside it (manager/ledger/ledger_folder.h). One manager at a time has the folder, whichever job's; it may be another job's
// afterwards. A file of a release that knew less gets the tables that it lacks.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/unique_fd.h"
#include "manager/switch/core.h"

struct sqlite3;

namespace taskd::manager {

// What is known of one fault at ClusterD.
struct KeptFault {
  enum class State { kReported = 0, kRecovered = 1, kRefused = 2 };
  uint64_t verdict = 0;  // its id
  State state = State::kReported;
  std::string request;  // the message that was sent

  friend bool operator==(const KeptFault&, const KeptFault&) = default;
};

// Thread-safe.
class StateDb {
 public:
  // Makes the folder (0700) and the file where they are missing. A file that is not a sound database is moved aside,
  // with a warning, and an empty one takes its place. INVALID_ARGUMENT: another manager has the folder (its pid), or
  // folder or files belong to another user, can be written by others, or are no plain files. Any other error: folder,
  // file and the system's message.
  static absl::StatusOr<std::unique_ptr<StateDb>> Open(const std::string& folder, const JobShape& shape);
  ~StateDb();
  StateDb(const StateDb&) = delete;
  StateDb& operator=(const StateDb&) = delete;

  // What was kept for this job; the initial state if nothing was.
  absl::StatusOr<KeptState> Load();
  // Survives the end of the process, and of the machine.
  absl::Status Save(const KeptState& state);

  // Verdicts as bytes, in the order in which they were saved. Saving replaces all of them, or on an error none.
  absl::StatusOr<std::vector<std::string>> LoadVerdicts();
  absl::Status SaveVerdicts(const std::vector<std::string>& verdicts);

  // By verdict. Saving replaces the one of the same verdict; only those of the newest kMaxKeptFaults verdicts stay.
  static constexpr int kMaxKeptFaults = 400;
  absl::StatusOr<std::vector<KeptFault>> LoadFaults();
  absl::Status SaveFault(const KeptFault& fault);

  // The decisions on slow nodes, as one text (policy/render.h); "": nothing was kept.
  absl::StatusOr<std::string> LoadActions();
  absl::Status SaveActions(const std::string& state);

 private:
  StateDb(UniqueFd lock, std::string path, sqlite3* db, const JobShape& shape)
      : lock_(std::move(lock)), path_(std::move(path)), db_(db), job_(shape.job), task_id_(shape.task_id) {}

  absl::Status ReplaceVerdicts(const std::vector<std::string>& verdicts);

  const UniqueFd lock_;  // of the folder, until the end of the process or of this
  const std::string path_;
  std::mutex mutex_;  // guards the use of db_
  sqlite3* const db_;
  const std::string job_;
  const std::string task_id_;
};

// <runtime folder>/<task id>/manager (common/runtime_dir.h), made where missing. INVALID_ARGUMENT: others could write
// to it.
absl::StatusOr<std::string> DefaultStateDir(const std::string& task_id);

}  // namespace taskd::manager
