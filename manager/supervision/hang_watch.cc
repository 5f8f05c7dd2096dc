#include "manager/supervision/hang_watch.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/median.h"
#include "common/progress.h"
#include "common/ranges_text.h"
#include "manager/supervision/hang_origin.h"

namespace taskd::manager {
namespace {

constexpr size_t kKeptSteps = 32;
constexpr int kEnoughSteps = 2;    // from which on they can be judged by
constexpr size_t kNamedRanks = 8;  // in the text
// PyTorch gives up a collective after 10 minutes: most ranks do not compute for so long without a step.
constexpr std::chrono::minutes kSpinPatience{10};

// Of the counters that moved: a checkpoint began, or nothing but the data loader was at work.
bool IsPatientPhase(const std::array<bool, kNumMarkCounts>& moved) {
  if (moved[static_cast<int>(SwitchKind::kSaveCheckpoint)]) return true;
  return moved[static_cast<int>(SwitchKind::kDataLoader)] && std::count(moved.begin(), moved.end(), true) == 1;
}

std::ptrdiff_t Least(size_t a, size_t b) { return static_cast<std::ptrdiff_t>(std::min(a, b)); }

// `behind`: how many ranks are, named or not.
std::string Text(const HangVerdict& verdict, size_t behind) {
  const std::string begin = absl::StrCat("hang: ", verdict.cause, verdict.cause.empty() ? "" : "; ");
  if (verdict.highest_step < 0) {
    return absl::StrFormat("%sno rank has ended its first step in %.0f s", begin, verdict.idle_s);
  }
  const std::vector<int> odd(verdict.ahead.begin(), verdict.ahead.begin() + Least(verdict.ahead.size(), kNamedRanks));
  std::string text = absl::StrFormat("%sno rank has ended a step for %.0f s (limit %.0f s), last step %d", begin,
                                     verdict.idle_s, verdict.limit_s, verdict.highest_step);
  if (!odd.empty()) absl::StrAppend(&text, "; not counted, far ahead of the others: rank ", absl::StrJoin(odd, ", "));
  if (behind == 0) return text;
  const std::vector<int> named(verdict.behind.begin(), verdict.behind.begin() + Least(behind, kNamedRanks));
  absl::StrAppend(&text, "; behind at step ", verdict.lowest_step, ": rank ", absl::StrJoin(named, ", "));
  if (behind > kNamedRanks) absl::StrAppend(&text, " and ", behind - kNamedRanks, " more");
  return text;
}

// Calls back with each rank's place among the known, in which all have one. Both are by rank.
template <typename Known, typename Take>
void ForEachKnown(Known& known, const std::vector<RankPulse>& ranks, const Take& take) {
  auto place = known.begin();
  for (const RankPulse& rank : ranks) {
    while (place->rank != rank.rank) ++place;
    take(*place, rank);
  }
}

}  // namespace

void HangWatch::BeginAnew(SteadyTime now) {
  ended_steps_ = 0;
  patient_ = false;
  some_ended_well_ = all_left_loop_ = false;
  began_at_ = step_at_ = mark_at_ = work_at_ = spin_at_ = now;
}

HangWatch::Seconds HangWatch::UsualLimit() const {
  std::vector<double> step_s(step_s_.begin(), step_s_.end());
  return std::max(Seconds(options_.factor * UpperMedian(step_s)), options_.floor);
}

HangWatch::Seconds HangWatch::Limit() const {
  if (ended_steps_ < kEnoughSteps) return options_.first_steps_grace;
  const Seconds limit = UsualLimit();
  return patient_ || some_ended_well_ || all_left_loop_ ? limit * options_.slow_factor : limit;
}

HangWatch::Seconds HangWatch::SlowLimit(Seconds limit) const {
  if (ended_steps_ < kEnoughSteps) return limit;
  return std::max(limit * options_.slow_factor, std::min(Seconds(1.5 * longest_slow_s_), options_.first_steps_grace));
}

HangVerdict HangWatch::Describe(const std::vector<RankPulse>& ranks, SteadyTime now, Seconds limit) const {
  HangVerdict verdict;
  verdict.hung = true;
  verdict.idle_s = Seconds(now - step_at_).count();
  verdict.limit_s = limit.count();
  verdict.ranks = static_cast<int>(ranks.size());
  verdict.lowest_step = INT64_MAX;
  std::vector<int64_t> steps;
  for (const RankPulse& rank : ranks) steps.push_back(rank.step);
  const int64_t of_most = StepOfMost(std::move(steps));
  for (const RankPulse& rank : ranks) {
    if (IsFarAhead(rank.step, of_most)) {
      verdict.ahead.push_back(rank.rank);
      continue;
    }
    verdict.lowest_step = std::min(verdict.lowest_step, rank.step);
    verdict.highest_step = std::max(verdict.highest_step, rank.step);
  }
  std::vector<RankPulse> counted;
  std::vector<int> behind;
  for (const RankPulse& rank : ranks) {
    if (IsFarAhead(rank.step, of_most)) continue;
    counted.push_back(rank);
    if (rank.step == verdict.lowest_step && rank.step != verdict.highest_step) behind.push_back(rank.rank);
  }
  HangOrigin origin = FindOrigin(counted);
  if (origin.ranks.empty()) origin.ranks = behind;
  std::vector<int> waiting;
  for (const RankPulse& rank : counted) {
    if (!std::ranges::binary_search(origin.ranks, rank.rank)) waiting.push_back(rank.rank);
  }
  verdict.waiting = FormatRanges(std::move(waiting), HangVerdict::kMaxBehind);
  verdict.behind.assign(behind.begin(), behind.begin() + Least(behind.size(), HangVerdict::kMaxBehind));
  verdict.origins.assign(origin.ranks.begin(),
                         origin.ranks.begin() + Least(origin.ranks.size(), HangVerdict::kMaxBehind));
  verdict.operation = std::move(origin.operation);
  verdict.since_ns = origin.since_ns;
  verdict.cause = std::move(origin.text);
  verdict.text = Text(verdict, behind.size());
  return verdict;
}

std::optional<HangVerdict> HangWatch::Resume(SteadyTime now, const std::string& why) {
  if (!open_.has_value()) return std::nullopt;
  HangVerdict verdict = *open_;
  verdict.hung = false;
  verdict.idle_s = Seconds(now - hung_since_).count();
  verdict.text = absl::StrFormat("%s after %.0f s", why, verdict.idle_s);
  open_.reset();
  return verdict;
}

std::optional<HangVerdict> HangWatch::Restarted(SteadyTime now) {
  known_.clear();
  reached_ = -1;
  BeginAnew(now);
  return Resume(now, "the hang is over: its ranks have ended");
}

void HangWatch::MakePlaces(const std::vector<RankPulse>& ranks) {
  const auto is_known = [this](const RankPulse& rank) {
    return std::ranges::binary_search(known_, rank.rank, {}, &RankPulse::rank);
  };
  if (std::ranges::equal(known_, ranks, {}, &RankPulse::rank, &RankPulse::rank)) return;
  std::vector<RankPulse> added;
  std::ranges::remove_copy_if(ranks, std::back_inserter(added), is_known);
  std::vector<RankPulse> all;
  all.reserve(known_.size() + added.size());
  std::ranges::merge(known_, added, std::back_inserter(all), {}, &RankPulse::rank, &RankPulse::rank);
  known_.swap(all);
}

HangWatch::Seconds HangWatch::StoppedFor(const std::vector<RankPulse>& ranks) const {
  std::vector<double> stopped_s;
  // Less than before: another proxy counts.
  ForEachKnown(known_, ranks, [&](const RankPulse& before, const RankPulse& rank) {
    if (rank.stopped_ms <= before.stopped_ms) return;
    stopped_s.push_back(static_cast<double>(rank.stopped_ms - before.stopped_ms) / 1e3);
  });
  // The median of all; nearly always no rank was stopped.
  if (stopped_s.size() * 2 <= ranks.size()) return Seconds(0);
  stopped_s.resize(ranks.size());
  return Seconds(LowerMedian(stopped_s));
}

void HangWatch::LeaveOut(Seconds stopped, SteadyTime now) {
  if (stopped <= Seconds(0)) return;
  for (SteadyTime* at : {&began_at_, &step_at_, &mark_at_, &work_at_, &spin_at_}) {
    *at += std::chrono::duration_cast<SteadyTime::duration>(std::min(stopped, Seconds(now - *at)));
  }
}

HangWatch::Changes HangWatch::TakePulses(const std::vector<RankPulse>& ranks, bool are_new, SteadyTime now) {
  Changes changes;
  changes.learned = are_new;
  std::vector<int64_t> steps;
  steps.reserve(ranks.size());
  for (const RankPulse& rank : ranks) steps.push_back(rank.step);
  const int64_t of_most = StepOfMost(std::move(steps));
  ForEachKnown(known_, ranks, [&](RankPulse& before, const RankPulse& rank) {
    for (uint64_t count : rank.marks) marks_seen_ = marks_seen_ || count != 0;
    if (before.pid != rank.pid) {
      ++changes.renewed;
    } else if (!IsFarAhead(rank.step, of_most)) {
      changes.Add(before, rank);
      constexpr auto kStep = static_cast<size_t>(SwitchKind::kStep);
      if (reached_ < 0) changes.begun.push_back(static_cast<int64_t>(rank.marks[kStep] - before.marks[kStep]));
    }
    before = rank;
  });
  all_left_loop_ = std::ranges::all_of(ranks, &RankPulse::left_loop);
  CountSteps(ranks, now, changes);
  return changes;
}

void HangWatch::CountSteps(const std::vector<RankPulse>& ranks, SteadyTime now, Changes& changes) {
  const bool may_be_first = now - began_at_ < options_.first_steps_grace;
  std::vector<int64_t> steps;
  std::vector<double> step_ms;
  steps.reserve(ranks.size());
  step_ms.reserve(ranks.size());
  for (const RankPulse& rank : ranks) {
    if (rank.step >= 0 || may_be_first) steps.push_back(rank.step < 0 ? 0 : rank.step + 1);
    if (rank.step >= 0) step_ms.push_back(rank.step_ms);
  }
  changes.step_ms = UpperMedian(step_ms);
  const int64_t before = reached_;
  reached_ = StepOfMost(std::move(steps)) - 1;
  changes.learned = changes.learned && reached_ >= 0;
  if (changes.learned || (before < 0 && reached_ >= 0)) {
    // Between two looks there may have been many. The newest has begun only.
    changes.steps_ended = std::max<int64_t>(1, LowerMedian(changes.begun) - 1);
  } else if (before >= 0 && reached_ > before) {
    changes.steps_ended = reached_ - before;
  }
}

bool HangWatch::IsRestart(const Changes& changes, size_t ranks) {
  if (changes.steps_ended > 0) patient_once_ = false;
  if (changes.renewed == 0) return false;
  if (changes.renewed * 2 > ranks) return true;
  return !std::exchange(patient_once_, true);
}

void HangWatch::Changes::Add(const RankPulse& before, const RankPulse& now) {
  if (now.step > before.step) stepped = true;
  for (int i = 0; i < kNumMarkCounts; ++i) {
    if (now.marks[i] != before.marks[i]) moved[i] = marked = true;
  }
  if (now.recorded > before.recorded) marked = true;
  const bool uses_cpu = now.cpu_busy_ms > before.cpu_busy_ms && now.open.kind != OpenPhase::Kind::kCommunication;
  const bool does_io = now.io_busy_ms > before.io_busy_ms;
  users_of_cpu += uses_cpu ? 1 : 0;
  io = io || does_io;
  if (uses_cpu || does_io) workers.push_back(now.rank);
}

void HangWatch::LearnSteps(const Changes& changes, Seconds idle) {
  if (changes.steps_ended == 0) return;
  // The longer of what the ranks measured and what went by between their steps. Not the first one: it compiles.
  if (ended_steps_ > 0 || changes.learned || changes.steps_ended > 1) {
    const bool between = changes.stepped && ended_steps_ > 0;
    const double between_s = between ? idle.count() / static_cast<double>(changes.steps_ended) : 0;
    step_s_.push_back(std::max(changes.step_ms / 1000, between_s));
    if (step_s_.size() > kKeptSteps) step_s_.pop_front();
  }
  ended_steps_ = static_cast<int>(std::min<int64_t>(kEnoughSteps, ended_steps_ + changes.steps_ended));
}

void HangWatch::NoteStep(const Changes& changes, SteadyTime now) {
  const Seconds idle = now - step_at_;
  // A phase with marks or work in it, so not a hang that somebody resolved.
  if (Seconds(alive_at() - step_at_) > idle / 2 && ended_steps_ == kEnoughSteps) {
    longest_slow_s_ = std::max(longest_slow_s_, idle.count());
  }
  step_at_ = now;
  NoteMarks(changes, now);
}

void HangWatch::NoteMarks(const Changes& changes, SteadyTime now) {
  mark_at_ = now;
  patient_ = IsPatientPhase(changes.moved);
}

void HangWatch::NoteWork(Changes changes, size_t ranks, SteadyTime now) {
  if (changes.workers.empty()) return;
  const bool most_use_cpu = changes.users_of_cpu * 2 > ranks;
  (changes.io || !most_use_cpu ? work_at_ : spin_at_) = now;
  workers_ = std::move(changes.workers);
}

std::string HangWatch::WhyNotEnd(SteadyTime now) const {
  if (!open_.has_value()) return "";
  if (some_ended_well_) return "a rank has ended with code 0";
  if (all_left_loop_) return "all ranks have left their step loops";
  const Seconds idle = now - step_at_;
  const Seconds grace = options_.first_steps_grace;
  if (idle >= grace) return "";
  const Seconds limit = UsualLimit();
  const std::string who = FormatRanges(workers_);
  if (now - work_at_ < limit) return absl::StrCat("still at work: rank ", who);
  if (now - mark_at_ < limit) return "ranks still make marks";
  if (now - spin_at_ < limit && idle < std::min(grace, Seconds(kSpinPatience))) {
    return absl::StrCat("they may still compute: rank ", who, " uses the CPU");
  }
  return "";
}

std::optional<HangVerdict> HangWatch::Judge(const std::vector<RankPulse>& ranks, SteadyTime now) {
  if (open_.has_value() || !marks_seen_ || options_.factor < 0) return std::nullopt;
  const Seconds limit = Limit();
  Seconds slow_limit = SlowLimit(limit);
  if (now - work_at_ < limit) slow_limit = std::max(slow_limit, Seconds(options_.first_steps_grace));
  const bool silent = now - alive_at() >= limit;
  const bool slow = ended_steps_ == kEnoughSteps && now - step_at_ >= slow_limit;
  if (!silent && !slow) return std::nullopt;
  open_ = Describe(ranks, now, silent ? limit : slow_limit);
  open_->number = ++hangs_;
  hung_since_ = step_at_;
  return open_;
}

std::optional<HangVerdict> HangWatch::Update(const std::vector<RankPulse>& ranks, bool steps_on, SteadyTime now) {
  const auto off = static_cast<size_t>(std::ranges::count(ranks, false, &RankPulse::steps_on));
  if (!steps_on || off * 2 > ranks.size() || ranks.empty()) {
    watching_ = false;
    // That all proxies are away is not the end of a hang.
    return ranks.empty() ? std::nullopt : Resume(now, "the hang is not watched any more: steps are switched off");
  }
  if (!watching_) {
    // What could not be seen does not count. Steps switched on again: nobody knows how long the first takes.
    if (known_.empty() || !open_.has_value()) BeginAnew(now);
    watching_ = true;
  }
  const bool are_new = known_.empty();
  MakePlaces(ranks);
  LeaveOut(StoppedFor(ranks), now);
  const Changes changes = TakePulses(ranks, are_new, now);
  if (IsRestart(changes, ranks.size())) {
    BeginAnew(now);
    return Resume(now, "the hang is over: ranks were started anew");
  }
  LearnSteps(changes, now - step_at_);
  NoteWork(changes, ranks.size(), now);
  if (changes.stepped) {
    NoteStep(changes, now);
    return Resume(now, "the job goes on: a step has ended");
  }
  if (changes.marked) NoteMarks(changes, now);
  return Judge(ranks, now);
}

}  // namespace taskd::manager
