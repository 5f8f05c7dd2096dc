#include "ledger/ledger.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/progress.h"
#include "common/utf8.h"
#include "ledger/advice.h"

namespace taskd::ledger {
namespace {

// The longest delay of a stamp for which it is still taken for Unix time of this machine.
constexpr int64_t kMostDelayNs = 15'000'000'000;
// Shorter gaps between steps are artefacts: stamps are moved to this clock one by one.
constexpr int64_t kNoGapNs = 2'000'000;

double PartSeconds(uint64_t ns, double most_s) { return std::min(static_cast<double>(ns) / 1e9, most_s); }

std::string OneLine(std::string text) {
  CutUtf8(&text, Ledger::kMaxTextBytes);
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text;
}

void CutNames(Incident& incident) {
  for (std::vector<int>* names : {&incident.ranks, &incident.nodes}) {
    if (names->size() > Ledger::kMaxNames) names->resize(Ledger::kMaxNames);
  }
}

}  // namespace

Ledger::Ledger(const Options& options)
    : unix_offset_ns_(options.unix_offset_ns),
      now_ns_(options.now_ns),
      since_ns_(options.now_ns),
      begun_ns_(options.now_ns),
      launched_(options.launched) {
  phases_.push_back({Phase::Kind::kAlone, now_ns_, kBegin});
  attempts_.push_back({1, now_ns_ + unix_offset_ns_});
  if (options.slots > 0) SetSlots(options.slots, now_ns_, now_ns_);
}

void Ledger::SetNow(int64_t now_ns) { now_ns_ = std::max(now_ns_, now_ns); }
int64_t Ledger::Clamp(int64_t at_ns) const { return std::clamp(at_ns, phase().begin_ns, now_ns_); }

Ledger::Steps Ledger::Reached() const {
  std::vector<int64_t> steps;
  for (const Slot& slot : slots_) {
    if (slot.exists) steps.push_back(std::max(slot.last_step, slot.done_until));
  }
  Steps reached{std::max(done_until_, StepOfMost(std::move(steps))), saved_step_};
  // A save counts up to the step after the one that most ranks have done.
  for (const Slot& slot : slots_) {
    if (!slot.exists || IsFarAhead(slot.saved_step, reached.done_until)) continue;
    reached.saved_step = std::max(reached.saved_step, std::min(slot.saved_step, reached.done_until + 1));
  }
  return reached;
}

void Ledger::SettleSteps() {
  const Steps reached = Reached();
  done_until_ = reached.done_until;
  saved_step_ = reached.saved_step;
}

Ledger::Phase& Ledger::Begin(Phase::Kind kind, int64_t at_ns, uint64_t incident) {
  SettleSteps();
  Phase next;
  next.kind = kind;
  next.begin_ns = Clamp(at_ns);
  next.incident = incident;
  phases_.push_back(next);
  if (kind == Phase::Kind::kRunning) ++measured_.starts;
  return phases_.back();
}

// ---- Slots

void Ledger::SetSlots(int slots, int64_t at_ns, int64_t now_ns) {
  SetNow(now_ns);
  if (slots <= 0 || slots > kMaxSlots) return;
  const bool first = !sized_ && !resumed_ && round_ < 0 && attempts_.size() == former_attempts_ + 1;
  sized_ = true;
  SettleSteps();
  // A new slot has no part in time that is settled already.
  at_ns = first ? std::max(begun_ns_, phases_.front().begin_ns) : Clamp(at_ns);
  if (slots_.size() < static_cast<size_t>(slots)) slots_.resize(static_cast<size_t>(slots));
  for (size_t rank = 0; rank < slots_.size(); ++rank) {
    Slot& slot = slots_[rank];
    const bool wanted = rank < static_cast<size_t>(slots);
    if (wanted == slot.exists) continue;
    if (!wanted) {
      Retire(slot, at_ns);
      continue;
    }
    slot = Slot();
    slot.exists = true;
    slot.born_ns = slot.cursor_ns = at_ns;
    slot.done_until = done_until_;
    ++live_;
  }
  attempts_.back().slots = live_;
}

void Ledger::Retire(Slot& slot, int64_t at_ns) {
  at_ns = std::max(at_ns, slot.cursor_ns);
  Close(slot, at_ns);
  retired_s_ += ToSeconds(at_ns - slot.born_ns);
  slot = Slot();
  --live_;
}

Ledger::Slot* Ledger::Find(int rank) {
  if (rank < 0 || rank >= kMaxSlots) return nullptr;
  const auto index = static_cast<size_t>(rank);
  if (index < slots_.size() && slots_[index].exists) return &slots_[index];
  if (sized_ || ended()) return nullptr;
  if (index >= slots_.size()) slots_.resize(index + 1);
  Slot& slot = slots_[index];
  slot.exists = true;
  // The first observed ranks show the job's intended size; later ranks have joined.
  const bool joins = round_ > 0 || attempts_.size() > former_attempts_ + 1;
  slot.born_ns = slot.cursor_ns = joins ? phase().begin_ns : phases_.front().begin_ns;
  // A rank of the first round does its steps for the first time, even if other ranks have done them.
  if (joins || resumed_) slot.done_until = done_until_;
  ++live_;
  attempts_.back().slots = live_;
  return &slot;
}

// ---- Phases

bool Ledger::untouched() const {
  return phases_.size() == 1 && phase().kind == Phase::Kind::kAlone &&
         std::none_of(slots_.begin(), slots_.end(),
                      [](const Slot& slot) { return !slot.seen_ns.empty() || slot.steps; });
}

void Ledger::Hear(int64_t at_ns) {
  if (std::exchange(heard_, true) || !untouched()) return;
  phases_.back().kind = Phase::Kind::kWaiting;
  if (launched_ || preceded_) return;
  // Until now there was a manager and no job.
  since_ns_ = begun_ns_ = phases_.back().begin_ns = Clamp(at_ns);
  attempts_.back().since_ns = since_ns_ + unix_offset_ns_;
  for (Slot& slot : slots_) slot.born_ns = slot.cursor_ns = since_ns_;
}

std::string Ledger::StartedAgain(const std::vector<Attempt>& attempts) {
  const std::string outcome = attempts.empty() ? "" : attempts.back().outcome;
  return OneLine(absl::StrCat("the job was started again", outcome.empty() ? "" : " after: ", outcome));
}

void Ledger::BeginAttempt(int64_t at_ns) {
  const Phase& end = phase();
  Begin(Phase::Kind::kQueue, end.begin_ns,
        AddIncident(std::exchange(next_, IncidentKind::kRequeue), end.begin_ns, {}, {}, StartedAgain(attempts_)));
  Begin(Phase::Kind::kWaiting, at_ns, phase().incident);
  if (attempts_.size() == Report::kMaxAttempts) attempts_.erase(attempts_.begin());
  const int number = attempts_.back().number + 1;
  attempts_.push_back({number, phase().begin_ns + unix_offset_ns_, 0, live_, ""});
  round_ = -1;
}

void Ledger::Waits(bool waits, int64_t at_ns, int64_t now_ns) {
  SetNow(now_ns);
  if (!waits) {
    // Without supervision no launcher reports that the ranks were started.
    if (phase().kind == Phase::Kind::kWaiting) Begin(Phase::Kind::kRunning, at_ns, phase().incident).guessed = true;
    return;
  }
  Hear(at_ns);
  if (phase().kind == Phase::Kind::kEnded) BeginAttempt(at_ns);
  if (phase().kind == Phase::Kind::kRestart) Begin(Phase::Kind::kWaiting, at_ns, phase().incident);
}

void Ledger::Started(int round, int64_t at_ns, int64_t now_ns) {
  SetNow(now_ns);
  Hear(at_ns);
  if (ended()) BeginAttempt(at_ns);
  const Phase::Kind kind = phase().kind;
  if (phase().runs() && round <= round_) return;
  if (phase().guessed) {
    phases_.back().guessed = false;
    round_ = std::max(round, 0);
    return;
  }
  // A ledger may have been kept before the first round was started. This start is then the first one.
  if (round_ >= 0 && (kind == Phase::Kind::kRunning || kind == Phase::Kind::kResumed)) {
    // The reason was not reported.
    Restarting(IncidentKind::kOrdered, "the ranks were started again", at_ns, now_ns);
  }
  EndSpan(Clamp(at_ns));
  round_ = std::max(round, 0);
  Begin(Phase::Kind::kRunning, at_ns, phase().incident);
}

void Ledger::Exited(const Exit& exit, int64_t at_ns, int64_t now_ns) {
  SetNow(now_ns);
  Hear(at_ns);
  if (!exit.failed || !phase().runs()) return;
  std::vector<int> ranks, nodes;
  if (exit.rank >= 0) ranks.push_back(exit.rank);
  if (exit.node >= 0) nodes.push_back(exit.node);
  const uint64_t hang = hangs_ ? spans_.back().incident : 0;
  const uint64_t incident =
      hang != 0 ? hang
                : AddIncident(IncidentKind::kRankExit, Clamp(at_ns), std::move(ranks), std::move(nodes), exit.text);
  EndSpan(Clamp(at_ns));
  Begin(Phase::Kind::kRestart, at_ns, incident);
}

void Ledger::Restarting(IncidentKind kind, const std::string& text, int64_t at_ns, int64_t now_ns) {
  SetNow(now_ns);
  Hear(at_ns);
  if (phase().kind == Phase::Kind::kRestart) {
    // The first rank that failed has been reported already; the launcher knows more about the reason.
    if (Incident* incident = FindIncident(phase().incident);
        incident != nullptr && incident->kind != IncidentKind::kHang) {
      incident->kind = kind == IncidentKind::kNodeLost ? kind : incident->kind;
      if (!text.empty()) incident->text = OneLine(text);
    }
    return;
  }
  if (!phase().runs()) return;
  const uint64_t hang = hangs_ ? spans_.back().incident : 0;
  const uint64_t incident = hang != 0 ? hang : AddIncident(kind, Clamp(at_ns), {}, {}, text);
  EndSpan(Clamp(at_ns));
  Begin(Phase::Kind::kRestart, at_ns, incident);
}

void Ledger::Ended(int code, const std::string& text, int64_t at_ns, int64_t now_ns, IncidentKind next) {
  SetNow(now_ns);
  Hear(at_ns);
  if (ended()) return;
  next_ = next;
  // The job has run until its last step.
  for (const Slot& slot : slots_) at_ns = std::max(at_ns, slot.exists ? slot.cursor_ns : at_ns);
  EndSpan(Clamp(at_ns));
  Phase& end = Begin(Phase::Kind::kEnded, at_ns, phase().incident);
  end.failed = code != 0;
  attempts_.back().until_ns = end.begin_ns + unix_offset_ns_;
  attempts_.back().slots = live_;
  attempts_.back().outcome = code == 0 ? "ended" : OneLine(absl::StrCat("code ", code, text.empty() ? "" : ": ", text));
}

// ---- Spans

void Ledger::Hang(int64_t since_ns, const std::vector<int>& ranks, const std::string& text, int64_t now_ns) {
  SetNow(now_ns);
  if (hangs_ || !phase().runs()) return;
  for (const Slot& slot : slots_) since_ns = std::max(since_ns, slot.exists && slot.steps ? slot.cursor_ns : since_ns);
  const int64_t begin = Clamp(since_ns);
  spans_.push_back({begin, kNever, Category::kHang, AddIncident(IncidentKind::kHang, begin, ranks, {}, text)});
  hangs_ = true;
  if (spans_.size() > kMaxSpans) spans_.pop_front();
}

void Ledger::EndSpan(int64_t at_ns) {
  if (!std::exchange(hangs_, false)) return;
  spans_.back().end_ns = std::max(at_ns, spans_.back().begin_ns);
}

void Ledger::Resumed(int64_t at_ns, int64_t now_ns) {
  SetNow(now_ns);
  EndSpan(Clamp(at_ns));
}

void Ledger::Suspended(int rank, int64_t begin_ns, int64_t end_ns, int64_t now_ns) {
  SetNow(now_ns);
  Slot* slot = Find(rank);
  if (slot == nullptr) return;
  end_ns = std::min(end_ns, now_ns_);
  begin_ns = std::max(begin_ns, slot->cursor_ns);
  if (!slot->stops.empty()) {
    Stop& last = slot->stops.back();
    if (begin_ns <= last.end_ns + kStopSlackNs) {  // the suspension goes on
      last.end_ns = std::max(last.end_ns, end_ns);
      return;
    }
  }
  if (end_ns <= begin_ns) return;
  if (slot->stops.size() == kMaxStops) slot->stops.erase(slot->stops.begin());
  slot->stops.push_back({begin_ns, end_ns});
}

void Ledger::MoveCursor(Slot& slot, int64_t to_ns) {
  slot.cursor_ns = to_ns;
  if (!slot.seen_ns.empty()) std::erase_if(slot.seen_ns, [&](int64_t seen_ns) { return seen_ns < to_ns; });
  if (!slot.stops.empty()) std::erase_if(slot.stops, [&](const Stop& stop) { return stop.end_ns <= to_ns; });
}

void Ledger::SetStepsOn(bool on, int64_t now_ns) {
  SetNow(now_ns);
  const bool is_off = !off_.empty() && off_.back().end_ns == kNever;
  if (on == !is_off) return;
  if (on) {
    off_.back().end_ns = now_ns_;
  } else {
    off_.push_back({now_ns_, kNever, Category::kUnmarked, 0});
    if (off_.size() > kMaxSpans) off_.pop_front();
  }
}

bool Ledger::lacks_marks() const {
  const Phase* running = &phase();
  if (ended() && phases_.size() > 1) running = &phases_[phases_.size() - 2];
  if (running->kind != Phase::Kind::kRunning || first_seen_ns_ != INT64_MAX) return false;
  const int64_t on_ns = off_.empty() ? running->begin_ns : std::max(running->begin_ns, off_.back().end_ns);
  return (ended() ? phase().begin_ns : now_ns_) - (ended() ? kMarksCameNs : kMarksComeNs) >= on_ns;
}

// ---- Ranks

void Ledger::Seen(int rank, bool here, int64_t at_ns, int64_t now_ns) {
  SetNow(now_ns);
  Slot* slot = Find(rank);
  if (slot == nullptr) return;
  std::vector<int64_t>& seen = slot->seen_ns;
  // Without reports of starts, this may be another process.
  const bool told = phase().kind != Phase::Kind::kAlone && !phase().guessed;
  if (!here) {
    if (!told && !slot->steps) seen.clear();
    return;
  }
  const bool again = !seen.empty() && seen.back() >= phase().begin_ns;
  if (again && (told || !slot->steps)) return;
  if (again) seen.pop_back();
  if (seen.size() == kMaxSeen) seen.erase(seen.begin());
  seen.push_back(Clamp(at_ns));
  first_seen_ns_ = std::min(first_seen_ns_, seen.back());
}

int64_t Ledger::SeenIn(const Slot& slot, int64_t begin_ns, int64_t end_ns) {
  const auto found = std::lower_bound(slot.seen_ns.begin(), slot.seen_ns.end(), begin_ns);
  return found == slot.seen_ns.end() || *found > end_ns ? -1 : *found;
}

int64_t Ledger::OffsetOf(const Slot& slot, const StepFold& fold) const {
  const int64_t by_arrival = now_ns_ - static_cast<int64_t>(fold.end_ns);
  if (slot.last_step >= 0 && slot.process_id == fold.process_id) return std::min(slot.offset_ns, by_arrival);
  const int64_t delay_ns = by_arrival + unix_offset_ns_;  // valid if the stamps are this machine's Unix time
  return delay_ns >= 0 && delay_ns <= kMostDelayNs ? -unix_offset_ns_ : by_arrival;
}

int64_t Ledger::BaseOf(const StepFold& fold, bool follows) {
  if (follows) return base_;  // the process goes on under a new manager, or its first steps were lost
  if (phase().base >= 0) return phase().base;
  if (fold.step == 0 && (counted_ns_ == INT64_MIN || now_ns_ - counted_ns_ >= kCountEveryNs)) {
    counted_ns_ = now_ns_;
    saved_now_ = saved_step();
  }
  const int64_t base = fold.step == 0 ? std::max<int64_t>(saved_now_, 0) : 0;
  // all processes of a phase begin at the same step
  if (phase().kind == Phase::Kind::kRunning) phases_.back().base = base;
  return base;
}

void Ledger::Step(int rank, const StepFold& fold, int64_t now_ns) {
  SetNow(now_ns);
  if (fold.step < 0 || fold.step > kMostStep || fold.start_ns > fold.end_ns || fold.end_ns >> 62 != 0) return;
  Slot* found = Find(rank);
  if (found == nullptr) return;
  Slot& slot = *found;
  const bool is_new = slot.last_step < 0 || slot.process_id != fold.process_id;
  const int64_t offset_ns = OffsetOf(slot, fold);
  const int64_t most_ns = ended() ? phase().begin_ns : now_ns_;
  const int64_t end_ns = std::min(static_cast<int64_t>(fold.end_ns) + offset_ns, most_ns);
  const int64_t start_ns = end_ns - static_cast<int64_t>(fold.end_ns - fold.start_ns);
  const bool follows = fold.previous_end_ns != 0 && fold.previous_end_ns < fold.end_ns;
  int64_t begin_ns = follows ? end_ns - static_cast<int64_t>(fold.end_ns - fold.previous_end_ns) : start_ns;
  const int64_t base = is_new ? BaseOf(fold, follows) : slot.base;
  const int64_t number = fold.step + base;
  has_steps_ = true;
  if (fold.checkpoints > 0) slot.saved_step = std::max(slot.saved_step, number);
  if (end_ns <= slot.cursor_ns) {  // the step is closed already, or arrived twice
    if (!is_new) slot.last_step = std::max(slot.last_step, number);
    return;
  }
  first_seen_ns_ = std::min(first_seen_ns_, std::max(begin_ns, phases_.front().begin_ns));
  std::erase_if(slot.stops, [&](const Stop& stop) {
    return stop.begin_ns + kStopSlackNs < end_ns && end_ns < stop.end_ns - kStopSlackNs;
  });
  if (is_new) {
    Close(slot, std::clamp(begin_ns, slot.cursor_ns, end_ns));  // hands over the time of the former process
    // A process that goes on under a new manager has done its former steps itself.
    slot.done_until = follows && resumed_ && slot.last_step < 0 ? -1 : std::max(slot.done_until, slot.last_step);
    slot.process_id = fold.process_id;
    slot.last_step = -1;
    slot.base = base_ = base;
  }
  const bool redone = number <= slot.done_until;
  slot.last_step = std::max(slot.last_step, number);
  slot.offset_ns = offset_ns;

  if (!is_new && begin_ns > slot.cursor_ns + kNoGapNs) {
    // The steps in between were not marked, or were lost on the way.
    Cut(slot, slot.cursor_ns, begin_ns, Category::kUnmarked, 0, false, closed_);
    MoveCursor(slot, begin_ns);
  }
  begin_ns = slot.cursor_ns;
  for (auto it = phases_.rbegin(); it != phases_.rend(); ++it) {
    if (it->begin_ns > end_ns && std::next(it) != phases_.rend()) continue;
    // Without reports of starts, saves of a former process were booked in this phase, too.
    if (is_new && (it->kind == Phase::Kind::kAlone || it->guessed)) it->saved_in = -1;
    it->first_step_ns = std::min(it->first_step_ns, std::max(start_ns, it->begin_ns));
    RankStep step;
    step.rank = rank;
    step.step = number;
    step.named = fold.step;
    step.first = is_new && !follows;
    step.redone = redone;
    step.incident = it->incident;
    step.rank_s = ToSeconds(CutStep(slot, begin_ns, end_ns, closed_));
    step.data_s = PartSeconds(fold.dataloader_own_ns, step.rank_s);
    step.checkpoint_s = PartSeconds(fold.checkpoint_own_ns, step.rank_s);
    int64_t between_ns = follows ? std::max<int64_t>(start_ns - begin_ns, 0) : 0;
    if (between_ns > kNoGapNs) {
      Tally taken;  // suspensions and spans, which closed_ has already
      between_ns = CutStep(slot, begin_ns, start_ns, taken);
    }
    step.between_s = std::clamp(ToSeconds(between_ns) - step.data_s - step.checkpoint_s, 0.0, step.rank_s);
    if (fold.covered_ns > 0) {
      const double communication_s = ToSeconds(static_cast<int64_t>(fold.covered_ns));
      step.alone_s = std::max(0.0, step.rank_s - communication_s - step.data_s - step.checkpoint_s);
      for (const OpFold& op : fold.ops) {
        if (op.op == CommOp::kBarrier) step.barrier_s += PartSeconds(op.duration_ns, step.rank_s);
      }
    }
    if (step.rank_s > 0) book_.Add(step, now_ns_);
    break;
  }
  MoveCursor(slot, end_ns);
  slot.steps = true;
}

void Ledger::Saved(int rank, const SavedInStep& saved, int64_t now_ns) {
  SetNow(now_ns);
  Slot* slot = Find(rank);
  if (slot == nullptr || !slot->steps || saved.step < 0 || saved.step > kMostStep) return;
  const int64_t number = saved.step + slot->base;
  if (number <= slot->last_step) return;  // the step has ended meanwhile, or belongs to another process
  slot->saved_step = std::max(slot->saved_step, number);
  for (auto phase = phases_.rbegin(); phase != phases_.rend(); ++phase) {
    if (!phase->runs() || phase->begin_ns > slot->cursor_ns) continue;
    const int64_t saved_ns = static_cast<int64_t>(std::min<uint64_t>(saved.ns, INT64_MAX));
    phase->saved_ns = phase->saved_in == number ? std::max(phase->saved_ns, saved_ns) : saved_ns;
    phase->saved_in = number;
    return;
  }
}

void Ledger::SetStragglers(const std::vector<Straggler>& stragglers, int64_t now_ns) {
  HearStragglers(stragglers, base_, now_ns);
}

void Ledger::HearStragglers(const std::vector<Straggler>& stragglers, int64_t base, int64_t now_ns) {
  SetNow(now_ns);
  std::vector<StragglerCost> costs;
  std::map<uint64_t, VerdictSeen> known;
  // Known verdicts stay: their steps may be open, and a cleared verdict may open again.
  size_t all = 0;
  for (const Straggler& straggler : stragglers) all += verdicts_.count(straggler.cost.verdict);
  for (const Straggler& straggler : stragglers) {
    if (!(straggler.cost.cost_s > 0)) continue;
    const uint64_t verdict = straggler.cost.verdict;
    const auto found = verdicts_.find(verdict);
    if (found == verdicts_.end()) {
      // The cost of a verdict that was cleared before it was received is unknown.
      if (!straggler.cost.open || all >= StepBook::kMaxCosts) continue;
      ++all;
    }
    VerdictSeen& seen = known[verdict];
    if (found != verdicts_.end()) {
      seen = found->second;
    } else {
      const bool has_come = base < 0 && straggler.since_ns > 0;
      seen.incident = AddIncident(IncidentKind::kStraggler, has_come ? straggler.since_ns - unix_offset_ns_ : now_ns_,
                                  straggler.ranks, straggler.nodes, straggler.text);
      seen.base = base;
    }
    if (Incident* of = FindIncident(seen.incident)) {
      of->text = OneLine(straggler.text);
      of->ranks = straggler.ranks;
      of->nodes = straggler.nodes;
      CutNames(*of);
    }
    costs.push_back(straggler.cost);
    costs.back().incident = seen.incident;
    costs.back().base = seen.base;
  }
  verdicts_ = std::move(known);
  book_.SetCosts(std::move(costs));
}

void Ledger::SetKnownStragglers(const std::vector<Straggler>& stragglers, int64_t now_ns) {
  std::vector<Straggler> open = stragglers;
  for (Straggler& one : open) one.cost.open = true;
  HearStragglers(open, -1, now_ns);
  HearStragglers(stragglers, -1, now_ns);
}

// ---- Closing

void Ledger::SettlePhases() {
  // While the number of ranks is unknown, the phases since the job's begin stay open for ranks that appear later.
  const int64_t patience_ns = !sized_ && round_ <= 0 && !ended() && !resumed_ ? kGatherNs : kGraceNs;
  while (phases_.size() > 1 && now_ns_ - phases_[1].begin_ns >= patience_ns) {
    const int64_t end = phases_[1].begin_ns;
    for (Slot& slot : slots_) {
      if (slot.exists && slot.cursor_ns < end) Close(slot, end);
    }
    phases_.pop_front();
  }
}

void Ledger::CollectClosed() {
  for (const auto& [number, seconds] : closed_.incidents) {
    if (number == kBegin) AddTo(begin_, seconds);
    if (Incident* incident = FindIncident(number)) AddTo(incident->seconds, seconds);
  }
  closed_.incidents.clear();
}

void Ledger::Advance(int64_t now_ns) {
  SetNow(now_ns);
  SettlePhases();
  book_.Close(now_ns_, closed_);
  CollectClosed();
}

// ---- Incidents

uint64_t Ledger::AddIncident(IncidentKind kind, int64_t at_ns, std::vector<int> ranks, std::vector<int> nodes,
                             std::string text) {
  Incident incident;
  incident.number = next_incident_++;
  incident.time_ns = at_ns + unix_offset_ns_;
  incident.kind = kind;
  incident.ranks = std::move(ranks);
  incident.nodes = std::move(nodes);
  CutNames(incident);
  incident.text = OneLine(std::move(text));
  incidents_.push_back(std::move(incident));
  TrimIncidents();
  return incidents_.back().number;
}

void Ledger::TrimIncidents() {
  while (former_.size() + incidents_.size() > Report::kMaxIncidents) {
    std::deque<Incident>& oldest_of = former_.empty() ? incidents_ : former_;
    if (former_.empty()) CollectClosed();
    const Incident& oldest = oldest_of.front();
    ++older_.counts[static_cast<size_t>(oldest.kind)];
    AddTo(older_.seconds[static_cast<size_t>(oldest.kind)], oldest.seconds);
    oldest_of.pop_front();
  }
}

Incident* Ledger::FindIncident(uint64_t number) {
  if (incidents_.empty() || number < incidents_.front().number || number > incidents_.back().number) return nullptr;
  return &incidents_[static_cast<size_t>(number - incidents_.front().number)];
}

// ---- Out

Report Ledger::report() const {
  Report report;
  const int64_t until = ended() ? phase().begin_ns : now_ns_;
  report.since_ns = since_ns_ + unix_offset_ns_;
  report.until_ns = until + unix_offset_ns_;
  report.slots = live_;
  report.closed = closed_.seconds;
  Tally open;
  report.rank_s = retired_s_;
  for (const Slot& slot : slots_) {
    if (!slot.exists) continue;
    report.rank_s += ToSeconds(std::max(until, slot.cursor_ns) - slot.born_ns);
    Attribute(slot, until, Tail::kOpen, open);
  }
  book_.AddOpen(open);
  report.provisional = open.seconds;
  report.attempts = attempts_;
  report.incidents.assign(former_.begin(), former_.end());
  report.incidents.insert(report.incidents.end(), incidents_.begin(), incidents_.end());
  report.older = older_;
  const size_t own = former_.size();  // where the incidents of this ledger begin
  const uint64_t first = incidents_.empty() ? 0 : incidents_.front().number;
  const bool begin_shown = begin_shown_ && own > 0;
  if (begin_shown) AddTo(report.incidents[own - 1].seconds, begin_);
  auto add = [&](const std::map<uint64_t, Seconds>& of) {
    for (const auto& [number, seconds] : of) {
      if (number == kBegin && begin_shown) AddTo(report.incidents[own - 1].seconds, seconds);
      if (number < first || number - first >= incidents_.size()) continue;
      AddTo(report.incidents[own + static_cast<size_t>(number - first)].seconds, seconds);
    }
  };
  add(closed_.incidents);
  add(open.incidents);
  report.waited_for = closed_.waited_for;
  for (const auto& [rank, rank_s] : open.waited_for) report.waited_for[rank] += rank_s;
  report.measured = measured_;
  report.measured.checkpoints += closed_.checkpoints + open.checkpoints;
  report.measured.checkpoint_s += closed_.checkpoint_s + open.checkpoint_s;
  if (!resumed_) {
    for (size_t i = own; i < report.incidents.size(); ++i) report.incidents[i].number += shift_ - kBegin;
  }
  report.advice = AdviceOf(report);
  return report;
}

}  // namespace taskd::ledger
