// The folders that the profilers of torch_npu and MindSpore leave, one a rank: <worker>_<time>_ascend_pt (or _ms), with
// ASCEND_PROFILER_OUTPUT and files about the rank in it.
#pragma once

#include <string>
#include <vector>

#include "marks/step_fold.h"
#include "readers/byte_source.h"
#include "readers/source_files.h"

namespace taskd::readers {

// Makes communication.json, step_trace_time.csv and trace_view.json of one folder one file, and leaves out what else is
// in a rank's folder. `files` are in the order of their paths, and stay so.
std::vector<SourceFile> JoinAscendFolders(std::vector<SourceFile> files);

// The path whose names say the rank of `path`, a file or a folder as JoinAscendFolders has them: that of the rank's folder where
// `path` is its output folder or lies in it.
std::string AscendRankPath(const std::string& path);

// What files beside `path`, a file in a rank's output folder, or above it say of its rank.
struct AscendRank {
  int rank = -1;                  // -1: unknown
  int world_size = 0;             // 0: unknown
  std::string host;               // empty: unknown
  std::vector<GroupInfo> groups;  // as parallel_group_info calls them
};
AscendRank FindAscendRank(const std::string& path);
// profiler_metadata.json, as far as it can be read.
void ReadAscendMetadata(ByteSource& source, AscendRank& rank);

// Labels and members of those of `groups` that are called by the hash of a known name, or by its last three digits.
void NameAscendGroups(const std::vector<GroupInfo>& known, std::vector<GroupInfo>& groups);

}  // namespace taskd::readers
