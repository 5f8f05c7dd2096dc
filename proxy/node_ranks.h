// The ranks of a node and their segments: what the callers of Node and the thread that drains share.
#pragma once

#include <sys/types.h>

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/rank_report.h"
#include "marks/step_fold.h"
#include "proxy/cpu_wait.h"
#include "proxy/profiling_dir.h"
#include "proxy/rank_gate.h"
#include "proxy/rank_lane.h"
#include "proxy/segment_drain.h"
#include "proxy/stop_meter.h"
#include "proxy/work_meter.h"

namespace taskd::proxy {

// Folds on their way to the manager.
struct NodeFolds {
  struct Step {
    int rank = 0;
    uint64_t number = 0;  // v1::RankStep.number
    StepFold fold;
  };
  std::vector<std::pair<int, std::vector<GroupInfo>>> groups;  // by rank, where they are news
  std::vector<Step> steps;                                     // by rank, each rank's in order
  uint64_t dropped = 0;                                        // folds that were not taken in time, since the start
};

// What one process has given us.
struct NodeSegment {
  // Set once. The drain thread's and its rank's lane's, but for RingSegment::SetGate and the header.
  std::shared_ptr<SegmentDrain> drain;
  std::string shm_name;    // to unlink when it is drained; empty for a memfd
  StopMeter stop_meter;    // the drain thread's
  CpuWaitMeter cpu_wait;   // likewise
  WorkMeter work_meter;    // likewise
  uint64_t marked_ns = 0;  // when the drain thread saw a new mark in it; 0: never
  // Of the rank that this process was before: nothing is read while it may still write. Null: none.
  std::shared_ptr<RankLane> former;

  // Guarded by NodeRanks::mutex.
  uint64_t token = 0;
  bool connected = false;
  bool ended = false;        // its process is gone
  uint32_t pid = 0;          // of who connected, as the kernel names it to us; 0: in another pid namespace
  bool writer_seen = false;  // the writer's lock was held at some time
  bool current = true;       // false: another process has taken the rank
  std::string fault;         // as RingSegment::fault()
  uint64_t checked_ns = 0;
  SegmentDrain::Counters counters;

  // The rank records through it.
  bool live() const { return current && !ended; }
  // Its process is connected and lives. The kernel's word is the writer's lock, which ends with the process (a zombie
  // has none) and with exec, is not inherited by fork, and is seen from any pid namespace. Where nobody ever had it,
  // the segment is no libtaskd.so's, and the connection counts.
  bool held() const { return connected && !ended && (!writer_seen || drain->segment().WriterLives()); }
};

struct NodeRank {
  NodeRank(const ProfilingDir& dir, int rank) : number(rank), lane(std::make_shared<RankLane>(dir, rank)) {}

  const int number;
  std::shared_ptr<RankLane> lane;     // the drain thread's
  std::deque<NodeFolds::Step> folds;  // finished, not taken yet
  StepPhasesNs phases_ns{};           // sums over all that were finished
  std::vector<GroupInfo> groups;      // as the lane's fold had them at `groups_version`
  uint64_t groups_version = 0;
  uint64_t groups_serial = 0;  // of no other rank's groups, nor of others of this one
  int local_rank = -1;
  int64_t disk_limit_mb = 0;  // that its newest hello asked for; 0: none
  uint32_t pid = 0;
  uint64_t stopped_ns = 0;  // that its processes have been stopped
  // While it made no marks: RankReport::cpu_busy_ms, io_busy_ms, open.
  uint64_t cpu_busy_ns = 0;
  uint64_t io_busy_ns = 0;
  OpenPhase open;
  SavedInStep saved;
  std::optional<uint32_t> rival_pid;  // as NodeSegment::pid: who claimed the rank of its current process last
  RankGate gate;                      // of its current segment
  bool info_written = false;
  uint64_t retry_info_ns = 0;
  bool info_trouble_said = false;
  std::vector<std::shared_ptr<NodeSegment>> segments;  // at most one is current, the last
  SegmentDrain::Counters ended;                        // of the segments that are gone
};

// As a note names a process of NodeSegment::pid.
std::string ProcessName(uint32_t pid);

// Every function is called with the mutex.
class NodeRanks {
 public:
  static constexpr size_t kMaxFolds = 64;  // a rank; then the oldest are dropped

  struct Versions {
    uint64_t all = 0;     // of everything in the reports
    uint64_t urgent = 0;  // of the same without counters
  };

  explicit NodeRanks(ProfilingDir dir) : dir_(std::move(dir)) {}

  uint64_t NewToken() { return next_token_++; }
  // The rank; a new one if it is not known.
  NodeRank& At(int number) { return ranks.try_emplace(number, dir_, number).first->second; }
  bool Knows(ino_t inode) const;
  // Opens the drain of a new segment of the rank, to go on where its cursors are.
  void Add(int number, std::shared_ptr<NodeSegment> segment, std::unique_ptr<RingSegment> ring);
  // A repeated hello of the same process. Null: it is not known; or it was known as another rank, or as one that others
  // have taken, and is forgotten as that. Then `former` is the lane of that rank.
  NodeSegment* FindAgain(int rank, const RingSegment& ring, std::shared_ptr<RankLane>& former);
  // Whose the rank is, or the ring, which process `pid` (0: not known) claims for itself. Null: nobody else's.
  const NodeSegment* OwnerOfRank(int rank, uint32_t pid) const;
  const NodeSegment* OwnerOfRing(const RingSegment& ring, uint32_t pid) const;

  // Sets the gates of all ranks, now and for those to come.
  void SetWanted(const WantedKinds& state);
  void ApplyGate(NodeRank& rank, NodeSegment& segment);
  // Looks for what ranks with MSPTI made of their gates.
  void TakeAnswers();

  // Of all lives of the rank under this proxy.
  static SegmentDrain::Counters CountersOf(const NodeRank& rank);
  RankReport ReportOf(int number, const NodeRank& rank) const;
  // What the rank made of `revision`; nothing while it has not made anything of it. `node` and `ms` are not set.
  std::optional<RankAnswer> AnswerOf(int number, const NodeRank& rank, uint64_t revision) const;

  // Folds that the rank's lane has finished.
  void AddFolds(NodeRank& rank, std::vector<StepFold> finished);
  NodeFolds TakeFolds(std::map<int, uint64_t>& sent, size_t max_steps);
  void ReturnFolds(NodeFolds folds);

  // Something is new that a thread waits for.
  void Changed();
  // Something is new that goes with the next report and is no reason to wake a thread.
  void Counted() { ++versions.all; }

  mutable std::mutex mutex;  // guards all below
  std::condition_variable changed;
  std::condition_variable wake_drain;
  std::map<int, NodeRank> ranks;
  Versions versions = {1, 1};
  std::optional<WantedKinds> wanted;
  std::string file_trouble;  // why mark files cannot be written now; empty: nothing is known against it
  bool stopping = false;
  bool folds_wait = false;
  bool answers_awaited = false;

 private:
  void DropOldestFolds(NodeRank& rank);

  const ProfilingDir dir_;
  uint64_t next_token_ = 1;
  uint64_t folds_made_ = 0;
  uint64_t folds_dropped_ = 0;
  uint64_t last_groups_serial_ = 0;
};

}  // namespace taskd::proxy
