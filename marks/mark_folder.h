// Chooses the folder of the mark files. The launcher of node 0 chooses once for all nodes of its job, and each proxy
// when it starts. Folders are made when there are marks. An exception is the folder of a task without a name: it is
// made at once, so that no other job takes the same name.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/environment.h"

namespace taskd {

inline constexpr char kDefaultProfilingDir[] = "/user/cluster-info/profiling";

// In MindCluster's layout ranks have <path>/<task_folder>/<rank>/. In a working folder `path` is the job's own folder,
// and ranks have <path>/<rank>/.
struct MarkFolder {
  std::string path;              // absolute; empty: no folder can be written
  std::string task_folder = {};  // within `path`; empty: `path` is the job's own folder
  // Lists the folders whose names TaskD has chosen, the outermost first. The proxy removes the empty ones when it ends.
  std::vector<std::string> made = {};
  // Says why the first candidate was refused: "/user/cluster-info/profiling: Permission denied". Empty: it was taken.
  std::string refusal = {};

  // Returns the folder that contains the ranks' folders. Empty: there is none.
  std::string TaskPath() const;
  // Returns the last component of TaskPath(): the name that other nodes of the job use as well. Empty: there is none.
  std::string Name() const;
};

struct MarkFolderWishes {
  std::string given;  // --profiling-dir: only this folder is tried; empty: the first usable one of the others
  std::string first = kDefaultProfilingDir;
  std::vector<std::string> working_dirs;  // a folder may be made in these; paths that are not absolute are ignored
  std::string mindx_task_id;              // MINDX_TASK_ID: selects MindCluster's layout everywhere
  std::string task_name;  // the folder's name in `given` or `first` if there is no mindx_task_id; empty: `name`
  std::string name;       // the job's folder name if it was chosen before; empty: a new folder is made
  std::string job;        // for the name of a new folder: namespace/name, or a word; may be empty
  int64_t unix_s = 0;     // now, for the name of a new folder
};

// Reads TASKD_PROFILING_DIR, MINDX_TASK_ID, TASKD_TASK_ID, TASKD_MARK_FOLDER (`name`), TASKD_JOB and SLURM_SUBMIT_DIR,
// and adds this process's working folder and the time.
MarkFolderWishes WishesOfEnvironment(const Environment& environment);

// Takes the first folder that this user can write to or make, as far as that is known without trying. A new folder is
// named:
// * in `given` or `first`: "default_task_id_<unix s>" (TaskD contract §4.6),
// * in a working folder: "taskd-<job>-<date>-<time>" by the local clock, as in taskd-train-20261129-142301.
//
// The name has the first second from `unix_s` on that is free. If all users may write to a working folder, an existing
// folder in it must belong to this user. If storage does not respond within `patience`, the folder is taken as well,
// and marks wait for it.
MarkFolder ChooseMarkFolder(const MarkFolderWishes& wishes, std::chrono::milliseconds patience);

// Makes the folder and its missing parents. Adds the new folders to *made, the outermost first. The message of an error
// names the folder and the reason.
absl::Status MakeFolders(const std::string& path, std::vector<std::string>* made);

}  // namespace taskd
