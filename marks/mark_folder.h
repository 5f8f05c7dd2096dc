// Which folder the mark files go to. The launcher of node 0 looks once for all nodes of its job, and each proxy when it
// starts. Nothing is made before there are marks, except the folder of a task without a name: it is made at once, so that
// no other job takes the same one.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/environment.h"

namespace taskd {

inline constexpr char kDefaultProfilingDir[] = "/user/cluster-info/profiling";

// In MindCluster's layout ranks have <path>/<task_folder>/<rank>/. In a working folder `path` is the job's own folder, and
// they have <path>/<rank>/.
struct MarkFolder {
  std::string path;              // absolute; empty: no folder can be written
  std::string task_folder = {};  // in `path`; empty: `path` is the job's own folder
  // Folders whose names TaskD has chosen, the outermost first. The proxy removes them at its end if they are empty.
  std::vector<std::string> made = {};
  // Why it is not the first folder that was looked at: "/user/cluster-info/profiling: Permission denied". Empty: it is.
  std::string refusal = {};

  // Where the ranks' folders lie. Empty: there is none.
  std::string TaskPath() const;
  // The last component of TaskPath(): the name that other nodes of the job use as well. Empty: there is none.
  std::string Name() const;
};

struct MarkFolderWishes {
  std::string given;  // --profiling-dir: this folder or none; empty: the first of the others
  std::string first = kDefaultProfilingDir;
  std::vector<std::string> working_dirs;  // in which a folder may be made; those that are not absolute are left out
  std::string mindx_task_id;              // MINDX_TASK_ID: MindCluster's layout in every place
  std::string task_name;                  // of the folder in `given` or `first` without that; empty: `name`
  std::string name;                       // of the job's folder, chosen before; empty: a fresh one is made
  std::string job;                        // for the name of a fresh one: namespace/name, or a word; may be empty
  int64_t unix_s = 0;                     // now, for the same
};

// What the variables TASKD_PROFILING_DIR, MINDX_TASK_ID, TASKD_TASK_ID, TASKD_MARK_FOLDER (`name`), TASKD_JOB and
// SLURM_SUBMIT_DIR ask for, with this process's working folder and the time.
MarkFolderWishes WishesOfEnvironment(const Environment& environment);

// A folder is taken if this user can write to it or make it, as far as can be told without trying; a fresh one is made:
//  * in `given` or `first` "default_task_id_<unix s>" (TaskD contract §4.6),
//  * in a working folder "taskd-<job>-<date>-<time>" by the local clock, as taskd-train-20261129-142301,
// of the first second from `unix_s` on whose name is free. In a working folder that everybody may write to, one that is
// there already must be this user's own. Storage that does not answer within `patience` is taken as well: what is to be
// written there waits for it.
MarkFolder ChooseMarkFolder(const MarkFolderWishes& wishes, std::chrono::milliseconds patience);

// Makes the folder and those above it that are missing; *made: these, the outermost first. The message of an error names
// the folder and what is wrong with it.
absl::Status MakeFolders(const std::string& path, std::vector<std::string>* made);

}  // namespace taskd
