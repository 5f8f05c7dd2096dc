// Between the streams of the nodes and the engine: whose rank is whose, what a node may report, when a rank is gone.
//
// Design:
// 1. A rank belongs to one stream: the first that reports it as attached or brings folds of it. Another one that does
//    is set aside, and a note names both. It gets the rank when the first one reports that the rank is not attached any
//    more (a job that was moved: its old processes end), when the first stream ends, and when the first proxy connects
//    anew (same node, same host). So a process that takes a rank's number on another node costs that rank nothing.
// 2. What a stream reports of ranks that are not its own is refused and counted: a broken proxy costs its own ranks
//    only.
// 3. A rank is gone for the engine when its proxy reports that it is not attached any more, and when its stream has
//    been away for Options::away_ns; a proxy that comes back earlier goes on as if nothing had been.
//
// Pure bookkeeping: no clock, no threads. Not thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/btree_map.h"
#include "common/rank_report.h"
#include "common/switch.h"
#include "diagnosis/engine.h"
#include "marks/step_fold.h"

namespace taskd::manager {

// One rank of a node, as its proxy reports it.
struct RankPresence {
  int rank = 0;
  bool attached = false;
  std::optional<KindMask> kinds_on = {};  // that it records; empty: not reported yet
  uint64_t stopped_ms = 0;                // RankReport::stopped_ms
  SavedInStep saved = {};

  friend bool operator==(const RankPresence&, const RankPresence&) = default;
};

// One message of folds.
struct FoldBatch {
  struct Groups {
    int rank = 0;
    std::vector<GroupInfo> groups;  // by index
  };
  struct Step {
    int rank = 0;
    StepFold fold;
    uint64_t number = 0;  // v1::RankStep.number
  };
  std::vector<Groups> groups;  // taken before the steps
  std::vector<Step> steps;     // of each rank in order
  uint64_t proxy_dropped = 0;  // steps that the proxy did not send, since it started
  uint64_t unreadable = 0;     // steps of the message that are not in `steps`
  uint64_t bad_groups = 0;     // groups of the message whose members, or all of which, cannot be read
};

// What the batch takes in memory, roughly; never 0.
size_t BytesOf(const FoldBatch& batch);

class DiagnosisFeed {
 public:
  struct Options {
    diagnosis::Engine::Options engine;
    uint64_t away_ns = 30'000'000'000;  // after this the ranks of a node whose stream has ended are gone
    // Is shown each step before the engine is.
    std::function<void(int rank, const StepFold& fold, uint64_t now_ns)> on_step;
    // Is told when a rank of a stream comes or goes.
    std::function<void(int rank, bool attached)> on_presence;
    // Is told that a rank's process was stopped for so long until now.
    std::function<void(int rank, uint64_t stopped_ms)> on_stopped;
    // Is told what each report says that a rank has saved.
    std::function<void(int rank, const SavedInStep& saved)> on_saved;
    // Is shown all groups of a rank as the engine has them; none where the rank has gone for good.
    std::function<void(int node, int rank, const std::vector<GroupInfo>& groups)> on_groups;
  };
  struct Counts {
    uint64_t steps = 0;          // given to the engine
    uint64_t again = 0;          // came again on a new stream, because the proxy did not know that they had come
    uint64_t refused = 0;        // of ranks that are not the stream's or cannot be, or unreadable
    uint64_t unused = 0;         // of those given to the engine: that came twice, too late, or far ahead of the others
    uint64_t proxy_dropped = 0;  // FoldBatch::proxy_dropped, over the nodes that are connected
    uint64_t live_ranks = 0;     // owned and not gone
    uint64_t groups_unused = 0;  // that came with members that are not used (diagnosis::Engine::SetGroup)
    size_t group_bytes = 0;      // that the engine holds,
    size_t waiting_bytes = 0;    // and of folds that wait there for other ranks
  };

  // A rank has no more groups than this, and groups beyond this many bytes go without their members. Real jobs have a
  // dozen groups of a few runs each. What their members come to is the engine's to charge.
  static constexpr size_t kMaxGroups = 256;
  static constexpr size_t kMaxGroupBytes = size_t{128} * 1024;

  explicit DiagnosisFeed(const Options& options);
  DiagnosisFeed(const DiagnosisFeed&) = delete;
  DiagnosisFeed& operator=(const DiagnosisFeed&) = delete;

  // `stream`: any number but 0 that no stream had before. `node`: its rank. `life`: v1::NodeHello.life.
  void Connect(uint64_t stream, int node, const std::string& host, uint64_t life = 0);
  // All ranks of the node. At most kMaxRanksPerNode are the stream's, whatever it reports.
  void Ranks(uint64_t stream, const std::vector<RankPresence>& ranks);
  void Folds(uint64_t stream, FoldBatch batch, uint64_t now_ns);
  void Disconnect(uint64_t stream, uint64_t now_ns);
  // True: the verdicts or the state have changed.
  bool Advance(uint64_t now_ns);

  // No step will follow.
  void Finish() { engine_.Finish(); }
  // True while time alone can change something.
  bool waits_for_time(uint64_t now_ns) const { return away_ > 0 || now_ns < busy_until_ns_; }
  // While too few steps have come it says what is to be done for them to come. Names ranks that two nodes report.
  diagnosis::Report report() const;
  // Engine::Why.
  absl::StatusOr<diagnosis::RankTrace> Why(int rank) const { return engine_.Why(rank); }
  void Restore(const std::vector<diagnosis::Verdict>& verdicts) { engine_.Restore(verdicts); }
  // Engine::SetWorldSize.
  void SetWorldSize(int ranks) { engine_.SetWorldSize(ranks); }
  Counts counts() const;
  // The stream that the rank belongs to; 0: nobody's.
  uint64_t owner(int rank) const;
  // The nodes that a verdict about ranks or nodes accuses, as far as they are known here: node rank and host, in order.
  std::vector<std::pair<int, std::string>> Accused(const diagnosis::Verdict& verdict) const;
  // As given to the engine.
  diagnosis::RankPlace place(int rank) const;

 private:
  enum class Presence : uint8_t { kUnknown, kAttached, kDetached };
  struct Rank {
    uint64_t stream = 0;
    uint64_t rival = 0;  // the newest other stream that reports it as attached; it may have gone
    uint64_t life = 0;   // of the proxy that brought the newest fold
    uint64_t taken = 0;  // and that fold's number
    int local_rank = -1;
    Presence presence = Presence::kUnknown;
    bool live = false;  // for the engine
    std::optional<KindMask> kinds_on;

    bool Records(SwitchKind kind, bool if_unknown) const {
      return kinds_on ? (*kinds_on & MaskOf(kind)) != 0 : if_unknown;
    }
    std::optional<uint64_t> stopped_ms;  // as its stream has said last; none: not yet
  };
  using Reported = absl::btree_map<int, bool>;  // rank -> attached
  struct Stream {
    int node = 0;
    std::string host;
    uint64_t life = 0;  // of the proxy; 0: it does not number its folds
    bool connected = true;
    bool replaced = false;  // its proxy has connected anew
    uint64_t away_since_ns = 0;
    uint64_t proxy_dropped = 0;
    Reported reported;       // of the newest Ranks
    std::vector<int> owned;  // some may have another owner by now
    size_t owns = 0;
  };

  // Of ranks as launchers number them: node after node, all nodes alike. -1 where the ranks of the node do not look so.
  static int FirstRank(const Reported& reported);
  bool InRange(int rank) const { return rank >= 0 && rank < diagnosis::kMaxRanks; }
  Rank& At(int rank);
  // No connected node has it.
  bool IsFree(int rank) const;
  bool ReportsAttached(uint64_t id, int rank) const;
  bool Claim(uint64_t id, Stream& stream, int rank);
  void TakeAttached(uint64_t id, int rank, bool attached);
  // To the rival of its owner, if the owner has let it go.
  void HandOver(int rank);
  void TakeStopped(Rank& rank, const RankPresence& presence);
  // The fold has come before, on a stream of the same proxy that broke.
  static bool ComesAgain(const Stream& stream, Rank& rank, uint64_t number);
  bool MayFeed(uint64_t id, Stream& stream, int rank);
  void SetGroups(const Stream& stream, FoldBatch::Groups groups);
  void Release(Rank& rank, int number);
  void ReportGone(Rank& rank, int number);
  void Place(const Stream& stream, int rank);
  std::string AdviseOnSteps() const;
  // Whether no attached rank marks its steps, and there are some.
  bool AreMarksOff() const;
  std::string Rivals() const;

  const Options options_;
  diagnosis::Engine engine_;
  std::vector<Rank> ranks_;  // as long as the highest rank that was heard of
  std::map<uint64_t, Stream> streams_;
  size_t away_ = 0;             // streams
  bool has_connected_ = false;  // any node, ever
  bool has_attached_ = false;   // any rank, ever
  bool steps_were_on_ = false;  // likewise
  uint64_t busy_until_ns_ = 0;
  Counts counts_;
};

}  // namespace taskd::manager
