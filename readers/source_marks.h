// Reads the marks of one rank from its mark files, or from a profiler's files. The events of a profile become the marks
// that the diagnosis has used.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "diagnosis/engine.h"
#include "diagnosis/verdict.h"
#include "marks/mark_record.h"
#include "marks/step_fold.h"
#include "readers/source_files.h"

namespace taskd::readers {

struct SourceRank {
  int rank = 0;
  int node = -1;                   // -1: unknown
  std::string host;                // empty: unknown
  int64_t clock_offset_ns = 0;     // how far its clock is ahead of the reference clock
  std::string folder;              // folder of its mark files; empty: none
  std::vector<SourceFile> files;   // profiler's files, in the order of their steps
  std::vector<GroupInfo> groups;   // groups in these files
  bool has_times = true;           // otherwise its steps have no absolute times, and there is no time line of it
  uint64_t first_ns = UINT64_MAX;  // first of their marks, by their own clock; UINT64_MAX: not known
  uint64_t bytes = 0;              // size of all its files, when they were found
  std::vector<int> peers;          // for an accused rank: the ranks it was compared with
};

// Those of `ranks` that the verdict accuses.
std::vector<int> AccusedBy(const diagnosis::Verdict& verdict, const std::vector<SourceRank>& ranks);
// Fills in the peers of all ranks that the report accuses.
void AddPeers(const diagnosis::Report& report, const diagnosis::Engine& engine, std::vector<SourceRank>& ranks);
// Returns ranks.size() if the rank is not there.
size_t IndexOf(int rank, const std::vector<SourceRank>& ranks);

// `use` returns false to stop. `bytes`: bytes of the rank's files up to this mark. Returns OK, or the error of a file
// that could not be read; a file that is gone meanwhile is skipped.
using UseMark = std::function<bool(const MarkRecord& mark, uint64_t bytes)>;
absl::Status ForEachMark(const SourceRank& rank, const UseMark& use);

// The rank's groups with labels and members, as far as they are known.
std::vector<GroupInfo> GroupsOf(const SourceRank& rank);

}  // namespace taskd::readers
