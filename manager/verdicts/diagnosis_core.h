// The running diagnosis: takes folds from any thread, judges them in one of its own, and publishes the report. Without
// transport, so that ThreadSanitizer can see all of it.
//
// Design:
// 1. Callers put what came into the mailbox of its stream and go: one short lock a message, no wait, whatever the
//    engine does. All mailboxes, what of them is just being taken, and the folds and groups that the engine holds have
//    a size in bytes together; above it the oldest folds of the fullest mailbox are dropped and counted, so that who floods loses
//    its own.
// 2. One thread empties all mailboxes at once, a hundred times a second at most, feeds the engine (DiagnosisFeed)
//    and lets it judge. It sleeps while nothing can change.
// 3. The report is immutable and shared. Subscribers are called when a verdict or the state has changed, nobody is
//    called for a new step; `report()` is at most kRefreshUnasked old.
// 4. Verdicts are given to `Save` after they were published: at once when one opens, clears or names something else,
//    else every kSaveAgain at most.
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "diagnosis/verdict.h"
#include "manager/switch/core.h"
#include "manager/verdicts/diagnosis_feed.h"

namespace taskd::manager {

// A client that wants to hear of changes. Called under a lock of the core: takes note and goes.
class ReportSink {
 public:
  virtual void Changed(std::shared_ptr<const diagnosis::Report> report) = 0;
  virtual void Close() = 0;  // the core ends; not called again

 protected:
  ~ReportSink() = default;
};

// Of the ranks that took part in the last steps, the share whose own time the marks show; 0 of none.
double CoverageOf(const diagnosis::Report& report);

class DiagnosisCore {
 public:
  struct Options {
    DiagnosisFeed::Options feed;
    // Of what waits, here and in the engine, and of its groups. Of it the engine's waiting folds are at most
    // Engine::kMaxWaitingBytes and groups at most GroupBudget::kLimits; so the mailboxes have, whatever happens, 112 MiB:
    // 5 s of 16,384 ranks at one step a second, half a second of 131,072.
    size_t max_bytes = (size_t{192} << 20) + diagnosis::Engine::kMaxWaitingBytes;
    // How a node is called, for verdicts that accuse it (ManagerCore::Identify); may be empty. Called in the thread.
    std::function<std::optional<NodeIdentity>(int node, const std::string& host)> identify;
    // Tests own the time: a clock that does not go by itself needs ClockHasChanged(). From any thread.
    std::function<SteadyTime()> now = std::chrono::steady_clock::now;
  };
  // Keeps the verdicts, and no others. Called in one thread, never while a lock is held.
  using Save = std::function<absl::Status(const std::vector<diagnosis::Verdict>&)>;

  struct Stats {
    DiagnosisFeed::Counts feed;
    uint64_t received = 0;  // steps that streams brought
    uint64_t dropped = 0;   // of them, because too much waited
    size_t open_verdicts = 0;
    std::array<uint64_t, diagnosis::kCauses> opened{};  // verdicts, by the cause that they were opened with
    double cost_ms_per_step = 0;                        // of the dearest open one: several may explain the same time
    double coverage = 0;                                // of the ranks: the share whose own time the marks show
    std::optional<diagnosis::Resolution> own_time, dataloader, transfer;
    double lag_s = 0;   // how long the oldest folds of the last round had waited when it was judged
    double busy_s = 0;  // time the thread has spent on judging
  };

  static constexpr size_t kMaxKeptVerdicts = 200;
  static constexpr size_t kMaxQuestions = 32;
  // Between the begins of two rounds: thousands of nodes do not wake the thread thousands of times.
  static constexpr std::chrono::milliseconds kPace{10};
  // A report without news is made as often, which takes a look at all ranks: where somebody has asked since the last
  // one, and where nobody has. In a manager the ledger asks once a second.
  static constexpr std::chrono::milliseconds kRefresh{200};
  static constexpr std::chrono::milliseconds kRefreshUnasked{1000};
  static constexpr std::chrono::seconds kSaveAgain{10};

  // `kept`: what Save was given last. `save` may be empty.
  DiagnosisCore(const Options& options, const std::vector<diagnosis::Verdict>& kept, Save save);
  ~DiagnosisCore();
  DiagnosisCore(const DiagnosisCore&) = delete;
  DiagnosisCore& operator=(const DiagnosisCore&) = delete;

  // DiagnosisFeed's, from any thread. Of one stream Connect comes first and Disconnect last. Nothing after Close.
  void Connect(uint64_t stream, int node, std::string host, uint64_t life = 0);
  void Ranks(uint64_t stream, std::vector<RankPresence> ranks);
  void Folds(uint64_t stream, FoldBatch batch);
  void Disconnect(uint64_t stream);

  // How many ranks the job has; 0: not known. From any thread.
  void SetWorldSize(int ranks) { world_size_ = ranks; }

  // Never null.
  std::shared_ptr<const diagnosis::Report> report() const;
  // Engine::Why, once, from another thread or at once. UNAVAILABLE: closed. RESOURCE_EXHAUSTED: kMaxQuestions wait.
  using Answer = std::function<void(absl::StatusOr<diagnosis::RankTrace> trace)>;
  void Why(int rank, Answer answer);
  // The job has ended: the report says what is known at its end. Waits for that.
  void Finish();
  // Tells the sink the present report at once, then each changed one. False: closed, nothing was told.
  bool Subscribe(ReportSink* sink);
  void Unsubscribe(ReportSink* sink);
  Stats stats() const;

  // Ends the thread, saves what is unsaved, closes the sinks.
  void Close();

  // Options::now has jumped: the thread looks whether something is due.
  void ClockHasChanged();

 private:
  struct Hello {
    int node = 0;
    std::string host;
    uint64_t life = 0;
  };
  struct Mailbox {
    std::optional<Hello> hello;
    std::optional<std::vector<RankPresence>> ranks;  // the newest only: each one is whole
    std::list<std::pair<FoldBatch, size_t>> folds;   // with their bytes
    size_t bytes = 0;
    bool ended = false;
  };
  using Inbox = std::map<uint64_t, Mailbox>;

  static constexpr int kAtEnd = -1;
  struct Question {
    int rank;  // kAtEnd: none, the job has ended
    Answer answer;
  };

  template <typename Put>
  void Post(uint64_t stream, Put put);
  void Run();
  // Until `ready`, or until the clock comes to `due`, where there is one.
  template <typename Ready>
  void Wait(std::unique_lock<std::mutex>& lock, std::optional<SteadyTime> due, Ready ready);
  // Takes `inbox` apart.
  void Round(Inbox& inbox, SteadyTime oldest, SteadyTime now);
  std::chrono::milliseconds Refresh() const { return asked_ ? kRefresh : kRefreshUnasked; }
  void Publish(bool changed, SteadyTime now);
  // Fills in the nodes that the verdicts accuse; of a cleared one as they were called last.
  void NameNodes(std::vector<diagnosis::Verdict>& verdicts);
  void CountOpened(const diagnosis::Report& report);
  void SaveIfDue(SteadyTime now, bool last);

  const Options options_;
  const Save save_;

  // Of the thread alone.
  DiagnosisFeed feed_;
  SteadyTime round_at_;  // when it judged last
  bool unpublished_ = false;
  std::map<uint64_t, std::vector<diagnosis::AccusedNode>> accused_;  // by verdict, of the report
  uint64_t last_verdict_ = 0;                                        // the highest id that was counted
  SteadyTime published_at_;
  bool unsaved_ = false;
  bool save_failed_ = false;
  std::string saved_as_;  // what the verdicts that were saved last name
  SteadyTime saved_at_;

  mutable std::mutex mutex_;  // guards from here
  std::condition_variable wake_;
  bool stopping_ = false;
  bool waiting_ = false;  // the thread waits for mail, not for its next round
  Inbox inbox_;
  size_t inbox_bytes_ = 0;
  size_t taken_bytes_ = 0;  // of the inbox that the thread has taken, until the engine has it
  SteadyTime inbox_since_;
  std::vector<Question> questions_;
  Stats stats_;

  std::atomic<int> world_size_{0};
  mutable std::atomic<bool> asked_{false};  // for the report, since it was made

  mutable std::mutex report_mutex_;  // guards from here; never taken together with mutex_
  std::shared_ptr<const diagnosis::Report> report_;
  bool closed_ = false;
  std::set<ReportSink*> sinks_;

  std::thread thread_;  // last: it uses the others
};

}  // namespace taskd::manager
