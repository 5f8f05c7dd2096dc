// The folders that mark files lie in: <profiling-dir>/<task>/<rank>/ (TaskD contract §4.6), or <the job's own
// folder>/<rank>/ (marks/mark_folder.h). Symbolic links are refused at each level: whoever may write there must not be able
// to redirect the proxy.
//
// Where no folder can be written, one beside the proxy's socket has the rest of what lies in a rank's folder: its groups
// and where it runs. Then there are no mark files; everything else goes on.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/unique_fd.h"

namespace taskd::proxy {

class ProfilingDir {
 public:
  // `task_folder` is in `path`; empty: `path` is the job's own folder.
  ProfilingDir(std::string path, std::string task_folder);
  // <socket>.ranks/<rank>/, without mark files.
  static ProfilingDir WithoutMarkFiles(const std::string& socket);

  bool has_mark_files() const { return has_mark_files_; }
  const std::string& path() const { return path_; }
  const std::string& task_folder() const { return task_folder_; }
  std::string TaskPath() const;
  std::string RankPath(int rank) const;

  // The folder of a rank, made where it is missing. The message names the path and what is wrong with it.
  absl::StatusOr<UniqueFd> OpenRank(int rank) const;
  // The same, but NOT_FOUND where it is missing.
  absl::StatusOr<UniqueFd> FindRank(int rank) const;

  // Writes <rank>/.rank.json, e.g. {"node":0,"host":"worker-3","local_rank":3}, for readers of the files.
  absl::Status WriteRankInfo(int rank, const std::string& json) const;

 private:
  std::string path_;
  std::string task_folder_;
  bool has_mark_files_ = true;
};

// OK if `name`, which that variable gives, can be a folder below the profiling directory. INVALID_ARGUMENT: empty, a path,
// hidden, above 200 bytes.
absl::Status CheckTaskFolder(const char* variable, const std::string& name);

}  // namespace taskd::proxy
