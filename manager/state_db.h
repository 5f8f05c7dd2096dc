// The manager's memory across restarts: one row a job in <state-dir>/manager.db (SQLite). Managers of several jobs,
// also on several machines, may share the folder.
#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "manager/core.h"

struct sqlite3;

namespace taskd::manager {

class StateDb {
 public:
  // Makes the folder (0700) and the file where they are missing. A file that is not a sound database is moved aside,
  // with a warning, and an empty one takes its place. Any error: folder, file and what the system says.
  static absl::StatusOr<std::unique_ptr<StateDb>> Open(const std::string& folder, const JobShape& shape);
  ~StateDb();
  StateDb(const StateDb&) = delete;
  StateDb& operator=(const StateDb&) = delete;

  // What was kept for this job; the initial state if nothing was.
  absl::StatusOr<KeptState> Load();
  // Survives the end of the process, and of the machine. Not thread-safe.
  absl::Status Save(const KeptState& state);

 private:
  StateDb(std::string path, sqlite3* db, const JobShape& shape)
      : path_(std::move(path)), db_(db), job_(shape.job), task_id_(shape.task_id) {}

  const std::string path_;
  sqlite3* const db_;
  const std::string job_;
  const std::string task_id_;
};

// /tmp/taskd-<uid>/<task id>/manager. Anybody may write to /tmp: FAILED_PRECONDITION where /tmp/taskd-<uid> exists and
// is not a folder of this user alone.
absl::StatusOr<std::string> DefaultStateDir(const std::string& task_id);

}  // namespace taskd::manager
