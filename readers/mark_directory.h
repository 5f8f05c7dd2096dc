// Lists a folder of mark files (docs/formats.md) that proxies wrote, or that a user collected.
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
  std::vector<MarkFile> files;  // in the order of their writing; empty ones too
  // From .rank.json; -1 and empty without it.
  int node = -1;
  std::string host;
  int local_rank = -1;
};

struct MarkDirectory {
  std::string folder;                 // the task's folder, which contains the ranks' folders
  std::string task;                   // name of that folder
  std::vector<RankMarks> ranks;       // ascending
  uint64_t bytes = 0;                 // sum over all mark files
  std::vector<std::string> problems;  // one sentence for each folder or file that could not be read
  // Folders that may contain other files of the job: the listed path, or the job's own folder in a working directory.
  std::vector<std::string> places;
  std::string choice;  // a sentence if this job's folder was chosen among several; else empty
};

// Lists `path`: a task's folder, a profiling directory with one task, or a working directory with jobs' own folders
// (taskd-<job>-<date>-<time>), of which the newest is taken. Names of rank folders and mark files are digits; other
// entries and symbolic links are ignored. Ranks above 131071 are invalid. INVALID_ARGUMENT, one line: `path` cannot be
// read, its mark files are empty, or it holds several tasks (the first of them are named). NOT_FOUND, one line: it has
// no rank's folder.
absl::StatusOr<MarkDirectory> ListMarkDirectory(const std::string& path);
// Lists several such folders, from the nodes of one job, as one; the first one gives the names. `others`: those of
// `paths` that contain no marks. INVALID_ARGUMENT or NOT_FOUND: none of them contains marks (the error of the first).
// FAILED_PRECONDITION, one line: two folders contain the same rank.
absl::StatusOr<MarkDirectory> ListMarkDirectories(const std::vector<std::string>& paths,
                                                  std::vector<std::string>& others);

// Returns the node of each rank. The nodes come from .rank.json if any rank has one, else from the smallest device id
// in each rank's marks (`device_ids`, as MarkFold::device_id; same length as `ranks`). A node's devices ascend with its
// ranks, so a device id that does not ascend begins a new node. -1: unknown.
std::vector<int> NodesOfRanks(const std::vector<RankMarks>& ranks, const std::vector<int>& device_ids);

}  // namespace taskd::readers
