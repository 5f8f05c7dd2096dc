// The marks of one rank, whatever they are read from: its mark files, or what a profiler wrote, whose events are then
// marks as the diagnosis has folded them.
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
  int64_t clock_offset_ns = 0;     // how far its clock is ahead of the reference
  std::string folder;              // of its mark files; empty: it has none
  std::vector<SourceFile> files;   // of a profiler, in the order of their steps
  std::vector<GroupInfo> groups;   // of these files
  bool has_times = true;           // else its steps begin at no time of day: there is no time line of it
  uint64_t first_ns = UINT64_MAX;  // of the first of their marks, by their own clock; as here: not known
  uint64_t bytes = 0;              // of all its files, when they were found
  std::vector<int> peers;          // of an accused one: who it was compared with
};

// Those of `ranks` that the verdict accuses.
std::vector<int> AccusedBy(const diagnosis::Verdict& verdict, const std::vector<SourceRank>& ranks);
// Of all that the report accuses.
void AddPeers(const diagnosis::Report& report, const diagnosis::Engine& engine, std::vector<SourceRank>& ranks);
// ranks.size(): it is not there.
size_t IndexOf(int rank, const std::vector<SourceRank>& ranks);

// `use` returns whether it wants more; `bytes`: of the rank's files, up to this mark. What could not be read, else OK; a
// file that has gone since is as if it had never been there.
using UseMark = std::function<bool(const MarkRecord& mark, uint64_t bytes)>;
absl::Status ForEachMark(const SourceRank& rank, const UseMark& use);

// With labels and members, as far as they are known.
std::vector<GroupInfo> GroupsOf(const SourceRank& rank);

}  // namespace taskd::readers
