// What the nodes report, over the whole job: for the page and for /metrics.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "diagnosis/verdict.h"
#include "manager/supervision/supervision_core.h"
#include "manager/switch/core.h"

namespace taskd::manager {

// Lists are sorted.
struct Census {
  int ranks = 0;     // one more than the highest that is known
  size_t known = 0;  // reports of ranks, of nodes that have gone too
  size_t attached = 0;
  std::vector<int> lost_nodes;
  std::vector<int> unanswered, failed;  // attached ranks, by what became of the wanted revision of the switch
  std::string failure;                  // the first one's reason
  std::string mark_files;               // MarkFilesText of the connected nodes
};
Census TakeCensus(const JobSnapshot& snapshot);

// When the open hang began, Unix; 0: there is none, or it is not known any more.
int64_t HangSinceNs(const SupervisionSnapshot& supervision);

inline constexpr const char* kJobStates[] = {"unknown", "starting", "running", "slow", "hung", "restarting", "ended"};
// One of kJobStates. attached: some rank is; stepped: a step has ended.
const char* JobStateName(SupervisionSnapshot::State supervision, diagnosis::JobState diagnosis, bool attached,
                         bool stepped);

}  // namespace taskd::manager
