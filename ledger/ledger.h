// Turns a job's events into rank-seconds by category, incidents and attempts. At every moment the sum over the
// categories is the lifetime of all rank slots.
//
// Design:
// 1. A slot is a rank's place in the job. Each slot has a cursor: the time before it has been handed over, either to a
//    category for good or to a step (StepBook). The time after the cursor is attributed anew for each report. So all
//    time is counted exactly once, whatever the order of events.
// 2. The job as a whole is in one phase at a time: not known, waiting, running, restarting, between two attempts,
//    ended. While it runs, each slot has its own sequence: launch until its process is first observed, link-up until
//    its first step begins, steps. A launch has no known end if no process of the job is ever observed.
// 3. Steps arrive late, after the end of the phase in which they were done. So a phase is handed over kGraceNs after
//    its end.
// 4. Hangs (of the whole job) and suspensions (of one rank's process) take precedence over whatever a slot did then.
//    Time with steps switched off that no step covers is unmarked.
// 5. Marks of unmodified PyTorch code number each process's steps from 0. So a process that begins at 0 after a
//    checkpoint save is assumed to go on from the step of that save.
// 6. Ranks stamp with their nodes' clocks. The caller's Unix time moves stamps to this clock; if the result is
//    impossible, the shortest delay of arrival does. A process's stamps never go back, so setting a clock moves no
//    step. Moved stamps stay between the cursor and now.
//
// Pure: no I/O, no threads; time is a parameter. Not thread-safe. All times are ns of one steady clock of the caller's.
// The times of events are clamped to the range from the last phase's begin to now.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "common/rank_report.h"
#include "ledger/report.h"
#include "ledger/step_book.h"
#include "ledger/tally.h"
#include "marks/step_fold.h"

namespace taskd::ledger {

class Ledger {
 public:
  static constexpr int kMaxSlots = 1 << 17;
  static constexpr int64_t kGraceNs = 10'000'000'000;
  // A launch counts as one for this long without proof that processes make marks. If no process of the job is observed
  // within this time, the whole launch is booked as unknown. With steps switched off, later launch time is unmarked.
  static constexpr int64_t kUnprovenLaunchNs = 60'000'000'000;
  // With steps switched on, a process is observed within this time if anything in it makes marks.
  static constexpr int64_t kMarksComeNs = 180'000'000'000;
  // The same limit for a job that has ended.
  static constexpr int64_t kMarksCameNs = 10'000'000'000;
  // A launch (no mark yet) and a link-up (no step yet) are at most this long. Later time is unknown or unmarked.
  static constexpr int64_t kMostLaunchNs = 1800'000'000'000;
  static constexpr int64_t kMostLinkUpNs = 7200'000'000'000;
  // The limit of a link-up while the job has never marked a step: such a job may never mark one.
  static constexpr int64_t kUnprovenLinkUpNs = 600'000'000'000;
  // An open step may exceed StepBook::kOdd usual steps by this much before its time counts as unknown.
  static constexpr int64_t kLateNs = 5'000'000'000;
  // While the job's size is unknown, ranks may appear for this long after the first start.
  static constexpr int64_t kGatherNs = 600'000'000'000;
  static constexpr int64_t kMostStep = int64_t{1} << 40;  // sums of several such numbers fit into int64_t
  static constexpr size_t kMaxSpans = 256;
  static constexpr size_t kMaxStops = 16;  // per slot, after its cursor
  static constexpr size_t kMaxSeen = 16;   // per slot, after its cursor
  // The largest gap between two reports of one suspension; also the tolerance for a step's end inside a suspension.
  static constexpr int64_t kStopSlackNs = 500'000'000;
  static constexpr size_t kMaxTextBytes = 300;
  static constexpr size_t kMaxNames = 64;  // ranks, or nodes, of an incident
  // The outcome of an attempt whose end was not reported.
  static constexpr char kLostLauncher[] = "its launcher was lost";

  struct Options {
    int64_t now_ns = 0;
    int64_t unix_offset_ns = 0;  // Unix time minus this clock
    int slots = 0;               // 0: unknown; then each observed rank has a slot
    bool launched = false;  // a launcher has started the ledger's owner: the job begins now, not with the first report
  };
  struct Exit {
    int rank = -1, node = -1;
    bool failed = false;
    std::string text = {};
  };

  explicit Ledger(const Options& options);

  // Sets the job's size from now on; ranks beyond it leave.
  void SetSlots(int slots, int64_t at_ns, int64_t now_ns);
  // A launcher waits for others (`waits`), or has stopped waiting.
  void Waits(bool waits, int64_t at_ns, int64_t now_ns);
  // The ranks of a round were started.
  void Started(int round, int64_t at_ns, int64_t now_ns);
  void Exited(const Exit& exit, int64_t at_ns, int64_t now_ns);
  // The ranks are being ended, to be started again.
  void Restarting(IncidentKind kind, const std::string& text, int64_t at_ns, int64_t now_ns);
  // `next`: the kind of incident that a later attempt is booked as.
  void Ended(int code, const std::string& text, int64_t at_ns, int64_t now_ns,
             IncidentKind next = IncidentKind::kRequeue);
  // There was no progress since `since_ns`, or since the last step if that is later.
  void Hang(int64_t since_ns, const std::vector<int>& ranks, const std::string& text, int64_t now_ns);
  void Resumed(int64_t at_ns, int64_t now_ns);
  // The rank's process did not run. Suspensions of a rank arrive in order. A suspension is discarded if a step of the
  // rank ends within it.
  void Suspended(int rank, int64_t begin_ns, int64_t end_ns, int64_t now_ns);
  // Steps are marked from now on, or not.
  void SetStepsOn(bool on, int64_t now_ns);
  // `here`: the rank's process is observed for the first time, by its first mark. Otherwise the process is gone.
  void Seen(int rank, bool here, int64_t at_ns, int64_t now_ns);
  void Step(int rank, const StepFold& fold, int64_t now_ns);
  // The rank has saved a checkpoint in a step that has not ended.
  void Saved(int rank, const SavedInStep& saved, int64_t now_ns);
  // A verdict of the diagnosis, open or cleared. The ledger fills in `cost.incident`; ranks, nodes and text are the
  // verdict's.
  struct Straggler {
    StragglerCost cost;
    std::vector<int> ranks, nodes;
    std::string text;
    int64_t since_ns = 0;  // Unix; 0: unknown
    friend bool operator==(const Straggler&, const Straggler&) = default;
  };
  // Replaces the verdicts by those that the diagnosis lists now.
  void SetStragglers(const std::vector<Straggler>& stragglers, int64_t now_ns);
  // The same for steps that are still to be added. Files have their verdicts before their steps.
  void SetKnownStragglers(const std::vector<Straggler>& stragglers, int64_t now_ns);

  // Advances the time.
  void Look(int64_t now_ns) { SetNow(now_ns); }
  // Closes what is due. The caller calls it from time to time.
  void Advance(int64_t now_ns);
  // The report as of the latest call.
  Report report() const;

  // The state from which a later ledger continues. Resume() has to be the first call; the report's categories are
  // closed with it. `dead_ns` is the time from the report's end to now. That time is unknown unless steps cover it.
  struct Kept {
    Report report;
    int64_t done_until = -1;  // the last step that has been done
    int64_t saved_step = -1;  // the last step in which a checkpoint was saved
    int64_t base = 0;         // added to the numbers that processes give their steps
    int round = -1;
    bool ended = false;
    IncidentKind next = IncidentKind::kRequeue;  // as passed to Ended()
    int64_t dead_ns = 0;
  };
  void Resume(const Kept& kept, int64_t now_ns);
  // The same, if the earlier state becomes known only after this ledger has begun: its time precedes this ledger's.
  // `gap` is the category of the time in between: kQueue begins another attempt, kUnknown continues the last one. Only
  // the first call counts, and none after Resume().
  void Precede(const Kept& kept, Category gap, int64_t now_ns);
  // The last step that most ranks have done, and the last step with a checkpoint save among those that most ranks have
  // reached. One rank that reports a step far ahead changes neither.
  int64_t done_until() const { return Reached().done_until; }
  int64_t saved_step() const { return Reached().saved_step; }
  int64_t base() const { return base_; }
  int round() const { return round_; }
  bool ended() const { return phase().kind == Phase::Kind::kEnded; }
  // Whether steps have been on for long enough to observe a process, but none has been observed.
  bool lacks_marks() const;
  IncidentKind next() const { return next_; }
  // The number of the next incident; it grows with each incident.
  uint64_t incidents() const { return next_incident_; }

 private:
  static constexpr int64_t kNever = INT64_MAX;

  struct Phase {
    enum class Kind : uint8_t { kAlone, kResumed, kWaiting, kRunning, kRestart, kQueue, kEnded };
    Kind kind = Kind::kAlone;
    int64_t begin_ns = 0;
    uint64_t incident = 0;
    int64_t base = -1;                  // added to the step numbers of processes that begin in it; -1: not known yet
    int64_t first_step_ns = INT64_MAX;  // begin of the first step in this phase
    int64_t saved_in = -1;              // the last step, not ended yet, in which a checkpoint was saved
    int64_t saved_ns = 0;               // duration of that save
    bool failed = false;                // kEnded: the exit code was not 0
    bool guessed = false;               // kRunning: the end of the wait is all that is known

    bool runs() const { return kind == Kind::kAlone || kind == Kind::kResumed || kind == Kind::kRunning; }
  };
  struct Stop {
    int64_t begin_ns = 0, end_ns = 0;
  };
  struct Slot {
    bool exists = false;
    bool steps = false;  // its present process has ended a step; the cursor is at the end of the last one
    uint32_t process_id = 0;
    int64_t born_ns = 0;
    int64_t cursor_ns = 0;
    int64_t offset_ns = 0;         // from its process's stamps to this clock
    int64_t base = 0;              // added to its process's step numbers
    int64_t last_step = -1;        // of its present process
    int64_t done_until = -1;       // last step of former processes
    int64_t saved_step = -1;       // last step in which a checkpoint was saved
    std::vector<int64_t> seen_ns;  // first observations of its processes, one per phase, oldest first
    std::vector<Stop> stops;       // suspensions of its process: oldest first, without overlap
  };
  struct Span {
    int64_t begin_ns = 0, end_ns = 0;
    Category category = Category::kHang;
    uint64_t incident = 0;
  };
  struct Steps {
    int64_t done_until = -1, saved_step = -1;
  };
  // The end of a piece of time: the process goes on, or it is gone.
  enum class Tail : uint8_t { kOpen, kOver };

  static constexpr int64_t kCountEveryNs = 100'000'000;

  const Phase& phase() const { return phases_.back(); }
  // Combines the settled steps and the slots that exist now. Looks at all slots.
  Steps Reached() const;
  void SettleSteps();
  int64_t Clamp(int64_t at_ns) const;
  void SetNow(int64_t now_ns);
  Phase& Begin(Phase::Kind kind, int64_t at_ns, uint64_t incident);
  // Records that a launcher has reported something.
  void Hear(int64_t at_ns);
  // Begins another attempt of the same job after its end.
  void BeginAttempt(int64_t at_ns);
  // The text of the incident that begins another attempt after the last of these.
  static std::string StartedAgain(const std::vector<Attempt>& attempts);
  // Whether neither a launcher nor a process has been observed yet.
  bool untouched() const;
  uint64_t AddIncident(IncidentKind kind, int64_t at_ns, std::vector<int> ranks, std::vector<int> nodes,
                       std::string text);
  // The incident number of this ledger's own begin. It becomes an incident if another attempt precedes it.
  static constexpr uint64_t kBegin = 1;
  Incident* FindIncident(uint64_t number);
  // `base` is added to the step numbers of new verdicts. -1: they are the numbers that processes report.
  void HearStragglers(const std::vector<Straggler>& stragglers, int64_t base, int64_t now_ns);
  // Merges the oldest incidents into sums by kind if there are too many.
  void TrimIncidents();
  Slot* Find(int rank);
  void Retire(Slot& slot, int64_t at_ns);
  // Hands over the slot's time until `until_ns` for good.
  void Close(Slot& slot, int64_t until_ns);
  void Attribute(const Slot& slot, int64_t until_ns, Tail tail, Tally& into) const;
  void AttributeRunning(const Slot& slot, const Phase& phase, int64_t begin_ns, int64_t end_ns, const Phase* next,
                        Tail tail, Tally& into) const;
  void AttributeTail(const Slot& slot, const Phase& phase, int64_t begin_ns, int64_t end_ns, bool over, bool failed,
                     uint64_t incident, Tally& into) const;
  // Books a time as `category`, except for suspensions and spans in it. `unless_off`: the part of the rest with steps
  // switched off is unmarked.
  void Cut(const Slot& slot, int64_t begin_ns, int64_t end_ns, Category category, uint64_t incident, bool unless_off,
           Tally& into) const;
  // Books suspensions and spans within a step into `into`; returns the rest of its time.
  int64_t CutStep(const Slot& slot, int64_t begin_ns, int64_t end_ns, Tally& into) const;
  // The same two for a time without suspensions.
  void CutSpans(int64_t begin_ns, int64_t end_ns, Category category, uint64_t incident, bool unless_off,
                Tally& into) const;
  int64_t CutStepSpans(int64_t begin_ns, int64_t end_ns, Tally& into) const;
  // Books the suspensions within a time and passes each piece between them to `rest`.
  template <typename Rest>
  static void CutStops(const Slot& slot, int64_t begin_ns, int64_t end_ns, Tally& into, const Rest& rest);
  // Moves the slot's cursor and drops what lies before it.
  static void MoveCursor(Slot& slot, int64_t to_ns);
  // The first observation of its process from `begin_ns` to `end_ns`; -1: none.
  static int64_t SeenIn(const Slot& slot, int64_t begin_ns, int64_t end_ns);
  // The base of a process from its first step summary. `follows`: that step follows another one of the process.
  int64_t BaseOf(const StepFold& fold, bool follows);
  // The offset from the stamps of the fold's process to this clock.
  int64_t OffsetOf(const Slot& slot, const StepFold& fold) const;
  void EndSpan(int64_t at_ns);
  void SettlePhases();
  void CollectClosed();

  const int64_t unix_offset_ns_;
  int64_t now_ns_;
  int64_t since_ns_;
  int64_t begun_ns_;  // when this ledger began; earlier time comes from Resume() or Precede()
  const bool launched_;
  bool sized_ = false;  // the job's size is given
  bool resumed_ = false;
  bool preceded_ = false;
  bool heard_ = false;                 // a launcher has reported
  int64_t first_seen_ns_ = INT64_MAX;  // first observation of a process
  int round_ = -1;
  IncidentKind next_ = IncidentKind::kRequeue;  // kind of the incident that an attempt after the last end is
  std::deque<Phase> phases_;                    // oldest first; the first one is not closed for all slots yet
  std::vector<Slot> slots_;                     // by rank
  int live_ = 0;                                // number of slots that exist
  double retired_s_ = 0;                        // rank-seconds of slots that are gone, and of earlier ledgers
  std::deque<Span> spans_;                      // by begin
  std::deque<Span> off_;                        // times with steps switched off
  bool hangs_ = false;                          // the newest span is an open hang
  StepBook book_;
  int64_t done_until_ = -1;  // in the job's count, as saved_step_; updated when a phase begins
  int64_t saved_step_ = -1;
  bool has_steps_ = false;          // some rank has marked a step
  int64_t counted_ns_ = INT64_MIN;  // when saved_now_ was computed
  int64_t saved_now_ = -1;
  int64_t base_ = 0;                // of the process that began last
  Tally closed_;                    // CollectClosed() moves its incidents to incidents_
  std::deque<Incident> incidents_;  // by number; the numbers are consecutive
  std::deque<Incident> former_;     // from Precede(), with their former numbers
  uint64_t shift_ = 0;              // the last number in former_
  Seconds begin_{};                 // closed cost of kBegin
  bool begin_shown_ = false;        // the last of former_ is kBegin
  OlderIncidents older_;
  Measured measured_;  // `checkpoints` of earlier ledgers; closed_ has those of this one
  uint64_t next_incident_ = kBegin + 1;
  struct VerdictSeen {
    uint64_t incident = 0;
    int64_t base = 0;  // added to its step numbers; set when the verdict was first received
  };
  std::map<uint64_t, VerdictSeen> verdicts_;
  std::vector<Attempt> attempts_;
  size_t former_attempts_ = 0;  // number of attempts from Precede()
};

}  // namespace taskd::ledger
