// Does the job still get on? From the step and the mark counters of its ranks, as proxies report them each second.
// Pure: no clock, no threads; time comes in.
//
// A job hangs when no rank has ended a step, nor made any mark, for `limit` = max(factor x the median of its own last
// steps, floor), or has made marks but ended no step for slow_factor x limit: an evaluation, a slow file system. Where
// the last marks were of a checkpoint or, alone, of the data loader, `limit` itself is slow_factor times as long. A
// slow phase that went on again by itself is remembered: the next one may take 1.5 times as long, up to the grace of
// the first steps.
//
// A rank that works is busy, not hung. Proxies look at the processes of ranks that make no marks: whether they use the CPU,
// read or write. A rank that reads or writes, or uses the CPU while most others do not, is what the others wait for: no
// verdict before the grace of the first steps is over. CPU time of a rank that is in a communication does not count.
// Where most ranks use the CPU they may as well spin while they wait for their devices: that counts as a mark does. None
// of these is ended as long as it goes on (WhyNotEnd), nor after a rank has ended well or all have left their step loops.
//
// Nobody is killed for what one rank says: how far the job is, how long its steps take, that the first ones are over and
// that it was started anew, most ranks decide (common/progress.h). A rank far ahead of the others does not count at all.
// What one rank alone can do is to go on: then the job does not hang. Time in which most of their processes were stopped
// (SIGSTOP, a suspended job) is no time in which they did nothing.
//
// No verdict while there is nothing to judge by: steps are switched off, no rank lives, or no rank has ever made a
// mark. Before two steps have ended, at the start and after each restart, only the grace of the first steps
// (compilation) ends in one.
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "manager/switch/core.h"

namespace taskd::manager {

struct HangOptions {
  double factor = 10;  // below 0: no verdicts
  double slow_factor = 3;
  std::chrono::duration<double> floor{30};
  std::chrono::duration<double> first_steps_grace{1800};
};

struct HangVerdict {
  uint64_t number = 0;  // of the hang, from 1
  bool hung = false;    // false: it is over
  double idle_s = 0;    // since the last step ended; of one that is over: how long it was
  double limit_s = 0;
  int64_t lowest_step = -1;
  int64_t highest_step = -1;
  std::vector<int> behind;   // ranks at the lowest step, where steps differ; the first kMaxBehind
  std::vector<int> ahead;    // ranks whose steps are far ahead of the others': not counted
  std::vector<int> origins;  // whom the others wait for: by the open ranges, else those behind; the first kMaxBehind
  std::string waiting;       // the others, as ranges, the first kMaxBehind
  std::string operation;     // in which they wait; empty: unknown
  uint64_t since_ns = 0;     // Unix, since when the first origin is in its phase; 0: unknown
  int ranks = 0;             // that live
  std::string cause;         // who is where, by the open ranges; empty: they do not tell
  std::string text;          // one line: the cause, and what the steps show

  static constexpr size_t kMaxBehind = 64;
};

class HangWatch {
 public:
  // The settings hold from the next Update on.
  void SetOptions(const HangOptions& options) { options_ = options; }

  // `ranks`: JobPulse::ranks, by rank. `steps_on`: they are to mark their steps. Returns a
  // verdict when it changes: once when the job hangs, once when it goes on or has ended.
  std::optional<HangVerdict> Update(const std::vector<RankPulse>& ranks, bool steps_on, SteadyTime now);

  // The ranks have ended; where they are started again, their first steps may take long again. An open hang is over.
  std::optional<HangVerdict> Restarted(SteadyTime now);

  // A rank has ended with code 0: the job is about to end.
  void EndedWell() { some_ended_well_ = true; }

  // Why the ranks of the open hang must not be ended now; empty: they may.
  std::string WhyNotEnd(SteadyTime now) const;

  // The open hang.
  const std::optional<HangVerdict>& open() const { return open_; }

 private:
  using Seconds = std::chrono::duration<double>;

  // What ranks have done since the last Update.
  struct Changes {
    size_t renewed = 0;          // ranks that are other processes
    bool learned = false;        // most ranks are new to us and have ended steps before
    bool stepped = false;        // some rank has ended a step
    bool marked = false;         // some rank has made a mark, of a kind that `moved` names where it is written
    size_t users_of_cpu = 0;     // ranks that have used it outside of a communication
    std::vector<int> workers;    // those, and ranks that have read or written
    bool io = false;             // some have read or written
    int64_t steps_ended = 0;     // by most ranks
    std::vector<int64_t> begun;  // steps, by each rank; before most have ended one
    double step_ms = 0;          // the median of their newest steps
    std::array<bool, kNumMarkCounts> moved{};

    void Add(const RankPulse& before, const RankPulse& now);
  };

  void BeginAnew(SteadyTime now);
  // What of the time since the last Update most ranks were stopped; of ranks that have a place.
  Seconds StoppedFor(const std::vector<RankPulse>& ranks) const;
  void LeaveOut(Seconds stopped, SteadyTime now);
  // All ranks have a place in known_ from now on; a new one's is as it is now.
  void MakePlaces(const std::vector<RankPulse>& ranks);
  // `are_new`: no rank was known before.
  Changes TakePulses(const std::vector<RankPulse>& ranks, bool are_new, SteadyTime now);
  // Of the ranks that mark steps, or may still be in their first one.
  void CountSteps(const std::vector<RankPulse>& ranks, SteadyTime now, Changes& changes);
  // Most ranks are other processes, or some are and the others were not patient for that yet.
  bool IsRestart(const Changes& changes, size_t ranks);
  // `idle`: since the step before.
  void LearnSteps(const Changes& changes, Seconds idle);
  void NoteStep(const Changes& changes, SteadyTime now);
  void NoteMarks(const Changes& changes, SteadyTime now);
  void NoteWork(Changes changes, size_t ranks, SteadyTime now);
  SteadyTime alive_at() const { return std::max({mark_at_, work_at_, spin_at_}); }
  std::optional<HangVerdict> Judge(const std::vector<RankPulse>& ranks, SteadyTime now);
  std::optional<HangVerdict> Resume(SteadyTime now, const std::string& why);
  Seconds UsualLimit() const;              // by the length of its steps
  Seconds Limit() const;                   // without any mark
  Seconds SlowLimit(Seconds limit) const;  // with marks, but without the end of a step
  HangVerdict Describe(const std::vector<RankPulse>& ranks, SteadyTime now, Seconds limit) const;

  HangOptions options_;
  std::vector<RankPulse> known_;  // by rank; one that has gone stays: it may come back as another process
  std::deque<double> step_s_;     // the newest, oldest first
  int ended_steps_ = 0;           // since the (re)start; counts to 2
  int64_t reached_ = -1;          // the step that most ranks have
  bool patient_once_ = false;     // a few ranks were started anew since most have ended a step
  bool marks_seen_ = false;       // some rank has ever made one
  bool watching_ = false;         // there was something to judge by at the last Update
  bool patient_ = false;          // the last marks were of a checkpoint or of the data loader alone
  bool some_ended_well_ = false;  // of these ranks
  bool all_left_loop_ = false;
  std::vector<int> workers_;  // ranks, as of work_at_ or spin_at_
  double longest_slow_s_ = 0;
  SteadyTime began_at_;
  SteadyTime step_at_;  // the last step ended
  SteadyTime mark_at_;  // the last mark was seen
  SteadyTime work_at_;  // a rank was at work, for which the others wait
  SteadyTime spin_at_;  // most used the CPU
  uint64_t hangs_ = 0;
  std::optional<HangVerdict> open_;
  SteadyTime hung_since_;
};

}  // namespace taskd::manager
