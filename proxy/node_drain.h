// The thread that watches the rings of a node and gives the ranks' lanes what is to be written. It never touches a file
// itself; what storage that hangs costs is in the design of node.h.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "proxy/file_threads.h"
#include "proxy/node_ranks.h"
#include "proxy/rank_lane.h"
#include "proxy/shm_segments.h"

namespace taskd::proxy {

struct NodeOptions {
  int node_rank = 0;
  std::string host;
  std::string socket;  // names the segments of this node
  int64_t disk_limit_mb = 0;
  // Memory for marks whose files cannot be written.
  size_t rank_backlog_bytes = size_t{64} << 20;
  size_t node_backlog_bytes = size_t{512} << 20;
  int stop_patience_ms = 6000;  // at the end, for storage that does not answer
};

class NodeDrain {
 public:
  // Both outlive this.
  NodeDrain(const NodeOptions& options, NodeRanks* node)
      : options_(options), node_(*node), orphans_(SegmentPrefixes(options.socket)), strangers_(options.socket) {}
  NodeDrain(const NodeDrain&) = delete;
  NodeDrain& operator=(const NodeDrain&) = delete;

  // Begins, until NodeRanks::stopping.
  void Start() {
    thread_ = std::thread([this] { Run(); });
  }
  // For the end, if it was started. As Node::Stop.
  absl::Status Wait();
  // Of all ranks, as of the last pass. From any thread.
  size_t backlog_bytes() const { return shown_backlog_bytes_; }

 private:
  using Segments = std::vector<std::pair<int, std::shared_ptr<NodeSegment>>>;  // by rank

  // A rank as one pass looks at it.
  struct Work {
    int rank;
    std::shared_ptr<RankLane> lane;
    std::vector<std::shared_ptr<NodeSegment>> segments;
    std::optional<std::string> info;  // .rank.json is to be written
    SavedInStep saved;                // as it is in the reports
  };
  // A rank whose files cannot be written.
  struct FileTrouble {
    uint64_t retry_ns;
    absl::StatusCode code;
    std::string text;
  };

  void Run();
  // What is not done in each pass.
  void Upkeep(uint64_t now_ns, bool stop_begins);
  std::vector<Work> ListWork(uint64_t now_ns);
  void DrainAll(std::vector<Work>& work, uint64_t now_ns, bool stopping);
  // Looks at a rank and gives its lane what is due. The segments that are drained and gone are added to `gone`.
  void Drain(Work& work, uint64_t now_ns, bool stopping, Segments& gone);
  // Looks at one of its segments while its lane is idle: adds to `due` what is to be written of it.
  void DrainIdle(int rank, const std::shared_ptr<NodeSegment>& segment, uint64_t now_ns, bool stopping, bool waits,
                 RankLane::Work& due, Segments& gone);
  // Whether the process has ended, and whether the segment is sound.
  void LookAt(int rank, NodeSegment& segment, uint64_t now_ns, bool stopping);
  void LookForProcess(int rank, NodeSegment& segment, uint64_t now_ns, bool stopping);
  // Whether the process is stopped.
  void LookForStop(int rank, NodeSegment& segment, uint64_t now_ns);
  void TakeResult(const Work& work, uint64_t now_ns);
  void TakeFlushed(int rank, const absl::Status& flushed, uint64_t now_ns);
  // `idle`: no work of its lane is under way. `stuck`: its files do not move.
  void TakeCounters(NodeSegment& segment, bool idle, bool stuck, uint64_t now_ns);
  // What the process of a rank does that makes no marks, and in which range it is.
  void LookForWork(int rank, NodeSegment& segment, const RankLane& lane, uint64_t now_ns);
  // How long the process has waited for a CPU.
  void LookForWaits(NodeSegment& segment, uint64_t now_ns);
  // What is known of that goes into the folds.
  void FillWaits(const Work& work, std::vector<StepFold>& folds);
  // What the lane has folded goes to the rank's queue.
  void GatherFolds(const std::vector<Work>& work);
  void ReadAhead(const Work& work);
  void Forget(const Segments& gone);
  // Tells the node what keeps marks from their files.
  void TellTrouble();
  // Logs, once each, that storage does not answer and that it does again; gives memory back.
  void WatchStorage(const std::vector<Work>& work, uint64_t now_ns);
  bool AllWritten(const std::vector<Work>& work) const;
  // What could not be written in time.
  static absl::Status LeftBehind(const std::vector<Work>& work);

  const NodeOptions& options_;
  NodeRanks& node_;

  // The thread's own.
  std::map<int, FileTrouble> file_trouble_;
  std::set<int> asked_to_stop_;  // ranks whose last work has begun
  size_t backlog_bytes_ = 0;     // as of this pass, and what was added in it
  std::atomic<size_t> shown_backlog_bytes_{0};
  size_t most_backlog_bytes_ = 0;  // since there was none
  bool storage_hangs_ = false;
  uint64_t adopted_ns_ = 0;  // when orphans were looked for
  uint64_t swept_ns_ = 0;
  SegmentScan orphans_;
  StrangerSweeper strangers_;
  absl::Status left_;  // what Wait returns
  FileThreads file_threads_;
  std::thread thread_;
};

}  // namespace taskd::proxy
