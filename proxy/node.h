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

#include <sys/stat.h>

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/rank_report.h"
#include "common/step_fold.h"
#include "common/switch.h"
#include "common/unique_fd.h"
#include "proxy/file_threads.h"
#include "proxy/profiling_dir.h"
#include "proxy/rank_lane.h"
#include "proxy/segment_drain.h"
#include "taskd/hello.h"

namespace taskd {

// The gate word for the kinds that are wanted: marks of no known kind go with the default domain.
uint32_t GateOf(KindMask kinds);

struct WantedKinds {
  KindMask kinds = 0;
  uint64_t revision = 0;  // of the manager's state; 0: it is not the manager's

  friend bool operator==(const WantedKinds&, const WantedKinds&) = default;
};

// Folds on their way to the manager.
struct NodeFolds {
  std::vector<std::pair<int, std::vector<GroupInfo>>> groups;  // by rank, where they are news
  std::vector<std::pair<int, StepFold>> steps;                 // by rank, each rank's in order
  uint64_t dropped = 0;                                        // folds that nobody took in time, since the start
};

class Node {
 public:
  struct Options {
    int node_rank = 0;
    std::string host;
    std::string socket;  // names the segments of this node
    int64_t disk_limit_mb = 0;
    // Memory for marks whose files cannot be written.
    size_t rank_backlog_bytes = size_t{64} << 20;
    size_t node_backlog_bytes = size_t{512} << 20;
    int stop_patience_ms = 6000;  // at the end, for storage that does not answer
  };

  Node(Options options, ProfilingDir dir);
  ~Node();  // Stop()
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;

  // Starts the drain thread.
  void Start();
  // Writes everything recorded and ends the drain thread; DEADLINE_EXCEEDED with what is not in the files if storage
  // does not answer in time. Segments of living ranks stay for the next proxy, and those of which something is unread.
  absl::Status Stop();

  // A rank's hello. Returns a token for Detach. INVALID_ARGUMENT / FAILED_PRECONDITION: refused, the message says why.
  absl::StatusOr<uint64_t> Attach(const hello::Hello& hello, UniqueFd segment);
  // The connection of a token has closed.
  void Detach(uint64_t token);

  // Sets the gates of all ranks, now and for those to come. A rank with MSPTI has applied it when MSPTI says so; until
  // then it is neither applied nor failed, at most kAnswerMs.
  void SetWanted(const WantedKinds& wanted);
  std::optional<WantedKinds> wanted() const;
  static constexpr int kAnswerMs = 1000;

  // By rank. What is counted is of all lives of the rank under this proxy.
  std::vector<RankReport> Reports() const;
  // What the ranks made of `revision`, by rank; those that wait for MSPTI are left out. `ms` is not set.
  std::vector<RankAnswer> Answers(uint64_t revision) const;
  // Takes up to `max_steps` folds that wait, and the groups of their ranks that are newer than `told` says (versions by
  // rank, which it then notes). At most kMaxFolds a rank wait, then the oldest are dropped.
  NodeFolds TakeFolds(std::map<int, uint64_t>& told, size_t max_steps);
  static constexpr size_t kMaxFolds = 64;

  struct Versions {
    uint64_t all = 0;     // of everything in the reports
    uint64_t urgent = 0;  // of the same without counters
  };
  Versions versions() const;
  // Waits until ranks or gates have changed since `urgent`, folds wait (if `for_folds`), the time is up, or
  // WakeWaiters.
  void WaitForChange(uint64_t urgent, int timeout_ms, bool for_folds);
  void WakeWaiters();

  // The smaller of the option and what the ranks asked for; 0: no limit.
  int64_t disk_limit_mb() const;

 private:
  struct Segment {
    // Set once. The drain thread's and its rank's lane's, but for RingSegment::SetGate and the header.
    std::shared_ptr<SegmentDrain> drain;
    std::string shm_name;      // to unlink when it is drained; empty for a memfd
    bool writer_seen = false;  // the writer's lock was held at some time; the drain thread's
    // Of the rank that this process was before: nothing is read while it may still write. Null: none.
    std::shared_ptr<RankLane> former;

    // Guarded by mutex_.
    uint64_t token = 0;
    bool connected = false;
    bool ended = false;   // its process is gone
    bool current = true;  // false: another process has taken the rank
    std::string fault;    // as RingSegment::fault()
    uint64_t checked_ns = 0;
    SegmentDrain::Counters counters;
  };
  struct Rank {
    Rank(const ProfilingDir& dir, int rank) : lane(std::make_shared<RankLane>(dir, rank)) {}
    std::shared_ptr<RankLane> lane;  // the drain thread's
    std::deque<StepFold> folds;      // finished, not taken yet
    std::vector<GroupInfo> groups;   // as `fold` had them at `groups_version`
    uint64_t groups_version = 0;
    int local_rank = -1;
    uint32_t pid = 0;
    std::optional<WantedKinds> asked;  // what the gate of its current segment holds
    enum class Answer : uint8_t { kAwaited, kApplied, kFailed } answer = Answer::kAwaited;
    uint64_t unanswered_since_ns = 0;  // MSPTI's last answer is to something else
    std::string failure;
    uint64_t applied_revision = 0;
    KindMask applied = 0;
    bool info_written = false;
    uint64_t retry_info_ns = 0;
    bool info_trouble_said = false;
    std::vector<std::shared_ptr<Segment>> segments;  // at most one is current, the last
    SegmentDrain::Counters ended;                    // of the segments that are gone
  };

  static RankReport ReportOf(int number, const Rank& rank);
  // Nothing while the rank has not made anything of `revision` yet.
  std::optional<RankAnswer> AnswerOf(int number, const Rank& rank, uint64_t revision) const;

  // A rank as the drain thread looks at it in one pass.
  struct Work {
    int rank;
    std::shared_ptr<RankLane> lane;
    std::vector<std::shared_ptr<Segment>> segments;
    std::optional<std::string> info;  // .rank.json is to be written
  };
  void DrainLoop();
  std::vector<Work> ListWork(uint64_t now_ns);
  // Looks at a rank and gives its lane what is due. The segments that are drained and gone are added to `gone`.
  void Drain(Work& work, uint64_t now_ns, bool stopping, std::vector<std::pair<int, std::shared_ptr<Segment>>>& gone);
  // Whether the process has ended, and whether the segment is sound.
  void LookAt(int rank, Segment& segment, uint64_t now_ns);
  void TakeResult(const Work& work, uint64_t now_ns);
  void TakeCounters(Segment& segment, bool idle);
  void ReadAhead(const Work& work);
  void Forget(const std::vector<std::pair<int, std::shared_ptr<Segment>>>& gone);
  // Says when storage does not answer, and when it does again, once; gives memory back.
  void WatchStorage(const std::vector<Work>& work, uint64_t now_ns);
  // What could not be written in time.
  absl::Status Leave(const std::vector<Work>& work);
  // What the lanes have folded goes to the ranks' queues.
  void GatherFolds(const std::vector<Work>& work);
  // Segments in /dev/shm that belong to this node and to no living process.
  void AdoptOrphans();
  void AddSegment(int rank, std::shared_ptr<Segment> segment);
  // The same process says hello again. Null: it is not known, or was known as another rank and is forgotten as that.
  // Then `former` is the lane of that rank.
  Segment* FindAgain(const hello::Hello& hello, const RingSegment& ring, std::shared_ptr<RankLane>& former);
  void ApplyGate(Rank& rank, Segment& segment);
  // What the rank made of what its gate asks for. True: that is news.
  bool TakeAnswer(Rank& rank, Segment& segment, uint64_t now_ns);
  void TakeAnswers();
  void Changed();

  const Options options_;
  const ProfilingDir dir_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::condition_variable wake_drain_;
  uint64_t version_ = 1;
  uint64_t urgent_version_ = 1;
  bool folds_wait_ = false;
  bool answers_awaited_ = false;
  uint64_t folds_dropped_ = 0;
  bool stopping_ = false;
  uint64_t next_token_ = 1;
  std::optional<WantedKinds> wanted_;
  std::map<int, Rank> ranks_;
  int64_t disk_limit_mb_;

  // The drain thread's own.
  struct FileTrouble {
    uint64_t retry_ns;
    absl::StatusCode code;
  };
  std::map<int, FileTrouble> file_trouble_;  // ranks whose files cannot be written
  std::set<int> asked_to_stop_;              // ranks whose last work has begun
  size_t backlog_bytes_ = 0;                 // as of this pass, and what was added in it
  size_t most_backlog_bytes_ = 0;            // since there was none
  bool storage_hangs_ = false;
  absl::Status left_;  // what Stop returns
  FileThreads file_threads_;
  std::thread drain_thread_;
};

}  // namespace taskd
