// What the proxy knows of its node: the ranks, their segments, the wanted switch state; and the thread that drains
// them. No transport here: the hello server, the uplink and the switch file call in.
//
// Design:
// 1. The drain thread watches: it decides what is due, and never touches a file. Each rank's files have a lane
//    (RankLane), in which one piece of work at a time is under way on another thread.
// 2. While that hangs or fails, the drain thread takes what the rings are about to overwrite into a backlog, within the
//    bounds of Options. What does not fit stays in the rings, and is counted where it is overwritten.
// 3. So storage that hangs under one rank costs the others nothing, nor the switch, nor the end of the proxy.
//
// Thread-safe. One mutex guards the map of ranks; the segments themselves belong to the drain thread and its lanes, but
// for their gates.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/unique_fd.h"
#include "proxy/aging.h"
#include "proxy/node_drain.h"
#include "proxy/node_ranks.h"
#include "proxy/profiling_dir.h"
#include "taskd/hello.h"

namespace taskd::proxy {

class Node {
 public:
  using Options = NodeOptions;

  Node(Options options, ProfilingDir dir);
  ~Node();  // Stop()
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;

  // Starts the drain thread.
  void Start();
  // Writes everything recorded and ends the drain thread; DEADLINE_EXCEEDED with what is not in the files if storage
  // does not answer in time. Segments of living ranks stay for the next proxy, and those of which something is unread.
  absl::Status Stop();

  // A rank's hello, whose `pid` is the kernel's word, 0 where it has none. Returns a token for Detach. INVALID_ARGUMENT,
  // FAILED_PRECONDITION: refused, the message says why. ALREADY_EXISTS: the rank, or the segment, is a connected, living
  // process's: this one is set aside, and may ask again.
  absl::StatusOr<uint64_t> Attach(const hello::Hello& hello, UniqueFd segment);
  // The connection of a token has closed.
  void Detach(uint64_t token);

  // Sets the gates of all ranks, present and future. A rank with MSPTI has applied it when MSPTI confirms it; until
  // then it is neither applied nor failed, for at most kAnswerMs.
  void SetWanted(const WantedKinds& wanted);
  std::optional<WantedKinds> wanted() const;
  static constexpr int kAnswerMs = RankGate::kAnswerMs;

  // By rank. What is counted is of all lives of the rank under this proxy.
  std::vector<RankReport> Reports() const;
  // For /metrics, by rank.
  struct RankFigures {
    RankReport report;
    int local_rank = -1;
    StepPhasesNs phases_ns{};   // of the steps that it has ended
    uint64_t mark_bytes = 0;    // in its files
    uint64_t last_mark_ns = 0;  // Unix, of the newest in its files; 0: none
  };
  std::vector<RankFigures> Figures() const;
  // Marks in memory because their files cannot be written.
  size_t backlog_bytes() const { return drain_.backlog_bytes(); }
  // Why they cannot be written now; empty: nothing is known against it.
  std::string file_trouble() const;
  // What the ranks made of `revision`, by rank; those that wait for MSPTI are left out. `ms` is not set.
  std::vector<RankAnswer> Answers(uint64_t revision) const;
  // Takes up to `max_steps` folds that wait, and the groups of their ranks that are newer than `sent` lists (versions
  // by rank, which it then notes). At most kMaxFolds a rank wait, then the oldest are dropped.
  NodeFolds TakeFolds(std::map<int, uint64_t>& sent, size_t max_steps);
  bool has_folds() const;  // that wait
  // What was taken and may not have arrived, the newest first: its folds wait again, before those that came since.
  void ReturnFolds(NodeFolds folds);
  static constexpr size_t kMaxFolds = NodeRanks::kMaxFolds;

  using Versions = NodeRanks::Versions;
  Versions versions() const;
  // Waits until ranks or gates have changed since `urgent`, folds wait (if `for_folds`), the time is up, or
  // WakeWaiters.
  void WaitForChange(uint64_t urgent, int timeout_ms, bool for_folds);
  void WakeWaiters();

  // Of mark files: the option's, and what ranks asked for their own that is less.
  AgingLimits disk_limits() const;

 private:
  // Notes, once, that `pid` claims what is `owner`'s.
  absl::Status SetAside(int rank, uint32_t pid, const NodeSegment& owner);

  const NodeOptions options_;
  const std::string task_folder_;
  NodeRanks node_;
  NodeDrain drain_;  // last: it uses the others
};

}  // namespace taskd::proxy
