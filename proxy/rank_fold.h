// The fold of one rank, as the drain feeds it: it learns the groups from the rank's parallel_group.json and keeps the
// steps that are finished until they are taken.
//
// Used by one thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "marks/mark_fold.h"
#include "proxy/profiling_dir.h"

namespace taskd::proxy {

class RankFold {
 public:
  // The rank's folder need not exist yet, and need not have mark files.
  RankFold(ProfilingDir dir, int rank);
  RankFold(const RankFold&) = delete;  // the fold points to it
  RankFold& operator=(const RankFold&) = delete;

  MarkFold& marks() { return marks_; }

  // Reads parallel_group.json where it is new or has changed; looks every few seconds.
  void PollGroups(uint64_t now_monotonic_ns);

  // The steps finished since the last call.
  std::vector<StepFold> TakeFinished();

 private:
  void LogTrouble(const absl::Status& trouble);  // once

  const ProfilingDir dir_;
  const int rank_;
  std::vector<StepFold> finished_;
  MarkFold marks_;
  uint64_t next_poll_ns_ = 0;
  std::string groups_file_;  // inode, size and time of the file that was read; empty: none
  bool trouble_said_ = false;
};

}  // namespace taskd::proxy
