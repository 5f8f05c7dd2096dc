#include "manager/hang_watch.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

namespace taskd::manager {
namespace {

constexpr size_t kKeptSteps = 32;
constexpr size_t kNamedRanks = 8;  // in the text

double Median(std::deque<double> values) {
  if (values.empty()) return 0;
  auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// Of the counters that moved: a checkpoint began, or nothing but the data loader was at work.
bool IsPatientPhase(const std::array<bool, kNumMarkCounts>& moved) {
  if (moved[static_cast<int>(SwitchKind::kSaveCheckpoint)]) return true;
  return moved[static_cast<int>(SwitchKind::kDataLoader)] && std::count(moved.begin(), moved.end(), true) == 1;
}

}  // namespace

void HangWatch::BeginAnew(SteadyTime now) {
  ended_steps_ = 0;
  patient_ = false;
  step_at_ = mark_at_ = now;
}

HangWatch::Seconds HangWatch::Limit() const {
  if (ended_steps_ < 2) return options_.first_steps_grace;
  Seconds limit = std::max(Seconds(options_.factor * Median(step_s_)), options_.floor);
  return patient_ ? limit * options_.slow_factor : limit;
}

HangVerdict HangWatch::Describe(const std::vector<RankPulse>& ranks, SteadyTime now, Seconds limit) const {
  HangVerdict verdict;
  verdict.hung = true;
  verdict.idle_s = Seconds(now - step_at_).count();
  verdict.limit_s = limit.count();
  verdict.ranks = static_cast<int>(ranks.size());
  verdict.lowest_step = INT64_MAX;
  for (const RankPulse& rank : ranks) {
    verdict.lowest_step = std::min(verdict.lowest_step, rank.step);
    verdict.highest_step = std::max(verdict.highest_step, rank.step);
  }
  size_t behind = 0;
  if (verdict.lowest_step != verdict.highest_step) {
    for (const RankPulse& rank : ranks) {
      if (rank.step != verdict.lowest_step) continue;
      if (++behind <= HangVerdict::kMaxBehind) verdict.behind.push_back(rank.rank);
    }
    std::sort(verdict.behind.begin(), verdict.behind.end());
  }
  if (verdict.highest_step < 0) {
    verdict.text = absl::StrFormat("hang: no rank has ended its first step in %.0f s", verdict.idle_s);
    return verdict;
  }
  verdict.text = absl::StrFormat("hang: no rank has ended a step for %.0f s (limit %.0f s), last step %d",
                                 verdict.idle_s, verdict.limit_s, verdict.highest_step);
  if (behind > 0) {
    std::vector<int> named(verdict.behind.begin(),
                           verdict.behind.begin() + static_cast<std::ptrdiff_t>(std::min(behind, kNamedRanks)));
    absl::StrAppend(&verdict.text, "; behind at step ", verdict.lowest_step, ": rank ", absl::StrJoin(named, ", "));
    if (behind > kNamedRanks) absl::StrAppend(&verdict.text, " and ", behind - kNamedRanks, " more");
  }
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
  BeginAnew(now);
  return Resume(now, "the hang is over: its ranks have ended");
}

std::optional<HangVerdict> HangWatch::Update(const std::vector<RankPulse>& ranks, bool steps_on, SteadyTime now) {
  const bool judge = steps_on && !ranks.empty();
  if (!judge) {
    watching_ = false;
    // That all proxies are away is not the end of a hang.
    return ranks.empty() ? std::nullopt : Resume(now, "the hang is not watched any more: steps are switched off");
  }
  if (!watching_) {
    // What could not be seen does not count. Steps switched on again: nobody knows how long the first takes.
    if (known_.empty() || !open_.has_value()) BeginAnew(now);
    watching_ = true;
  }

  bool stepped = false;
  bool marked = false;
  bool renewed = false;
  int64_t steps_ended = 0;
  double step_ms = 0;
  std::array<bool, kNumMarkCounts> moved{};
  bool learned = false;
  for (const RankPulse& rank : ranks) {
    auto known = known_.find(rank.rank);
    if (known == known_.end()) {
      // A manager that is new to a job learns from what the ranks did before.
      if (rank.step >= 0) {
        learned = true;
        steps_ended = std::max<int64_t>(steps_ended, 1);
      }
    } else if (known->second.pid != rank.pid) {
      renewed = true;
    } else {
      if (rank.step > known->second.step) {
        stepped = true;
        steps_ended = std::max(steps_ended, known->second.step < 0 ? 1 : rank.step - known->second.step);
      }
      for (int i = 0; i < kNumMarkCounts; ++i) {
        if (rank.marks[i] != known->second.marks[i]) moved[i] = marked = true;
      }
    }
    for (uint64_t count : rank.marks) marks_seen_ = marks_seen_ || count != 0;
    step_ms = std::max(step_ms, rank.step_ms);
    known_[rank.rank] = rank;  // one that has gone stays: it may come back as another process
  }
  if (renewed) {
    BeginAnew(now);
    return Resume(now, "the hang is over: ranks were started anew");
  }

  const Seconds idle = now - step_at_;
  if (steps_ended > 0) {
    // The longer of what the ranks measured and what went by between their steps. Not the first one: it compiles.
    if (ended_steps_ > 0 || learned) {
      double between_s = stepped && ended_steps_ > 0 ? idle.count() / static_cast<double>(steps_ended) : 0;
      step_s_.push_back(std::max(step_ms / 1000, between_s));
      if (step_s_.size() > kKeptSteps) step_s_.pop_front();
    }
    ended_steps_ = static_cast<int>(std::min<int64_t>(2, ended_steps_ + steps_ended));
  }
  if (stepped) {
    // A phase with marks in it, so not a hang that somebody resolved.
    if (Seconds(mark_at_ - step_at_) > idle / 2 && ended_steps_ == 2) {
      longest_slow_s_ = std::max(longest_slow_s_, idle.count());
    }
    step_at_ = mark_at_ = now;
    patient_ = IsPatientPhase(moved);
    return Resume(now, "the job goes on: a step has ended");
  }
  if (marked) {
    mark_at_ = now;
    patient_ = IsPatientPhase(moved);
  }
  if (open_.has_value() || !marks_seen_ || options_.factor < 0) return std::nullopt;

  const Seconds limit = Limit();
  const Seconds slow_limit = ended_steps_ < 2
                                 ? limit
                                 : std::max(limit * options_.slow_factor,
                                            std::min(Seconds(1.5 * longest_slow_s_), options_.first_steps_grace));
  const Seconds silent = now - mark_at_;
  const bool hung = silent >= limit || (ended_steps_ == 2 && idle >= slow_limit);
  if (!hung) return std::nullopt;
  open_ = Describe(ranks, now, silent >= limit ? limit : slow_limit);
  open_->number = ++hangs_;
  hung_since_ = step_at_;
  return open_;
}

}  // namespace taskd::manager
