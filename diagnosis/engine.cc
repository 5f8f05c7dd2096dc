#include "diagnosis/engine.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <deque>
#include <iterator>
#include <map>
#include <set>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/ranges_text.h"
#include "diagnosis/bar.h"
#include "diagnosis/book.h"
#include "diagnosis/clocks.h"
#include "diagnosis/coverage.h"
#include "diagnosis/fineness.h"
#include "diagnosis/gathering.h"
#include "diagnosis/judge.h"
#include "diagnosis/layout.h"
#include "diagnosis/lives.h"
#include "diagnosis/marked_kinds.h"
#include "diagnosis/own_time.h"
#include "diagnosis/parameters.h"
#include "diagnosis/periods.h"
#include "diagnosis/text.h"
#include "diagnosis/transfers.h"
#include "diagnosis/why.h"
#include "diagnosis/work_notes.h"

namespace taskd::diagnosis {
namespace {

constexpr int kLastSteps = 2;    // at a job's end, which ranks that end first may miss
constexpr int kSilentNote = 10;  // steps until it is worth a note
constexpr int kClockEvery = 4;   // steps between looks at the clocks
constexpr int kSolveEvery = 16;
constexpr int kKeepUnjudged = 1024;       // steps
constexpr int64_t kOldOnset = 20;         // steps after marks are there again: what begins in them was there before
constexpr int kOddNote = 100;             // steps
constexpr int kAlone = kSpikeWindow / 2;  // steps: what is farther apart is not seen to recur
constexpr size_t kNearest = 3;
constexpr size_t kAhead = 4;         // folds, whose memory is on its way while others are looked at
constexpr unsigned kFineParts = 8;   // of the steps so far: so many more, and what can be told has changed,
constexpr unsigned kFineEvery = 16;  // and as often at least

using Folds = Gathering::Folds;

// They come in any order, and are large: places are sorted, and each fold is moved once.
void SortByRank(Folds& folds) {
  const auto by_rank = [](const auto& a, const auto& b) { return a.first < b.first; };
  if (std::is_sorted(folds.begin(), folds.end(), by_rank)) return;
  std::vector<std::pair<int, uint32_t>> places;
  places.reserve(folds.size());
  for (const auto& [rank, fold] : folds) places.emplace_back(rank, static_cast<uint32_t>(places.size()));
  std::sort(places.begin(), places.end());
  for (uint32_t first = 0; first < places.size(); ++first) {
    // Along the cycle of those that are in each other's place.
    if (places[first].second == first) continue;
    Folds::value_type moved = std::move(folds[first]);
    uint32_t to = first;
    while (places[to].second != first) {
      const uint32_t from = std::exchange(places[to].second, to);
      folds[to] = std::move(folds[from]);
      to = from;
    }
    places[to].second = to;
    folds[to] = std::move(moved);
  }
}

}  // namespace

class Engine::Impl {
 public:
  explicit Impl(const Options& options) : options_(options), gathering_(options.step_deadline_ns) {}

  void SetPlace(int rank, const RankPlace& place) {
    if (rank < 0 || rank >= kMaxRanks) return;
    gathering_.Hear(rank);
    if (layout_.known(rank) && layout_.rank(rank).place.node != place.node && layout_.rank(rank).place.node >= 0) {
      // The rank is another machine's now: nothing that was learned of it holds.
      own_.ResetRank(rank);
      moved_.insert(rank);
    }
    layout_.SetPlace(rank, place);
  }

  bool SetGroup(int rank, uint32_t index, const GroupInfo& group) {
    if (rank < 0 || rank >= kMaxRanks) return false;
    gathering_.Hear(rank);
    return layout_.SetGroup(rank, index, group);
  }

  void DropGroups(int rank, uint32_t first) { layout_.DropGroups(rank, first); }

  size_t group_bytes() const { return layout_.groups_cost().bytes; }
  size_t waiting_bytes() const { return gathering_.bytes(); }

  void SetMarksOn(int rank, KindMask kinds) {
    if (rank < 0 || rank >= kMaxRanks) return;
    marked_.SetOn(rank, kinds);
    coverage_.SetCommunicationOn(rank, (kinds & MaskOf(SwitchKind::kCommunication)) != 0);
  }

  void SetWorldSize(int ranks) { world_size_ = ranks; }

  void RemoveRank(int rank) { gathering_.Remove(rank); }

  bool Add(int rank, StepFold fold, uint64_t now_ns) {
    if (rank < 0 || rank >= kMaxRanks || fold.step < 0 || fold.step > StepFold::kMaxStep) return false;
    now_ns_ = now_ns;
    if (begun_ns_ == 0) begun_ns_ = now_ns;
    const StepFold* waits = gathering_.Add(rank, std::move(fold), now_ns);
    const Gathering::Position at = gathering_.at(rank);
    if (gathering_.IsFarAhead(at)) odd_ = {rank, at.step, last_step_, judged_steps_};
    if (waits == nullptr) return false;
    layout_.Learn(rank, *waits);
    return true;
  }

  bool Advance(uint64_t now_ns) {
    now_ns_ = now_ns;
    bool changed = false;
    while (gathering_.IsDue(now_ns)) changed = JudgeNextStep() || changed;
    return changed;
  }

  bool Finish() {
    bool changed = false;
    while (!gathering_.empty()) changed = JudgeNextStep() || changed;
    is_over_ = true;
    if (judged_steps_ == 0) return changed;
    const int64_t place = lives_.PlaceOf(last_step_);
    changed = Accuse(last_step_, place, planned_change_) || changed;
    LookAtRanks();
    return changed;
  }

  bool has_few_steps() const { return judged_steps_ < parameters.enough_steps; }

  Report MakeReport() const {
    Report report;
    report.ranks = layout_.known_ranks();
    for (int rank = 0; rank < gathering_.size(); ++rank) report.ranks -= IsOfFormerLife(rank) ? 1 : 0;
    report.first_step = FirstStep();
    report.last_step = last_step_;
    report.verdicts = book_.verdicts();
    report.step_ms = periods_.recent_ns() / 1e6;
    if (judged_steps_ > 0 && !is_over_ && now_ns_ > judged_ns_)
      report.idle_s = static_cast<double>(now_ns_ - judged_ns_) / 1e9;
    for (Verdict& verdict : report.verdicts) {
      verdict.text = WriteSentence(verdict, layout_);
      if (verdict.since_ns == 0) verdict.since_ns = periods_.EndNs(lives_.PlaceOf(verdict.since_step));
    }
    const Coverage::Result& coverage = this->coverage();
    const bool seen = coverage.finding == Coverage::Finding::kSeen;
    report.coverage = coverage.ranks;
    const bool fine = SayFineness(seen, report);
    const std::vector<int> ahead = gathering_.FarAhead();
    const bool behind = IsBehind();
    const std::vector<int> silent = SilentRanks();
    for (const int rank : nearest_) {
      if (const absl::StatusOr<RankTrace> trace = Why(rank); trace.ok()) report.nearest.push_back(trace->text);
    }
    std::vector<Note> notes = MakeNotes(coverage.note, ahead, silent, behind);
    report.notes.insert(report.notes.begin(), std::make_move_iterator(notes.begin()),
                        std::make_move_iterator(notes.end()));
    if (book_.any_open()) {
      report.state = JobState::kSlow;
    } else if (judged_steps_ >= parameters.enough_steps && CanJudge() && seen && fine && roster().unheard.empty() &&
               !AnyFellSilent(silent) && !IsIdle() && ahead.empty() && !behind) {
      report.state = JobState::kOk;
    }
    return report;
  }

  void Restore(const std::vector<Verdict>& verdicts) {
    book_.Restore(verdicts);
    for (const Verdict& verdict : verdicts) {
      if (verdict.open || verdict.unjudged)
        restored_.push_back({.key = KeyOf(verdict), .verdict = verdict, .unjudged = verdict.unjudged});
    }
  }

  absl::StatusOr<RankTrace> Why(int rank) const {
    if (!IsOfJob(rank)) return absl::NotFoundError(DescribeUnknown(rank));
    RankTrace trace;
    trace.rank = rank;
    std::string missing;
    if (JudgedAt(rank) < 0 || rank >= own_.size() || layout_.classes().empty()) {
      missing = "no step of it could be judged yet: no marks have come, or only of one step";
    } else if (HasLeft(rank)) {
      missing = absl::StrCat("no marks since step ", gathering_.at(rank).step);
    } else {
      const auto at = static_cast<size_t>(rank);
      const double least_rise = at < fineness_.own_time_of_ranks.size() ? fineness_.own_time_of_ranks[at] : 0;
      trace.detectors = TraceDetectors(
          MakeInput(lives_.PlaceOf(last_step_), false), decisions_,
          [this](const std::string& key) { return book_.IsOpen(key); }, least_rise, rank);
      for (DetectorTrace& detector : trace.detectors) {
        if (detector.since_step >= 0) detector.since_step = lives_.StepAt(detector.since_step);
      }
    }
    trace.text = WriteTraceText(trace, missing, VerdictOn(rank));
    return trace;
  }

  int64_t ClockOffsetNs(int node) const { return clocks_.OffsetNs(node); }

  std::vector<int> Peers(int rank) const {
    if (!layout_.known(rank) || layout_.classes().empty()) return {};
    return layout_.classes()[static_cast<size_t>(layout_.rank(rank).peer_class)];
  }

 private:
  // A step that was far ahead of the others'.
  struct Odd {
    int rank = -1;
    int64_t step = 0;
    int64_t job_step = 0;  // when it came
    int judged_steps = 0;  // likewise
  };
  struct Restored {
    std::string key;
    Verdict verdict;
    int steps = 0;           // in which it could have been found again
    bool unjudged = false;   // it is not open until then
    int64_t back_step = -1;  // the first one of these
  };

  // How small a slowdown would have been named, and a note where that is not small enough for an "ok". False: it is not.
  bool SayFineness(bool seen, Report& report) const {
    if (has_few_steps() || !seen) return false;
    report.own_time = fineness_.own_time;
    report.dataloader = fineness_.dataloader;
    report.transfer = fineness_.transfer;
    for (RankCoverage& rank : report.coverage) {
      const auto at = static_cast<size_t>(rank.rank);
      if (at < fineness_.own_time_of_ranks.size()) rank.resolution = fineness_.own_time_of_ranks[at];
    }
    if (!fineness_.own_time) return false;
    const bool is_coarse = fineness_.own_time->ratio > parameters.coarse;
    const bool has_young = young_ && !book_.any_open();
    // A young rise keeps the state from `ok` only at the end: while the job runs, it becomes a verdict if it lasts.
    if (!is_coarse && !(has_young && is_over_)) return true;
    std::string text =
        fineness_.own_time->ratio < 1
            ? absl::StrFormat(
                  "steps differ by %.0f %% by themselves, so less than %.0f %% cannot be told from noise yet",
                  100 * fineness_.own_noise, 100 * fineness_.own_time->ratio)
            : "steps differ so much by themselves that a rank which takes twice as long cannot be told from noise yet";
    if (fineness_.more_steps > 0) {
      absl::StrAppend(&text, "; about ", fineness_.more_steps, " more steps are needed for 10 %");
    } else if (is_coarse && judged_steps_ < parameters.enough_for_noise) {
      text += "; with more steps it is known better";
    } else if (is_coarse) {
      text += "; 10 % cannot be told at all as long as they differ by so much";
    }
    if (has_young) {
      absl::StrAppendFormat(&text, "; %s; of so few ranks that is a verdict once it has lasted %.0f s",
                            WriteSentence(*young_, layout_),
                            (is_over_ ? parameters.over_ns : parameters.small_ns) / 1e9);
    }
    report.notes.push_back({NoteKind::kShort, std::move(text), FirstStep()});
    return false;
  }

  bool JudgeNextStep() {
    Gathering::Step step = gathering_.Take();
    ++steps_since_judged_;
    if (step.restarted || step.next_life) {
      planned_steps_ = 0;
      shift_noise_.Restart();
      shift_note_ = {};
      noted_shift_ = 0;
      life_begins_ = true;
    }
    if (step.restarted) {
      // Whoever does not take part in the new life is not part of the job any more.
      recent_.clear();
      coverage_.Forget();
    }
    const bool changed = Judge(step.folds, step.at.step);
    gathering_.GiveBack(std::move(step.folds));
    return changed;
  }

  bool Judge(Folds& folds, int64_t step) {
    SortByRank(folds);
    if (layout_.dirty()) RebuildLayout();
    const size_t reported = folds.size();
    if (reported * parameters.voting_part < gathering_.voices()) return false;
    std::erase_if(folds, [](const auto& entry) { return entry.second.period_ns() == 0; });
    if (folds.size() * 2 < reported || folds.empty()) return false;
    const double period_ns = PeriodOf(folds);
    const double own_ns = OwnOf(folds);
    const bool is_stop = IsStop(period_ns);
    const bool pause = IsPause(folds, own_ns) || is_stop;
    recent_.push_back({period_ns, own_ns});
    if (recent_.size() > parameters.pause_steps) recent_.pop_front();
    const bool begins = std::exchange(life_begins_, false);
    const int64_t place = lives_.Add(step, begins);
    if (pause) {
      // It may be one because somebody saves for longer than the others.
      own_.ObserveCheckpoints(folds, place, periods_.recent_ns());
      return false;
    }
    TakeFolds(folds, place);
    RememberStep(folds, step, place, period_ns);
    Observe(folds, place);
    planned_change_ = FollowPlannedChange(step, place);
    const bool changed = Accuse(step, place, planned_change_);
    const auto steps = static_cast<unsigned>(judged_steps_);
    if (begins || steps % std::clamp(std::bit_floor(steps) / kFineParts, 1U, kFineEvery) == 0) LookAtRanks();
    return changed || judged_steps_ == parameters.enough_steps;
  }

  // Numbers of steps of the present attempt: a job that was started again from a checkpoint counts anew from there.
  int64_t FirstStep() const { return judged_steps_ > 0 ? lives_.StepAt(lives_.first()) : -1; }
  int64_t StepAt(int64_t place) const { return lives_.StepAt(std::max(place, lives_.first())); }

  // Updates the results that need a pass over all ranks and change little from step to step.
  void LookAtRanks() {
    fineness_ = FindFineness(MakeInput(lives_.PlaceOf(last_step_), false));
    FindNearest();
  }

  // By how much of their thresholds self time and loading have.
  void FindNearest() {
    std::vector<std::pair<double, int>> risen;
    for (int rank = 0; rank < own_.size(); ++rank) {
      if (!IsPresent(rank)) continue;
      double most = 0;
      for (const Stream* stream : std::array<const Stream*, 2>{&own_.rank(rank).slow(), &own_.rank(rank).data}) {
        const Stream::Trace trace = stream->trace(own_.thresholds());
        if (trace.threshold > 0) most = std::max(most, trace.statistic / trace.threshold);
      }
      if (most > 0) risen.emplace_back(-most, rank);
    }
    std::sort(risen.begin(), risen.end());
    nearest_.clear();
    for (const auto& [negative, rank] : risen) {
      if (nearest_.size() < kNearest && VerdictOn(rank).empty()) nearest_.push_back(rank);
    }
  }

  void RebuildLayout() {
    layout_.Rebuild();
    own_.Regroup(layout_);
    transfers_.Regroup(layout_);
    coverage_.Regroup(layout_);
    microbatches_.resize(static_cast<size_t>(layout_.size()));
    if (!moved_.empty()) {
      transfers_.Forget();
      clocks_.Forget();
    }
    left_.merge(moved_);
    moved_.clear();
  }

  static double PeriodOf(const Folds& folds) {
    std::vector<double> periods;
    periods.reserve(folds.size());
    for (const auto& [rank, fold] : folds) periods.push_back(static_cast<double>(fold.period_ns()));
    return LowerMedian(periods);
  }

  // Outside of operations and checkpoints.
  static double OwnOf(const Folds& folds) {
    std::vector<double> own;
    own.reserve(folds.size());
    for (const auto& [rank, fold] : folds) {
      own.push_back(static_cast<double>(fold.period_ns()) - static_cast<double>(fold.checkpoint_own_ns) -
                    static_cast<double>(fold.covered_ns));
    }
    return LowerMedian(own);
  }

  // Evaluation, a checkpoint of everybody, a stop: not a step to judge by. One that all wait for is one.
  bool IsPause(const Folds& folds, double own_ns) const {
    if (recent_.size() < parameters.enough_before) return false;
    std::vector<double> periods, owns;
    for (const auto& [period, own] : recent_) periods.push_back(period), owns.push_back(own);
    if (own_ns <= parameters.pause_own_factor * LowerMedian(owns)) return false;
    std::vector<double> without_checkpoint;
    for (const auto& [rank, fold] : folds) {
      without_checkpoint.push_back(static_cast<double>(fold.period_ns()) - static_cast<double>(fold.checkpoint_own_ns));
    }
    return LowerMedian(without_checkpoint) > parameters.pause_factor * LowerMedian(periods);
  }

  // One rank stopped once while the others waited. That single step would dominate the means of the steps around it. A
  // rank that stops repeatedly is judged.
  bool IsStop(double period_ns) {
    const bool is_long = judged_steps_ >= static_cast<int>(parameters.enough_before) &&
                         period_ns > parameters.stop_factor * periods_.recent_ns();
    const int steps = std::exchange(steps_since_long_, is_long ? 0 : steps_since_long_ + 1);
    return is_long && steps >= kAlone;
  }

  // Everybody looks at the operations of one fold before those of the next: they are the most of it, and all folds
  // together are more than any cache holds.
  void TakeFolds(const Folds& folds, int64_t place) {
    coverage_.BeginStep();
    marked_.Take(folds);
    own_.BeginStep(layout_, folds, marked_.HasEnded(SwitchKind::kCommunication));
    for (size_t i = 0; i < folds.size(); ++i) {
      if (i + kAhead < folds.size()) __builtin_prefetch(folds[i + kAhead].second.ops.data());
      const auto& [rank, fold] = folds[i];
      coverage_.Take(layout_, rank, fold);
      own_.Take(layout_, rank, fold);
      transfers_.Take(layout_, rank, fold, place);
      for (const OpFold& op : fold.ops) {
        if (!IsPointToPoint(op.op)) continue;
        int& most = microbatches_[static_cast<size_t>(rank)];
        most = std::max(most, static_cast<int>(std::min<uint32_t>(op.count, 1 << 20)));
      }
    }
  }

  void RememberStep(const Folds& folds, int64_t step, int64_t place, double period_ns) {
    uint64_t end_ns = 0;
    for (const auto& [rank, fold] : folds) {
      if (static_cast<size_t>(rank) >= judged_at_.size()) judged_at_.resize(static_cast<size_t>(rank) + 1, -1);
      judged_at_[static_cast<size_t>(rank)] = judged_steps_;
      end_ns = std::max(end_ns, fold.end_ns - static_cast<uint64_t>(clocks_.OffsetNs(layout_.node(rank))));
    }
    coverage_.Observe(layout_, folds, period_ns);
    double least = 1;
    for (const auto& [rank, fold] : folds) {
      least = std::min(least, static_cast<double>(fold.covered_ns) / static_cast<double>(fold.period_ns()));
    }
    least_covered_ += (least - least_covered_) * (judged_steps_ > 0 ? parameters.covered_average : 1);
    periods_.Add(place, period_ns, end_ns);
    last_step_ = step;
    judged_ns_ = now_ns_;
    ++judged_steps_;
    steps_since_judged_ = 0;
  }

  void Observe(const Folds& folds, int64_t place) {
    const double steps_per_hour = 3.6e12 / std::max(1e6, periods_.recent_ns());
    const double arl_factor = steps_per_hour * 1000 / std::max(1e-3, options_.false_alarms_per_1000_hours);
    own_.Observe(layout_, folds, place, periods_.recent_ns(), arl_factor);
    transfers_.Observe(place, arl_factor);
    if (judged_steps_ % kClockEvery == 1) clocks_.Add(layout_, folds);
    if (judged_steps_ % kSolveEvery == 5) clocks_.Solve();
  }

  // True: everybody does more (or less) than before, which is a plan, not a fault. After some such steps in a row that
  // is what is normal.
  bool FollowPlannedChange(int64_t step, int64_t place) {
    // Self time contains communication or loading that is no longer marked. Once the marks have ended, the levels are
    // learned anew.
    for (const SwitchKind kind : {SwitchKind::kCommunication, SwitchKind::kDataLoader}) {
      if (marked_.MayHaveEnded(kind)) return false;
    }
    if (const bool loads = !marked_.HasEnded(SwitchKind::kDataLoader); std::exchange(loads_, loads) != loads) {
      own_.RelearnLevels();
      shift_noise_.Restart();
      planned_steps_ = 0;
      return false;
    }
    const double shift = own_.common_shift();
    const double lost = periods_.LostSince(place - planned_steps_).ns / periods_.recent_ns();
    // Steps have to follow: where waits hide computation, a slow rank makes the others seem to do less.
    const bool follows = shift > 0 ? lost > shift / 4 && lost < 1e9 : lost < shift / 4;
    const bool shifted = std::abs(shift) > parameters.planned_shift && follows;
    planned_steps_ = shifted ? planned_steps_ + 1 : std::max(0, planned_steps_ - 1);
    planned_shift_ += shifted ? (shift - planned_shift_) / planned_steps_ : 0;
    planned_wait_ += shifted ? (own_.common_wait_shift() - planned_wait_) / planned_steps_ : 0;
    shift_noise_.Add(shift);
    if (planned_steps_ == 3) planned_since_ = step - 2;
    if (planned_steps_ >= parameters.planned_steps) {
      NoteShift(place);
      own_.RelearnLevels();
      transfers_.Forget();
      shift_noise_.Restart();
      planned_steps_ = 0;
    }
    return shifted;
  }

  // Once it is known how far all ranks go up and down together for as long anyway: on a busy machine that says nothing.
  void NoteShift(int64_t place) {
    // Steps have to be longer by as much: where they are not, somebody waits less.
    const int64_t begin = place - planned_steps_ + 1;
    const double before_ns = periods_.MeanNs(begin - parameters.compared_steps, begin - 1);
    const double lost = before_ns > 0 ? periods_.MeanNs(begin, place) / before_ns - 1 : 0;
    if (lost / planned_shift_ < OwnShare() / 2) return;
    // What was noted is over, or nearly so: it says nothing any more, and neither does its end.
    const double noted = noted_shift_;
    if (noted * planned_shift_ < 0) shift_note_ = {}, noted_shift_ = 0;
    if (noted * planned_shift_ < 0 && std::abs(noted + planned_shift_) < std::abs(noted) / 2) return;
    if (!shift_noise_.ready() || std::abs(planned_shift_) < parameters.shift_sigmas * shift_noise_.sigma()) return;
    const double change = std::exp(planned_shift_) - 1;
    const bool is_waiting = planned_wait_ / change > parameters.cpu_wait_share;
    std::string_view what = "the work or the machines changed for all";
    if (is_waiting) {
      what = change > 0 ? "most of that is waiting for a CPU, because of other work or a limit"
                        : "most of that is less waiting for a CPU";
    } else if (own_.mode() != OwnTime::Mode::kBulk && change > 0) {
      what = "the work or the machines changed for all, or all wait for one in something that is not marked";
    }
    shift_note_ = {is_waiting ? NoteKind::kRestless : NoteKind::kDesign,
                   absl::StrFormat("since step %d all ranks take %.0f %% %s by themselves: %s", planned_since_,
                                   100 * std::abs(change), change > 0 ? "more" : "less", what),
                   planned_since_};
    noted_shift_ = planned_shift_;
  }

  // Of the step: what ranks usually spend by themselves in it.
  double OwnShare() const {
    std::vector<double> owns;
    for (const OwnTime::Class& peers : own_.classes()) owns.push_back(peers.average_reference_ns);
    return std::min(1.0, LowerMedian(owns) / periods_.recent_ns());
  }

  JudgeInput MakeInput(int64_t place, bool planned_change) const {
    return {layout_,
            own_,
            transfers_,
            microbatches_,
            place,
            periods_.recent_ns(),
            options_.min_cost_share,
            planned_change,
            is_over_,
            [this](int64_t of) { return lives_.FirstOf(of); },
            [this](int rank) { return IsPresent(rank); },
            [this](int64_t onset) { return periods_.LostSince(onset); },
            [this](int64_t onset) { return periods_.TimeSince(onset); },
            [this](int64_t first, int64_t last) { return periods_.MeanNs(first, last); }};
  }

  bool Accuse(int64_t step, int64_t place, bool planned_change) {
    auto [accusations, decisions] = diagnosis::Accuse(MakeInput(place, planned_change), costs_);
    decisions_ = std::move(decisions);
    for (Accusation& accusation : accusations) {
      Verdict& verdict = accusation.verdict;
      verdict.since_ns = periods_.EndNs(verdict.since_step);
      verdict.since_step = lives_.StepAt(verdict.since_step);
      verdict.last_step = step;
      for (Evidence& evidence : verdict.evidence) {
        evidence.first_step = StepAt(evidence.first_step);
        evidence.last_step = StepAt(evidence.last_step);
      }
    }
    // By what came before.
    std::erase_if(accusations, [this](const auto& a) { return marked_.IsSilent(KindOf(a.verdict)); });
    // Without marks of the loader it is in self time what the rank waits for it.
    for (Accusation& accusation : accusations) {
      if (UnjudgedLoading(accusation.verdict) == nullptr) continue;
      accusation.verdict.cause = Cause::kUnknown;
      accusation.verdict.alternatives.clear();
    }
    const auto young = std::find_if(accusations.begin(), accusations.end(), [](const auto& a) { return a.is_young; });
    young_.reset();
    if (young != accusations.end()) young_ = young->verdict;
    KeepRestored(step, accusations);
    const bool changed = book_.Update(accusations, step, [this](const Verdict& verdict) { return WhyAbsent(verdict); });
    left_.clear();
    periods_.MarkSlow(book_.any_open() || std::any_of(restored_.begin(), restored_.end(), [this](const Restored& kept) {
                        return marked_.IsSilent(KindOf(kept.verdict));
                      }));
    return changed;
  }

  // What was found of the loaders of those whom the verdict accuses, while loading is not marked any more.
  const Verdict* UnjudgedLoading(const Verdict& verdict) const {
    if (!marked_.IsSilent(SwitchKind::kDataLoader)) return nullptr;
    for (const Restored& restored : restored_) {
      const Verdict& loads = restored.verdict;
      if (restored.unjudged && loads.cause == Cause::kDataloader && loads.scope == verdict.scope &&
          loads.ids == verdict.ids)
        return &loads;
    }
    return nullptr;
  }

  // It has reported something, or a group or the job's size says that there is one.
  bool IsOfJob(int rank) const {
    if (rank < 0 || rank >= kMaxRanks) return false;
    const std::vector<int>& unheard = roster().unheard;
    return layout_.known(rank) || rank < roster().world_size ||
           std::binary_search(unheard.begin(), unheard.end(), rank);
  }
  std::string DescribeUnknown(int rank) const {
    const std::vector<int>& unheard = roster().unheard;
    const int end = std::max({layout_.size(), roster().world_size, unheard.empty() ? 0 : unheard.back() + 1});
    std::vector<int> known;
    for (int r = 0; r < end; ++r) {
      if (IsOfJob(r)) known.push_back(r);
    }
    return known.empty() ? absl::StrCat("rank ", rank, ": no rank has reported anything yet")
                         : absl::StrCat("rank ", rank, ": this job has rank ", FormatRanges(known));
  }
  // The sentence of the costliest open verdict that accuses the rank, or its node; empty: there is none.
  std::string VerdictOn(int rank) const {
    for (const Verdict& verdict : book_.verdicts()) {
      if (!verdict.open || !IsAnyAccused(verdict, false, [rank](int accused) { return accused == rank; })) continue;
      return WriteSentence(verdict, layout_);
    }
    return "";
  }

  // It did not come along when the job was started again.
  bool IsOfFormerLife(int rank) const {
    return rank < gathering_.size() && gathering_.at(rank).life < gathering_.taken().life && JudgedAt(rank) >= 0 &&
           HasLeft(rank);
  }

  // Whether the rank takes part in the job as it is now. One place for all who ask: nobody else is accused. Of steps that
  // were judged, since step numbers say nothing over several lives.
  bool IsPresent(int rank) const { return JudgedAt(rank) >= 0 && !HasLeft(rank); }
  // How many steps had been judged before its last fold that was; -1: none was.
  int JudgedAt(int rank) const {
    return rank >= 0 && static_cast<size_t>(rank) < judged_at_.size() ? judged_at_[static_cast<size_t>(rank)] : -1;
  }
  // After a restart of the manager nobody has been heard yet: nodes come back one after the other, each with all the steps
  // that it has kept. As long as a step waits for its last ranks it is waited for who is not there yet.
  bool MayComeBack(int rank) const { return JudgedAt(rank) < 0 && IsBeginning(); }
  bool IsBeginning() const { return now_ns_ < begun_ns_ + options_.step_deadline_ns; }
  // Once a few steps were judged without it. That its process has ended says nothing before the job goes on in another life:
  // at the end of a job some ranks end before others, and what was found of them stays.
  bool HasLeft(int rank) const {
    const bool is_gone = gathering_.IsGone(rank);
    if (is_gone && gathering_.at(rank).life < gathering_.taken().life) return true;
    if (!is_gone && MayComeBack(rank)) return false;
    return judged_steps_ - 1 - std::max(0, JudgedAt(rank)) > (is_gone ? kLastSteps : parameters.absent_steps);
  }
  // Whether it is so of any rank that the verdict accuses. `of_unknown`: what is so of a node without any known rank.
  template <typename Is>
  bool IsAnyAccused(const Verdict& verdict, bool of_unknown, const Is& is) const {
    switch (verdict.scope) {
      case Scope::kRank:
      case Scope::kGroup:
        return std::any_of(verdict.ids.begin(), verdict.ids.end(), is);
      case Scope::kNode:
        return std::any_of(verdict.ids.begin(), verdict.ids.end(), [&](int node) {
          const auto ranks = layout_.nodes().find(node);
          if (ranks == layout_.nodes().end()) return of_unknown;
          return std::any_of(ranks->second.begin(), ranks->second.end(), is);
        });
      case Scope::kLink:
        return std::any_of(verdict.links.begin(), verdict.links.end(),
                           [&](const Link& link) { return is(link.a) || is(link.b); });
      case Scope::kJob:
        return false;
    }
    return false;
  }
  // Who is accused does not take part any more, or its number is another process's on another node: of a link one end,
  // else all of them.
  bool HasLeft(const Verdict& verdict) const {
    if (verdict.scope == Scope::kJob) return false;
    const auto left = [this](int rank) { return HasLeft(rank) || left_.count(rank) > 0; };
    if (verdict.scope == Scope::kLink) return IsAnyAccused(verdict, false, left);
    const bool may_be_here = judged_steps_ <= parameters.absent_steps || IsBeginning();
    return !IsAnyAccused(verdict, may_be_here, [&](int rank) { return !left(rank); });
  }
  Book::Absence WhyAbsent(const Verdict& verdict) {
    if (HasLeft(verdict)) return Book::Absence::kLeft;
    const SwitchKind kind = KindOf(verdict);
    if (!marked_.IsSilent(kind)) return Book::Absence::kCleared;
    if (!marked_.HasEnded(kind)) return Book::Absence::kOpen;
    // If it is found again once there are marks it is the same one.
    restored_.push_back({.key = KeyOf(verdict), .verdict = verdict, .unjudged = true});
    return Book::Absence::kUnjudged;
  }
  // Somebody whom the verdict accuses has not been heard yet.
  bool IsAwaited(const Verdict& verdict) const {
    return IsAnyAccused(verdict, IsBeginning(), [this](int rank) { return MayComeBack(rank); });
  }

  // Verdicts of an earlier life of the manager stay until there is evidence of this life: long enough for a deviation
  // that is still there to be found again. Steps without whom they accuse are none, nor are steps without the marks that
  // they rest on.
  void KeepRestored(int64_t step, std::vector<Accusation>& accusations) {
    std::erase_if(restored_, [&](Restored& restored) {
      bool again = false;
      for (Accusation& accusation : accusations) {
        if (accusation.key != restored.key) continue;
        const bool same = !restored.unjudged || restored.back_step < 0 ||
                          accusation.verdict.since_step <= restored.back_step + kOldOnset;
        if (!same) continue;
        accusation.verdict.since_step = restored.verdict.since_step;
        accusation.verdict.since_ns = restored.verdict.since_ns;
        again = true;
      }
      if (again) return false;
      if (HasLeft(restored.verdict)) return true;
      const SwitchKind kind = KindOf(restored.verdict);
      const bool is_open = book_.IsOpen(restored.key);
      if (marked_.IsSilent(kind)) return is_open && marked_.HasEnded(kind);  // WhyAbsent() keeps it anew
      if (!IsAwaited(restored.verdict)) ++restored.steps;
      if (restored.back_step < 0) restored.back_step = step;
      // If a verdict with this key is open again, this entry has done its work.
      if (restored.unjudged) return is_open || restored.steps > kKeepUnjudged;
      if (restored.steps > parameters.keep_restored || !is_open) return true;
      Accusation& accusation = accusations.emplace_back();
      accusation.key = restored.key;
      accusation.verdict = restored.verdict;
      if (restored.verdict.scope == Scope::kRank) {
        accusation.concerns.insert(restored.verdict.ids.begin(), restored.verdict.ids.end());
      }
      return false;
    });
  }

  // There is something to judge by.
  bool CanJudge() const {
    if (own_.mode() == OwnTime::Mode::kNone) return false;
    for (const std::vector<int>& peers : layout_.classes()) {
      if (peers.size() >= 2) return true;
    }
    return layout_.classes().size() >= 2;
  }

  // The steps come, and their times can be compared with nothing.
  bool IsIdle() const { return own_.idle_steps() >= parameters.idle_steps; }

  // `uncovered`: why the marks do not suffice; empty: they do, or it is not known yet.
  std::vector<Note> MakeNotes(const std::string& uncovered, const std::vector<int>& ahead,
                              const std::vector<int>& silent, bool behind) const {
    std::vector<Note> notes;
    if (has_few_steps()) {
      notes.push_back({NoteKind::kShort,
                       absl::StrCat("only ", judged_steps_, " steps can be judged so far; ", parameters.enough_steps,
                                    " are needed"),
                       FirstStep()});
    }
    if (!uncovered.empty()) notes.push_back({NoteKind::kCoverage, uncovered, FirstStep()});
    if (const std::vector<int>& unheard = roster().unheard; !unheard.empty()) {
      notes.push_back(
          {NoteKind::kNoData, absl::StrCat("no marks of rank ", FormatRanges(unheard), ": not judged"), FirstStep()});
    }
    if (const std::vector<int>& beyond = roster().beyond; !beyond.empty()) {
      notes.push_back({NoteKind::kNoData,
                       absl::StrCat("groups of rank ", FormatRanges(layout_.RanksThatName(beyond.front())),
                                    " name rank ", FormatRanges(beyond), ", but the job has ", roster().world_size,
                                    " ranks: these members are set aside"),
                       FirstStep()});
    }
    if (const std::vector<int>& ranks = roster().with_unused_groups; !ranks.empty()) {
      notes.push_back(
          {NoteKind::kNoData,
           absl::StrCat("members of groups of rank ", FormatRanges(ranks), " are not used: one is no rank (0 to ",
                        kMaxRanks - 1, "), or they are more than the rank or its node may bring"),
           FirstStep()});
    }
    if (!silent.empty() && judged_steps_ > 0 && std::ssize(silent) < gathering_.size()) {
      notes.push_back({NoteKind::kNoData, absl::StrCat("no more marks of rank ", FormatRanges(silent), ": not judged"),
                       SilentSince(silent)});
    }
    if (judged_steps_ >= parameters.enough_steps && !CanJudge()) {
      notes.push_back({NoteKind::kShort,
                       "no two ranks do the same work: there is nothing to compare with but their own past",
                       FirstStep()});
    }
    if (CanJudge() && IsIdle() && uncovered.empty()) {
      notes.push_back({NoteKind::kNoData,
                       absl::StrCat("nothing could be compared in the last ", own_.idle_steps(),
                                    " steps: marks are lost, or too few ranks have the same ones"),
                       StepAt(lives_.PlaceOf(last_step_) - own_.idle_steps() + 1)});
    }
    if (judged_steps_ >= parameters.enough_steps && least_covered_ > parameters.mostly_communication) {
      notes.push_back(
          {NoteKind::kNotComparable,
           absl::StrFormat("communication takes %.0f %% of each step even on the rank that waits least; whether it was "
                           "slow from the first step on is not comparable within one job",
                           100 * least_covered_),
           FirstStep()});
    }
    NoteOddSteps(ahead, notes);
    if (judged_steps_ > 0 && behind) {
      notes.push_back({NoteKind::kNoData,
                       absl::StrCat("steps come, but those after step ", last_step_,
                                    " could not be judged: they came too late, twice or without "
                                    "the time that they took"),
                       last_step_});
    }
    const bool is_restless = NoteWeather(notes);
    if (shift_note_.since_step >= 0 && !(is_restless && shift_note_.kind == NoteKind::kRestless)) {
      notes.push_back(shift_note_);
    }
    for (Note& note : NotesOn(own_.work(), [this](int64_t place) { return StepAt(place); })) {
      notes.push_back(std::move(note));
    }
    for (const Verdict& verdict : book_.verdicts()) {
      const Verdict* loads = verdict.open ? UnjudgedLoading(verdict) : nullptr;
      if (loads == nullptr) continue;
      notes.push_back(
          {NoteKind::kNoData,
           absl::StrCat("data loading is not marked since step ", loads->last_step + 1, ": that ", Name(verdict.scope),
                        " ", FormatRanges(verdict.ids), " takes longer may be its data loader, which was slow before"),
           loads->last_step + 1});
    }
    NoteUnbalancedStages(notes);
    if (!book_.any_open() && WorkIsUneven() && own_.rotation() > 0.7) {
      notes.push_back(
          {NoteKind::kRotation, "the slowest rank changes from step to step: none is slow by itself", FirstStep()});
    }
    return notes;
  }

  // False: there is nothing to be said.
  bool NoteWeather(std::vector<Note>& notes) const {
    const Weather& weather = own_.weather();
    if (weather.rises() < parameters.restless || weather.ranks() < 2) return false;
    const double share = weather.cost_ns(lives_.PlaceOf(last_step_)) / std::max(1.0, periods_.recent_ns());
    notes.push_back({NoteKind::kRestless,
                     absl::StrFormat("%d times one of %d ranks was slower for %.0f steps on average, and then another: "
                                     "the machines are restless, which takes %.2g %% of a step",
                                     weather.rises(), weather.ranks(), weather.mean_steps(), 100 * share),
                     StepAt(weather.first_step())});
    return true;
  }

  std::vector<int> SilentRanks() const {
    return gathering_.SilentBefore({gathering_.taken().life, last_step_ - kSilentNote});
  }

  // The first step without one of them, in this life of the job.
  int64_t SilentSince(const std::vector<int>& silent) const {
    int64_t since = last_step_;
    for (int rank : silent) {
      const Gathering::Position at = gathering_.at(rank);
      since = std::min(since, at.life == gathering_.taken().life ? at.step + 1 : lives_.StepAt(lives_.first()));
    }
    return since;
  }

  // One of this life of the job that nobody has reported as gone.
  bool AnyFellSilent(const std::vector<int>& silent) const {
    return std::any_of(silent.begin(), silent.end(), [this](int rank) {
      return !gathering_.IsGone(rank) && std::max(0, gathering_.at(rank).life) == gathering_.taken().life;
    });
  }

  // Steps come, but those of most ranks are not judged.
  bool IsBehind() const { return steps_since_judged_ >= parameters.idle_steps || gathering_.MostAreUnused(); }

  void NoteOddSteps(const std::vector<int>& ahead, std::vector<Note>& notes) const {
    auto note = [&](std::string text, int64_t since) { notes.push_back({NoteKind::kNoData, std::move(text), since}); };
    if (!ahead.empty()) {
      const int64_t step = gathering_.at(ahead[0]).step;
      const std::string who = absl::StrCat("rank ", FormatRanges(ahead));
      const std::string others = absl::StrCat("the others are at step ", gathering_.reached().step);
      if (ahead.size() > 1) {
        note(absl::StrCat(who, " say steps far ahead, rank ", ahead[0], " step ", step, "; ", others,
                          ": those names are not used"),
             gathering_.reached().step);
      } else {
        note(absl::StrCat(who, " says step ", step, ", ", others, ": its names are not used"),
             gathering_.reached().step);
      }
    } else if (odd_.rank >= 0 && judged_steps_ - odd_.judged_steps < kOddNote) {
      note(absl::StrCat("rank ", odd_.rank, " said step ", odd_.step,
                        ", far ahead of the others: that name was not used"),
           odd_.job_step);
    }
  }

  // What takes a look at all members of all groups, as of the present layout.
  struct Roster {
    uint64_t version = ~uint64_t{0};
    int told_size = 0;
    int world_size = 0;        // 0: not known
    std::vector<int> unheard;  // members of declared groups that never reported anything
    std::vector<int> beyond;   // the same, that the job does not have
    std::vector<int> with_unused_groups;
  };
  const Roster& roster() const {
    if (roster_.version == layout_.version() && roster_.told_size == world_size_) return roster_;
    roster_ = {layout_.version(), world_size_, world_size_ > 0 ? world_size_ : layout_.DeclaredWorldSize(),
               layout_.Unheard(), {},          layout_.RanksWithUnusedGroups()};
    if (roster_.world_size > 0) {
      const auto first = std::lower_bound(roster_.unheard.begin(), roster_.unheard.end(), roster_.world_size);
      roster_.beyond.assign(first, roster_.unheard.end());
      roster_.unheard.erase(first, roster_.unheard.end());
    }
    return roster_;
  }

  // That, too; reports are made more often than steps are judged.
  const Coverage::Result& coverage() const {
    const std::pair versions(layout_.version(), coverage_.version());
    if (covered_versions_ != versions) {
      covered_ = coverage_.Judge(layout_);
      covered_versions_ = versions;
    }
    return covered_;
  }

  bool WorkIsUneven() const {
    for (const OwnTime::Class& peers : own_.classes()) {
      if (peers.noise.steps.sigma() > 0.04) return true;
    }
    return false;
  }

  void NoteUnbalancedStages(std::vector<Note>& notes) const {
    const auto& classes = own_.classes();
    if (classes.size() < 2 || judged_steps_ < parameters.enough_steps || own_.mode() != OwnTime::Mode::kBulk) return;
    std::vector<double> times;
    for (const OwnTime::Class& peers : classes) {
      if (peers.average_reference_ns > 0) times.push_back(peers.average_reference_ns);
    }
    if (times.size() < 2) return;
    const double slowest = *std::max_element(times.begin(), times.end());
    const double typical = LowerMedian(times);
    if (slowest < 1.15 * typical) return;
    for (size_t c = 0; c < classes.size(); ++c) {
      if (classes[c].average_reference_ns != slowest) continue;
      const int stage = layout_.rank(layout_.classes()[c].front()).stage;
      notes.push_back({NoteKind::kDesign,
                       absl::StrFormat("stage %d computes %.2f times as long as a typical stage on all its ranks: the "
                                       "pipeline could be balanced",
                                       stage, slowest / typical),
                       FirstStep()});
    }
  }

  const Options options_;
  Gathering gathering_;
  std::vector<int> judged_at_;  // by rank: JudgedAt()
  int steps_since_judged_ = 0;  // that were taken
  Odd odd_;                     // the newest

  Layout layout_;
  int world_size_ = 0;  // as told
  mutable Roster roster_;
  mutable Coverage::Result covered_;
  mutable std::pair<uint64_t, uint64_t> covered_versions_{~uint64_t{0},
                                                          0};  // of layout and coverage, as of which it is
  Fineness fineness_;                                          // as of one of the last steps
  std::vector<int> nearest_;                                   // likewise: ranks, the nearest to a verdict first
  OwnTime own_;
  Transfers transfers_;
  Clocks clocks_;
  Coverage coverage_;
  MarkedKinds marked_;
  Book book_;
  std::vector<Decision> decisions_;  // of the last step
  std::optional<Verdict> young_;     // of the last step's accusations, that has not lasted yet
  std::vector<Restored> restored_;
  std::vector<int> microbatches_;
  std::set<int> moved_;  // ranks, since the layout was made
  std::set<int> left_;   // ranks whose number is another's since the last accusation

  CostMeans costs_;

  Lives lives_;
  bool life_begins_ = true;
  Periods periods_;
  std::deque<std::pair<double, double>> recent_;  // periods and own times, pauses too
  uint64_t begun_ns_ = 0;                         // the first fold came; 0: none has
  uint64_t now_ns_ = 0;
  uint64_t judged_ns_ = 0;  // now_ns_ of the last judged step
  int64_t last_step_ = -1;
  int judged_steps_ = 0;
  double least_covered_ = 0;  // share of the step, on the rank that waits least: mean over the last ones
  int steps_since_long_ = kAlone;
  bool loads_ = true;  // loading is marked, as far as it ever was
  bool is_over_ = false;
  bool planned_change_ = false;  // in the last step
  int planned_steps_ = 0;
  int64_t planned_since_ = 0;
  double planned_shift_ = 0;  // mean over those steps
  double planned_wait_ = 0;   // likewise, of OwnTime::common_wait_shift()
  BlockNoise shift_noise_{parameters.planned_steps};
  Note shift_note_;         // since step -1: there is none
  double noted_shift_ = 0;  // of the note
};

Engine::Engine() : Engine(Options()) {}
Engine::Engine(const Options& options) : impl_(std::make_unique<Impl>(options)) {}
Engine::~Engine() = default;
void Engine::SetPlace(int rank, const RankPlace& place) { impl_->SetPlace(rank, place); }
bool Engine::SetGroup(int rank, uint32_t index, const GroupInfo& group) { return impl_->SetGroup(rank, index, group); }
void Engine::DropGroups(int rank, uint32_t first) { impl_->DropGroups(rank, first); }
size_t Engine::group_bytes() const { return impl_->group_bytes(); }

size_t Engine::waiting_bytes() const { return impl_->waiting_bytes(); }
void Engine::SetMarksOn(int rank, KindMask kinds) { impl_->SetMarksOn(rank, kinds); }
void Engine::SetWorldSize(int ranks) { impl_->SetWorldSize(ranks); }
void Engine::RemoveRank(int rank) { impl_->RemoveRank(rank); }
bool Engine::Add(int rank, StepFold fold, uint64_t now_ns) { return impl_->Add(rank, std::move(fold), now_ns); }
bool Engine::Advance(uint64_t now_ns) { return impl_->Advance(now_ns); }
bool Engine::Finish() { return impl_->Finish(); }
Report Engine::report() const { return impl_->MakeReport(); }
bool Engine::has_few_steps() const { return impl_->has_few_steps(); }
void Engine::Restore(const std::vector<Verdict>& verdicts) { impl_->Restore(verdicts); }
absl::StatusOr<RankTrace> Engine::Why(int rank) const { return impl_->Why(rank); }
int64_t Engine::ClockOffsetNs(int node) const { return impl_->ClockOffsetNs(node); }
std::vector<int> Engine::Peers(int rank) const { return impl_->Peers(rank); }

}  // namespace taskd::diagnosis
