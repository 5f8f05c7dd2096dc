#include "manager/page/census.h"

#include <algorithm>
#include <utility>

namespace taskd::manager {

Census TakeCensus(const JobSnapshot& snapshot) {
  Census census;
  std::vector<std::pair<int, MarkFiles>> files;
  for (const JobSnapshot::Node& node : snapshot.nodes) {
    if (!node.connected) census.lost_nodes.push_back(node.node);
    if (node.connected && node.mark_files) files.emplace_back(node.node, *node.mark_files);
    for (const RankReport& rank : node.ranks) {
      ++census.known;
      census.ranks = std::max(census.ranks, rank.rank + 1);
      if (!node.connected || !rank.attached) continue;
      ++census.attached;
      if (rank.failed_revision != 0 && rank.failed_revision >= snapshot.wanted.revision) {
        census.failed.push_back(rank.rank);
        if (census.failure.empty()) census.failure = rank.reason;
      } else if (rank.applied_revision != snapshot.wanted.revision) {
        census.unanswered.push_back(rank.rank);
      }
    }
  }
  census.mark_files = MarkFilesText(files);
  std::sort(census.unanswered.begin(), census.unanswered.end());
  std::sort(census.failed.begin(), census.failed.end());
  return census;
}

int64_t HangSinceNs(const SupervisionSnapshot& supervision) {
  int64_t since_ns = 0;
  if (!supervision.hang.has_value()) return since_ns;
  for (const SupervisionEvent& event : supervision.events) {
    if (event.kind == SupervisionEvent::Kind::kHang) since_ns = event.time_ns;
  }
  return since_ns;
}

const char* JobStateName(SupervisionSnapshot::State supervision, diagnosis::JobState diagnosis, bool attached,
                         bool stepped) {
  using State = SupervisionSnapshot::State;
  if (supervision == State::kEnded) return "ended";
  if (supervision == State::kHung) return "hung";
  if (supervision == State::kRestarting) return "restarting";
  // A launcher would have reported the end of its job: between two attempts no rank is attached.
  if (!attached && stepped) return supervision == State::kUnknown ? "ended" : "starting";
  if (diagnosis == diagnosis::JobState::kSlow) return "slow";
  if (stepped) return "running";
  return attached || supervision == State::kRunning ? "starting" : "unknown";
}

}  // namespace taskd::manager
