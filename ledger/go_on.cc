// Continues a ledger from the state that an earlier ledger has saved.
#include <algorithm>
#include <utility>

#include "ledger/ledger.h"

namespace taskd::ledger {

void Ledger::Resume(const Kept& kept, int64_t now_ns) {
  SetNow(now_ns);
  const int64_t dead_ns = std::max<int64_t>(kept.dead_ns, 0);
  const int64_t stopped_ns = now_ns_ - dead_ns;
  begun_ns_ = stopped_ns;
  since_ns_ = stopped_ns - std::max<int64_t>(kept.report.until_ns - kept.report.since_ns, 0);
  closed_ = Tally();
  closed_.seconds = kept.report.seconds();
  closed_.waited_for = kept.report.waited_for;
  retired_s_ = Sum(closed_.seconds);
  incidents_.assign(kept.report.incidents.begin(), kept.report.incidents.end());
  next_incident_ = incidents_.empty() ? 1 : incidents_.back().number + 1;
  older_ = kept.report.older;
  measured_ = kept.report.measured;
  if (!kept.report.attempts.empty()) attempts_ = kept.report.attempts;
  next_ = kept.next;
  done_until_ = kept.done_until;
  saved_step_ = kept.saved_step;
  has_steps_ = done_until_ >= 0;
  base_ = std::max<int64_t>(kept.base, 0);
  phases_.clear();
  Phase phase;
  phase.kind = kept.ended ? Phase::Kind::kEnded : Phase::Kind::kResumed;
  phase.begin_ns = stopped_ns;
  phases_.push_back(phase);
  slots_.clear();
  live_ = 0;
  slots_.resize(static_cast<size_t>(std::clamp(kept.report.slots, 0, kMaxSlots)));
  for (Slot& slot : slots_) {
    slot.exists = true;
    slot.born_ns = slot.cursor_ns = stopped_ns;
    slot.done_until = done_until_;
    ++live_;
  }
  round_ = kept.round;
  resumed_ = heard_ = true;
}

void Ledger::Precede(const Kept& kept, Category gap, int64_t now_ns) {
  SetNow(now_ns);
  if (resumed_ || std::exchange(preceded_, true)) return;
  const Report& before = kept.report;
  const int64_t gap_ns = std::max<int64_t>(kept.dead_ns - (now_ns_ - since_ns_), 0);
  const double gap_s = ToSeconds(gap_ns) * std::clamp(before.slots, 0, kMaxSlots);
  const Seconds seconds = before.seconds();
  AddTo(closed_.seconds, seconds);
  At(closed_.seconds, gap) += gap_s;
  for (const auto& [rank, rank_s] : before.waited_for) closed_.AddWaitedFor(rank, rank_s);
  retired_s_ += Sum(seconds) + gap_s;
  const int64_t begun_unix_ns = since_ns_ + unix_offset_ns_;
  since_ns_ -= gap_ns + std::max<int64_t>(before.until_ns - before.since_ns, 0);

  former_.assign(before.incidents.begin(), before.incidents.end());
  shift_ = former_.empty() ? 0 : former_.back().number;
  std::vector<Attempt> attempts = before.attempts;
  const bool goes_on = gap != Category::kQueue && !attempts.empty();
  if (!goes_on) {
    Incident requeue;
    requeue.number = ++shift_;
    requeue.time_ns = begun_unix_ns - gap_ns;
    requeue.kind = kept.next;
    if (!attempts.empty() && attempts.back().until_ns == 0) {
      attempts.back().until_ns = begun_unix_ns - gap_ns;
      attempts.back().outcome = kLostLauncher;
    }
    requeue.text = StartedAgain(attempts);
    At(requeue.seconds, gap) = gap_s;
    former_.push_back(std::move(requeue));
    begin_shown_ = true;
  }
  TrimIncidents();
  for (size_t kind = 0; kind < kIncidentKinds; ++kind) {
    older_.counts[kind] += before.older.counts[kind];
    AddTo(older_.seconds[kind], before.older.seconds[kind]);
  }
  measured_.starts += before.measured.starts;
  measured_.checkpoints += before.measured.checkpoints;
  measured_.checkpoint_s += before.measured.checkpoint_s;
  former_attempts_ = attempts.size();
  if (goes_on) {
    --former_attempts_;
    Attempt& last = attempts.back();
    last.until_ns = attempts_.front().until_ns;
    last.outcome = attempts_.front().outcome;
    last.slots = attempts_.front().slots;
    attempts_.erase(attempts_.begin());
  }
  for (Attempt& attempt : attempts_) {
    attempt.number = attempts.empty() ? 1 : attempts.back().number + 1;
    attempts.push_back(attempt);
  }
  if (attempts.size() > Report::kMaxAttempts) {
    const size_t over = attempts.size() - Report::kMaxAttempts;
    attempts.erase(attempts.begin(), attempts.begin() + static_cast<std::ptrdiff_t>(over));
    former_attempts_ -= std::min(former_attempts_, over);
  }
  attempts_ = std::move(attempts);

  if (!has_steps_) {
    saved_step_ = std::max(saved_step_, kept.saved_step);
    if (goes_on) base_ = std::max<int64_t>(kept.base, 0);
  }
  done_until_ = std::max(done_until_, kept.done_until);
  has_steps_ = has_steps_ || done_until_ >= 0;
  for (Slot& slot : slots_) {
    if (slot.exists && slot.last_step < 0) slot.done_until = std::max(slot.done_until, kept.done_until);
  }
}

}  // namespace taskd::ledger
