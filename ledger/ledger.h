// Where a job's time went: events in, rank-seconds by category, incidents and attempts out. The sum over the categories
// is what all rank slots have lived, at every moment.
//
// Design:
// 1. A slot is a rank's place in the job. Each has a cursor: the time until which it has been handed over, either to a
//    category for good or to a step (StepBook). What is behind the cursor is attributed anew whenever somebody asks. So
//    nothing is counted twice and nothing is left out, in whatever order events come.
// 2. The job as a whole is in one phase at a time: nobody knows, waiting, running, restarting, between two attempts,
//    ended. While it runs each slot goes its own way: launch until its process is first seen, link-up until its first
//    step begins, steps. Where no process of the job is ever seen, there is nothing that a launch could end with.
// 3. Steps arrive late, after the end of the phase that they were done in. So a phase is handed over kGraceNs after
//    its end.
// 4. Hangs, of the whole job, and suspensions, of one rank's process, take their time out of whatever a slot did then.
//    Where steps were switched off, what no step covers is unmarked.
// 5. Marks of unmodified PyTorch code number each process's steps from 0. So where a process begins at 0 again after a
//    checkpoint had been saved, it is taken to go on from the step in which that was.
// 6. Stamps of ranks are of their nodes' clocks. They are moved to this clock by what the caller says of Unix time, and
//    where that cannot be, by the least delay with which they came. A process's stamps never go back, so a clock that
//    is set moves nothing; whatever they say stays between the cursor and now.
//
// Pure: no I/O, no threads; time comes in. Not thread-safe. All times are ns of one steady clock of the caller's; those
// that something happened at are moved between the last phase's begin and now.
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
  // While no process of the job has been seen yet, nothing proves that one would be: then a launch is one for so long,
  // and after that it never was. With steps switched off none is longer.
  static constexpr int64_t kUnprovenLaunchNs = 60'000'000'000;
  // With steps switched on, a process is seen within this time, unless nothing in it makes marks.
  static constexpr int64_t kMarksComeNs = 180'000'000'000;
  // The same for a job that has ended.
  static constexpr int64_t kMarksCameNs = 10'000'000'000;
  // Longer than this nobody can say what a process does that has made no mark, or no step.
  static constexpr int64_t kMostLaunchNs = 1800'000'000'000;
  static constexpr int64_t kMostLinkUpNs = 7200'000'000'000;
  // The same while the job has never marked a step: nothing proves that it would.
  static constexpr int64_t kUnprovenLinkUpNs = 600'000'000'000;
  // An open step may be so late before it is unknown what is going on: besides StepBook::kOdd usual ones.
  static constexpr int64_t kLateNs = 5'000'000'000;
  // So long after the first start ranks come of which nobody has said how many they are.
  static constexpr int64_t kGatherNs = 600'000'000'000;
  static constexpr int64_t kMostStep = int64_t{1} << 40;  // many of them have a sum
  static constexpr size_t kMaxSpans = 256;
  static constexpr size_t kMaxStops = 16;  // a slot, that its cursor has not passed
  static constexpr size_t kMaxSeen = 16;   // the same
  // Between two reports of one suspension; and so much a span may lie beside the process's own time.
  static constexpr int64_t kStopSlackNs = 500'000'000;
  static constexpr size_t kMaxTextBytes = 300;
  static constexpr size_t kMaxNames = 64;  // ranks, or nodes, of an incident
  // The outcome of an attempt that did not come to its end.
  static constexpr char kLostLauncher[] = "its launcher was lost";

  struct Options {
    int64_t now_ns = 0;
    int64_t unix_offset_ns = 0;  // Unix time less this clock's
    int slots = 0;               // 0: not known; then ranks that are seen count
    bool launched = false;  // a launcher has started whoever keeps this: the job begins now, not with its first word
  };
  struct Exit {
    int rank = -1, node = -1;
    bool failed = false;
    std::string text = {};
  };

  explicit Ledger(const Options& options);

  // The job's size from now on; ranks beyond it leave.
  void SetSlots(int slots, int64_t at_ns, int64_t now_ns);
  // A launcher waits for others, or does not any more.
  void Waits(bool waits, int64_t at_ns, int64_t now_ns);
  // The ranks of a round were started.
  void Started(int round, int64_t at_ns, int64_t now_ns);
  void Exited(const Exit& exit, int64_t at_ns, int64_t now_ns);
  // The ranks are ended, to be started again.
  void Restarting(IncidentKind kind, const std::string& text, int64_t at_ns, int64_t now_ns);
  // `next`: what another attempt after it will have been an incident of.
  void Ended(int code, const std::string& text, int64_t at_ns, int64_t now_ns,
             IncidentKind next = IncidentKind::kRequeue);
  // No progress since `since_ns`, or since the last step where that is later.
  void Hang(int64_t since_ns, const std::vector<int>& ranks, const std::string& text, int64_t now_ns);
  void Resumed(int64_t at_ns, int64_t now_ns);
  // The rank's process did not run. Spans of a rank come in their order; one in which a step of it ends never was.
  void Suspended(int rank, int64_t begin_ns, int64_t end_ns, int64_t now_ns);
  // Steps are to be marked from now on, or not.
  void SetStepsOn(bool on, int64_t now_ns);
  // The rank's process is seen for the first time: it has made its first mark. Or it is not there any more.
  void Seen(int rank, bool here, int64_t at_ns, int64_t now_ns);
  void Step(int rank, const StepFold& fold, int64_t now_ns);
  // The rank has saved a checkpoint in a step that has not ended.
  void Saved(int rank, const SavedInStep& saved, int64_t now_ns);
  // Verdicts of the diagnosis, open and cleared ones. `incident` is filled in here; ranks, nodes and text are the verdict's.
  struct Straggler {
    StragglerCost cost;
    std::vector<int> ranks, nodes;
    std::string text;
    int64_t since_ns = 0;  // Unix; 0: unknown
    friend bool operator==(const Straggler&, const Straggler&) = default;
  };
  void SetStragglers(const std::vector<Straggler>& stragglers, int64_t now_ns);
  // Those of steps that are still to come: of files, where the end is known first.
  void SetKnownStragglers(const std::vector<Straggler>& stragglers, int64_t now_ns);

  // Time goes on.
  void Look(int64_t now_ns) { SetNow(now_ns); }
  // Closes what is due. To be called now and then.
  void Advance(int64_t now_ns);
  // As of the last call of anything.
  Report report() const;

  // What a later ledger goes on from, before anything else is told it; the report's categories are closed with it. `dead_ns`: from the report's end to
  // now. What happened in between, nobody knows, unless steps tell it.
  struct Kept {
    Report report;
    int64_t done_until = -1;  // steps that have been done
    int64_t saved_step = -1;  // the last in which a checkpoint was saved
    int64_t base = 0;         // of the numbers that processes give their steps
    int round = -1;
    bool ended = false;
    IncidentKind next = IncidentKind::kRequeue;  // as Ended() was told
    int64_t dead_ns = 0;
  };
  void Resume(const Kept& kept, int64_t now_ns);
  // The same where it is known only after this ledger has begun: what was before comes before it. What happened in between
  // is `gap`: kQueue, then this is another attempt, or kUnknown, then the last one goes on. Once, and not after Resume().
  void Precede(const Kept& kept, Category gap, int64_t now_ns);
  // What most ranks have done, and the last step, of those that most have reached, in which a rank has saved. One rank
  // that names a step far ahead moves neither.
  int64_t done_until() const { return Reached().done_until; }
  int64_t saved_step() const { return Reached().saved_step; }
  int64_t base() const { return base_; }
  int round() const { return round_; }
  bool ended() const { return phase().kind == Phase::Kind::kEnded; }
  // No process of the job has been seen, though steps have been switched on for so long that one of them should have been.
  bool lacks_marks() const;
  IncidentKind next() const { return next_; }
  // Goes up with each.
  uint64_t incidents() const { return next_incident_; }

 private:
  static constexpr int64_t kNever = INT64_MAX;

  struct Phase {
    enum class Kind : uint8_t { kAlone, kResumed, kWaiting, kRunning, kRestart, kQueue, kEnded };
    Kind kind = Kind::kAlone;
    int64_t begin_ns = 0;
    uint64_t incident = 0;
    int64_t base = -1;                  // of the numbers of steps that processes begin in it; -1: not known yet
    int64_t first_step_ns = INT64_MAX;  // when the first step of this phase began
    int64_t saved_in = -1;              // the last step, without an end yet, in which a checkpoint was saved
    int64_t saved_ns = 0;               // that took so long
    bool failed = false;                // of kEnded: not with 0
    bool guessed = false;               // of kRunning: nobody waits any more, and that is all that is known

    bool runs() const { return kind == Kind::kAlone || kind == Kind::kResumed || kind == Kind::kRunning; }
  };
  struct Stop {
    int64_t begin_ns = 0, end_ns = 0;
  };
  struct Slot {
    bool exists = false;
    bool steps = false;  // the process that it has, has ended a step; the cursor is at the end of its last
    uint32_t process_id = 0;
    int64_t born_ns = 0;
    int64_t cursor_ns = 0;
    int64_t offset_ns = 0;         // of this clock to its process's stamps
    int64_t base = 0;              // of its process's numbers of steps
    int64_t last_step = -1;        // of the process
    int64_t done_until = -1;       // by former processes
    int64_t saved_step = -1;       // the last in which it has saved
    std::vector<int64_t> seen_ns;  // its processes were seen first, of each phase; as stops
    std::vector<Stop> stops;       // its process was suspended: oldest first, none overlap
  };
  struct Span {
    int64_t begin_ns = 0, end_ns = 0;
    Category category = Category::kHang;
    uint64_t incident = 0;
  };
  struct Steps {
    int64_t done_until = -1, saved_step = -1;
  };
  // What is known about the end of a piece: it goes on, or its process has gone.
  enum class Tail : uint8_t { kOpen, kOver };

  static constexpr int64_t kCountEveryNs = 100'000'000;

  const Phase& phase() const { return phases_.back(); }
  // By the slots that exist now, and what was settled before. Looks at all slots.
  Steps Reached() const;
  void SettleSteps();
  int64_t Clamp(int64_t at_ns) const;
  void SetNow(int64_t now_ns);
  Phase& Begin(Phase::Kind kind, int64_t at_ns, uint64_t incident);
  // A launcher has spoken.
  void Hear(int64_t at_ns);
  // Of the same job, after its end.
  void BeginAttempt(int64_t at_ns);
  // The text of the incident that another attempt is, after the last of these.
  static std::string StartedAgain(const std::vector<Attempt>& attempts);
  // Nobody has come yet.
  bool untouched() const;
  uint64_t AddIncident(IncidentKind kind, int64_t at_ns, std::vector<int> ranks, std::vector<int> nodes,
                       std::string text);
  // The number of this ledger's own begin, which turns out to be an incident where it follows another attempt.
  static constexpr uint64_t kBegin = 1;
  Incident* FindIncident(uint64_t number);
  // `base`: of the numbers of steps in verdicts that are new; -1: of whichever process does such a step.
  void HearStragglers(const std::vector<Straggler>& stragglers, int64_t base, int64_t now_ns);
  // The oldest become sums of their kind where there are too many.
  void TrimIncidents();
  Slot* Find(int rank);
  void Retire(Slot& slot, int64_t at_ns);
  // Hands the slot's time until `until_ns` over.
  void Close(Slot& slot, int64_t until_ns);
  void Attribute(const Slot& slot, int64_t until_ns, Tail tail, Tally& into) const;
  void AttributeRunning(const Slot& slot, const Phase& phase, int64_t begin_ns, int64_t end_ns, const Phase* next,
                        Tail tail, Tally& into) const;
  void AttributeTail(const Slot& slot, const Phase& phase, int64_t begin_ns, int64_t end_ns, bool over, bool failed,
                     uint64_t incident, Tally& into) const;
  // Without what suspensions and spans take; `unless_off`: what of the rest was with steps off is unmarked.
  void Cut(const Slot& slot, int64_t begin_ns, int64_t end_ns, Category category, uint64_t incident, bool unless_off,
           Tally& into) const;
  // Of a step: what suspensions and spans take goes to `into`; the rest is returned.
  int64_t CutStep(const Slot& slot, int64_t begin_ns, int64_t end_ns, Tally& into) const;
  // The same without suspensions.
  void CutSpans(int64_t begin_ns, int64_t end_ns, Category category, uint64_t incident, bool unless_off,
                Tally& into) const;
  int64_t CutStepSpans(int64_t begin_ns, int64_t end_ns, Tally& into) const;
  // Hands suspensions of the time over, `rest` gets what is between them.
  template <typename Rest>
  static void CutStops(const Slot& slot, int64_t begin_ns, int64_t end_ns, Tally& into, const Rest& rest);
  // The slot's cursor goes there.
  static void MoveCursor(Slot& slot, int64_t to_ns);
  // When its process was first seen between the two; -1: it was not.
  static int64_t SeenIn(const Slot& slot, int64_t begin_ns, int64_t end_ns);
  // Of the numbers of a process whose first fold this is.
  int64_t BaseOf(const StepFold& fold, bool follows);
  // Of this clock to the stamps of the fold's process.
  int64_t OffsetOf(const Slot& slot, const StepFold& fold) const;
  void EndSpan(int64_t at_ns);
  void SettlePhases();
  void CollectClosed();

  const int64_t unix_offset_ns_;
  int64_t now_ns_;
  int64_t since_ns_;
  int64_t begun_ns_;  // this ledger; before it is what it was told of by Resume() or Precede()
  const bool launched_;
  bool sized_ = false;  // the job's size is given
  bool resumed_ = false;
  bool preceded_ = false;
  bool heard_ = false;                 // of a launcher
  int64_t first_seen_ns_ = INT64_MAX;  // when the first process was
  int round_ = -1;
  IncidentKind next_ = IncidentKind::kRequeue;  // of an attempt after the last end
  std::deque<Phase> phases_;                    // the oldest is one that slots reach into
  std::vector<Slot> slots_;                     // by rank
  int live_ = 0;                                // that exist
  double retired_s_ = 0;                        // of slots that are gone, and of before Resume()
  std::deque<Span> spans_;                      // by begin
  std::deque<Span> off_;                        // steps were switched off
  bool hangs_ = false;                          // the newest span is an open hang
  StepBook book_;
  int64_t done_until_ = -1;  // this and the next: in the job's count of steps, as in slots; settled at begins of phases
  int64_t saved_step_ = -1;
  bool has_steps_ = false;          // some rank has marked one
  int64_t counted_ns_ = INT64_MIN;  // saved_now_ was
  int64_t saved_now_ = -1;
  int64_t base_ = 0;                // of the process that was begun last
  Tally closed_;                    // its incidents are handed over to incidents_
  std::deque<Incident> incidents_;  // by number, without a hole
  std::deque<Incident> former_;     // of Precede(): numbered as they were
  uint64_t shift_ = 0;              // the last number of those
  Seconds begin_{};                 // what kBegin has cost, closed
  bool begin_shown_ = false;        // the last of former_ is that
  OlderIncidents older_;
  Measured measured_;  // checkpoints: of before Resume() or Precede(); closed_ has the others
  uint64_t next_incident_ = kBegin + 1;
  struct VerdictSeen {
    uint64_t incident = 0;
    int64_t base = 0;  // of the numbers of steps when it was first heard of
  };
  std::map<uint64_t, VerdictSeen> verdicts_;
  std::vector<Attempt> attempts_;
  size_t former_attempts_ = 0;  // of Precede()
};

}  // namespace taskd::ledger
