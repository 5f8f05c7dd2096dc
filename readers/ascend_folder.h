// Reads the folders that the profilers of torch_npu and MindSpore write, one per rank: <worker>_<time>_ascend_pt (or
// _ms). Each contains ASCEND_PROFILER_OUTPUT and files about the rank.
#pragma once

#include <string>
#include <vector>

#include "marks/step_fold.h"
#include "readers/byte_source.h"
#include "readers/source_files.h"

namespace taskd::readers {

// Joins communication.json, step_trace_time.csv and trace_view.json of one folder to one file, and leaves out all other
// files in a rank's folder. `files` are ordered by path, before and after.
std::vector<SourceFile> JoinAscendFolders(std::vector<SourceFile> files);

// The path whose names state the rank of `path`, a file or a folder from JoinAscendFolders. If `path` is a rank's
// output folder or lies in it, that is the rank's folder.
std::string AscendRankPath(const std::string& path);

// Facts about a rank from the files beside `path`, a file in the rank's output folder, or above it.
struct AscendRank {
  int rank = -1;                  // -1: unknown
  int world_size = 0;             // 0: unknown
  std::string host;               // empty: unknown
  std::vector<GroupInfo> groups;  // with the names in parallel_group_info
};
AscendRank FindAscendRank(const std::string& path);
// Reads profiler_metadata.json as far as possible.
void ReadAscendMetadata(ByteSource& source, AscendRank& rank);

// Adds labels and members to those of `groups` whose name is the hash of a known name, or the last three digits of it.
void NameAscendGroups(const std::vector<GroupInfo>& known, std::vector<GroupInfo>& groups);

}  // namespace taskd::readers
