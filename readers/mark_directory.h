// A folder of mark files (docs/formats.md), written by proxies or copied together by somebody: whose marks are where.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace taskd::readers {

struct MarkFile {
  std::string path;
  uint64_t bytes = 0;  // when the folder was listed
};

// The folder of one rank.
struct RankMarks {
  int rank = 0;
  std::string folder;
  std::vector<MarkFile> files;  // in the order in which they were written; empty ones too
  // From .rank.json; -1 and empty where it is not there.
  int node = -1;
  std::string host;
  int local_rank = -1;
};

struct MarkDirectory {
  std::string folder;                 // the task's: the one that holds the ranks' folders
  std::string task;                   // its name
  std::vector<RankMarks> ranks;       // ascending
  uint64_t bytes = 0;                 // of all mark files
  std::vector<std::string> problems;  // what could not be read, one sentence each
  // Below which other files of the job may lie: the path that was listed; of a working directory the job's own folder.
  std::vector<std::string> places;
  std::string choice;  // a sentence, where several jobs' folders are there and this one was taken; else empty
};

// Lists `path`, a task's folder, a profiling directory with one task in it, or a working directory with jobs' own folders
// (taskd-<job>-<date>-<time>), of which the newest is taken. Rank folders and mark files are those
// whose names are digits; what else lies there, symbolic links too, is left alone. Ranks above 131071 are no ranks.
// INVALID_ARGUMENT, one line: `path` cannot be read, its mark files are empty, or it holds several tasks (the first of them
// are named). NOT_FOUND, one line: it has no folder of a rank.
absl::StatusOr<MarkDirectory> ListMarkDirectory(const std::string& path);
// The ranks of several such folders, which the nodes of one job left, as of the first of them. `others`: those of `paths`
// that hold no marks. INVALID_ARGUMENT or NOT_FOUND: that are all of them (as the first says). FAILED_PRECONDITION, one line: two hold the
// same rank.
absl::StatusOr<MarkDirectory> ListMarkDirectories(const std::vector<std::string>& paths,
                                                  std::vector<std::string>& others);

// Which node each rank ran on: from .rank.json if any rank has one, else from the smallest device id in each rank's
// marks (`device_ids`, as MarkFold::device_id; same length as `ranks`): a node's devices ascend with its ranks, so
// where they do not, a new node begins. -1: unknown.
std::vector<int> NodesOfRanks(const std::vector<RankMarks>& ranks, const std::vector<int>& device_ids);

}  // namespace taskd::readers
