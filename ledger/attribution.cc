// Attributes a slot's time between its cursor and a later moment to categories.
#include <algorithm>

#include "ledger/ledger.h"

namespace taskd::ledger {
namespace {

constexpr double kLongestS = 1e8;  // upper limit of a duration; its ns fit into int64_t

}  // namespace

template <typename Rest>
void Ledger::CutStops(const Slot& slot, int64_t begin_ns, int64_t end_ns, Tally& into, const Rest& rest) {
  int64_t at = begin_ns;
  for (const Stop& stop : slot.stops) {
    const int64_t from = std::max(at, stop.begin_ns), to = std::min(end_ns, stop.end_ns);
    if (to <= from) continue;
    rest(at, from);
    into.Add(Category::kSuspended, ToSeconds(to - from), 0);
    at = to;
  }
  rest(at, end_ns);
}

void Ledger::Cut(const Slot& slot, int64_t begin_ns, int64_t end_ns, Category category, uint64_t incident,
                 bool unless_off, Tally& into) const {
  CutStops(slot, begin_ns, end_ns, into,
           [&](int64_t from, int64_t to) { CutSpans(from, to, category, incident, unless_off, into); });
}

int64_t Ledger::CutStep(const Slot& slot, int64_t begin_ns, int64_t end_ns, Tally& into) const {
  int64_t left = 0;
  CutStops(slot, begin_ns, end_ns, into, [&](int64_t from, int64_t to) { left += CutStepSpans(from, to, into); });
  return left;
}

void Ledger::CutSpans(int64_t begin_ns, int64_t end_ns, Category category, uint64_t incident, bool unless_off,
                      Tally& into) const {
  int64_t at = begin_ns;
  auto rest = [&](int64_t from, int64_t to) {
    if (to <= from) return;
    int64_t unmarked = 0;
    for (const Span& off : off_) {
      if (unless_off) unmarked += std::max<int64_t>(0, std::min(to, off.end_ns) - std::max(from, off.begin_ns));
    }
    into.Add(Category::kUnmarked, ToSeconds(unmarked), 0);
    into.Add(category, ToSeconds(to - from - unmarked), incident);
  };
  for (const Span& span : spans_) {
    const int64_t from = std::max(at, span.begin_ns), to = std::min(end_ns, span.end_ns);
    if (to <= from) continue;
    rest(at, from);
    into.Add(span.category, ToSeconds(to - from), span.incident);
    at = to;
  }
  rest(at, end_ns);
}

int64_t Ledger::CutStepSpans(int64_t begin_ns, int64_t end_ns, Tally& into) const {
  int64_t at = begin_ns, left = end_ns - begin_ns;
  for (const Span& span : spans_) {
    const int64_t from = std::max(at, span.begin_ns), to = std::min(end_ns, span.end_ns);
    if (to <= from) continue;
    into.Add(span.category, ToSeconds(to - from), span.incident);
    left -= to - from;
    at = to;
  }
  return left;
}

// Attributes the time after the last step of a process.
void Ledger::AttributeTail(const Slot& slot, const Phase& phase, int64_t begin_ns, int64_t end_ns, bool over,
                           bool failed, uint64_t incident, Tally& into) const {
  if (slot.last_step < phase.saved_in) {
    // All ranks wait for the rank that saves.
    const int64_t saved_ns = begin_ns + std::min(phase.saved_ns, end_ns - begin_ns);
    Cut(slot, begin_ns, saved_ns, Category::kCheckpoint, 0, true, into);
    begin_ns = saved_ns;
  }
  const double usual_s = book_.usual_s();
  const auto odd_ns = static_cast<int64_t>(std::min(StepBook::kOdd * usual_s, kLongestS) * 1e9);
  if (over && !failed) return Cut(slot, begin_ns, end_ns, Category::kOther, 0, true, into);
  // This is the step under way. It is redone if its process has ended.
  const int64_t late_ns = over ? odd_ns : odd_ns + kLateNs;
  int64_t stopped_ns = 0;
  for (const Stop& stop : slot.stops) {
    stopped_ns += std::max<int64_t>(0, std::min(end_ns, stop.end_ns) - std::max(begin_ns, stop.begin_ns));
  }
  const int64_t known_ns = std::min(end_ns, begin_ns + late_ns + stopped_ns);
  const bool again = over || slot.last_step < slot.done_until;
  Cut(slot, begin_ns, known_ns, again ? Category::kRedone : Category::kProductive, again ? incident : 0, true, into);
  Cut(slot, known_ns, end_ns, Category::kUnknown, 0, true, into);
}

void Ledger::AttributeRunning(const Slot& slot, const Phase& phase, int64_t begin_ns, int64_t end_ns, const Phase* next,
                              Tail tail, Tally& into) const {
  if (slot.steps && begin_ns == slot.cursor_ns) {
    const bool over = next != nullptr || tail == Tail::kOver;
    if (phase.kind == Phase::Kind::kRunning || next != nullptr || !over) {
      const bool failed = next == nullptr || next->kind != Phase::Kind::kEnded || next->failed;
      return AttributeTail(slot, phase, begin_ns, end_ns, over, failed,
                           next != nullptr ? next->incident : phase.incident, into);
    }
    // Another process has replaced it, and no launcher has reported why.
    const int64_t first = SeenIn(slot, begin_ns, end_ns);
    const int64_t seen = first < 0 ? end_ns : first;
    Cut(slot, begin_ns, seen, Category::kUnknown, 0, true, into);
    return Cut(slot, seen, end_ns, Category::kLinkUp, phase.incident, true, into);
  }
  const bool launched = phase.kind == Phase::Kind::kRunning;
  if (phase.kind == Phase::Kind::kResumed) return Cut(slot, begin_ns, end_ns, Category::kUnknown, 0, true, into);
  int64_t at = begin_ns;
  auto until = [&](int64_t to, Category category, bool unless_off = true) {
    to = std::clamp(to, at, end_ns);
    Cut(slot, at, to, category, category == Category::kUnknown ? 0 : phase.incident, unless_off, into);
    at = to;
  };
  const int64_t seen_ns = SeenIn(slot, phase.begin_ns, end_ns);
  const bool seen = seen_ns >= 0;
  // A rank without a step, while other ranks end steps, does not mark its steps.
  const int64_t trains = tail == Tail::kOpen || next != nullptr ? phase.first_step_ns : kNever;
  const int64_t launch = std::min(seen ? seen_ns : kNever, phase.begin_ns + kMostLaunchNs);
  // A process that ended well has done more than start and link up.
  const bool ended_well = next != nullptr && next->kind == Phase::Kind::kEnded && !next->failed;
  const bool proven =
      seen || (!ended_well && (first_seen_ns_ <= end_ns || end_ns - phase.begin_ns <= kUnprovenLaunchNs));
  // An observed process has launched for certain. A long run without marks may have been training.
  const Category before_seen = launched && proven ? Category::kLaunch : Category::kUnknown;
  if (seen) until(std::min({launch, trains, phase.begin_ns + kUnprovenLaunchNs}), before_seen, false);
  until(std::min(launch, trains), before_seen);
  const int64_t most_link_up_ns = !has_steps_ ? kUnprovenLinkUpNs : kMostLinkUpNs;
  const Category before_steps = ended_well && trains == kNever ? Category::kUnknown : Category::kLinkUp;
  if (seen) until(std::min(seen_ns + most_link_up_ns, trains), before_steps);
  until(end_ns, trains < end_ns ? Category::kUnmarked : Category::kUnknown);
}

void Ledger::Attribute(const Slot& slot, int64_t until_ns, Tail tail, Tally& into) const {
  for (size_t i = 0; i < phases_.size(); ++i) {
    const Phase& one = phases_[i];
    const bool last = i + 1 == phases_.size();
    const int64_t begin = std::max(one.begin_ns, slot.cursor_ns);
    const int64_t phase_end = last ? kNever : phases_[i + 1].begin_ns;
    const int64_t end = std::min(until_ns, phase_end);
    if (end <= begin) continue;
    switch (one.kind) {
      case Phase::Kind::kWaiting:
        into.Add(Category::kWaiting, ToSeconds(end - begin), one.incident);
        break;
      case Phase::Kind::kRestart:
        into.Add(Category::kRestart, ToSeconds(end - begin), one.incident);
        break;
      case Phase::Kind::kQueue:
        into.Add(Category::kQueue, ToSeconds(end - begin), one.incident);
        break;
      case Phase::Kind::kEnded:
        into.Add(Category::kUnknown, ToSeconds(end - begin), 0);
        break;
      default:
        AttributeRunning(slot, one, begin, end, phase_end <= until_ns ? &phases_[i + 1] : nullptr, tail, into);
    }
  }
}

void Ledger::Close(Slot& slot, int64_t until_ns) {
  if (until_ns > slot.cursor_ns) {
    Attribute(slot, until_ns, Tail::kOver, closed_);
    MoveCursor(slot, until_ns);
  }
  slot.steps = false;
}

}  // namespace taskd::ledger
