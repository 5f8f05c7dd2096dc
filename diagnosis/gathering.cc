#include "diagnosis/gathering.h"

#include <algorithm>
#include <iterator>

namespace taskd::diagnosis {
namespace {

constexpr size_t kMaxSteps = 64;          // that wait for their last ranks though most have reached them
constexpr size_t kMaxStepsOfRank = 1024;  // that wait: what comes at once after a pause
// So much of what may wait is for whoever comes. Above it steps wait no longer, and who has more than its share of the
// rest waits with no more.
constexpr size_t kCrowdedBytes = Gathering::kMaxBytes / 3 * 2;
constexpr int kSilentSteps = 3;  // a rank that misses so many in a row is not waited for

size_t BytesOf(const StepFold& fold) {
  return sizeof(Gathering::Folds::value_type) + fold.ops.capacity() * sizeof(OpFold) +
         fold.samples.capacity() * sizeof(OpSample);
}

Gathering::Folds::iterator Find(int rank, Gathering::Folds& folds) {
  return std::find_if(folds.begin(), folds.end(), [rank](const auto& entry) { return entry.first == rank; });
}

}  // namespace

void Gathering::Hear(int rank) { Touch(rank); }

void Gathering::Remove(int rank) {
  if (!IsKnown(rank)) return;
  ranks_[static_cast<size_t>(rank)].gone = true;
  progress_.Remove(rank);
  SetLive(rank, false);
}

const StepFold* Gathering::Add(int rank, StepFold fold, uint64_t now_ns) {
  Rank& state = Touch(rank);
  state.gone = false;
  const Position position = progress_.Add(rank, fold.process_id, fold.step, now_ns);
  MoveTo(rank, position);
  state.unused = true;
  if (position <= taken_ && IsTakenTooFar()) taken_ = {progress_.reached().life, progress_.reached().step - 1};
  if (position <= taken_) {
    // That step was taken without it; until it has caught up it is nobody to wait for.
    SetLive(rank, false);
    return nullptr;
  }
  if (!state.live) SetLive(rank, true);
  if (!MayWait(state, position, BytesOf(fold))) return nullptr;
  state.unused = false;
  return Wait(rank, position, std::move(fold), now_ns);
}

bool Gathering::IsDue(uint64_t now_ns) {
  if (waiting_.empty()) return false;
  const auto& [position, bucket] = *waiting_.begin();
  if (bucket.passed >= live_) return true;
  const bool late = now_ns > bucket.first_ns + deadline_ns_;
  if (!late && waiting_.size() <= kMaxSteps && bytes_ <= kCrowdedBytes) return false;
  progress_.Count(now_ns);
  // Not the step of a few.
  return position <= progress_.reached() && (late || IsCrowded());
}

Gathering::Step Gathering::Take() {
  const auto first = waiting_.begin();
  Step step;
  step.at = first->first;
  step.folds = std::move(first->second.folds);
  waiting_.erase(first);
  ++steps_;
  step.restarted = IsRestarted(step.folds);
  step.next_life = taken_.life >= 0 && step.at.life != taken_.life;
  taken_ = step.at;
  CountMissing();
  return step;
}

void Gathering::GiveBack(Folds folds) {
  folds.clear();
  spare_ = std::move(folds);
}

std::vector<int> Gathering::SilentBefore(const Position& position) const {
  std::vector<int> silent;
  for (int rank = 0; rank < size(); ++rank) {
    const Rank& state = ranks_[static_cast<size_t>(rank)];
    if (state.heard && !state.live && state.at < position) silent.push_back(rank);
  }
  return silent;
}

std::vector<int> Gathering::FarAhead() const {
  std::vector<int> ahead;
  for (int rank = 0; rank < size(); ++rank) {
    if (!IsGone(rank) && progress_.IsFarAhead(at(rank))) ahead.push_back(rank);
  }
  return ahead;
}

bool Gathering::MostAreUnused() const {
  size_t reporting = 0, unused = 0;
  for (const Rank& rank : ranks_) {
    if (rank.gone || rank.at.life < 0) continue;
    ++reporting;
    unused += rank.unused ? 1 : 0;
  }
  return unused * 2 > reporting;
}

Gathering::Rank& Gathering::Touch(int rank) {
  if (!IsKnown(rank)) ranks_.resize(static_cast<size_t>(rank) + 1);
  Rank& state = ranks_[static_cast<size_t>(rank)];
  if (!state.heard) {
    state.heard = true;
    SetLive(rank, true);
  }
  return state;
}

void Gathering::SetLive(int rank, bool live) {
  Rank& state = ranks_[static_cast<size_t>(rank)];
  if (state.live == live) return;
  state.live = live;
  state.missed = 0;
  live_ += live ? 1 : static_cast<size_t>(-1);
  for (auto& [position, bucket] : waiting_) {
    if (state.at >= position) bucket.passed += live ? 1 : static_cast<size_t>(-1);
  }
}

// What the rank says now: it may be less than before.
void Gathering::MoveTo(int rank, Position position) {
  Rank& state = ranks_[static_cast<size_t>(rank)];
  const auto [low, high] = std::minmax(state.at, position);
  for (auto it = waiting_.upper_bound(low); state.live && it != waiting_.end() && it->first <= high; ++it) {
    it->second.passed += position > state.at ? 1 : static_cast<size_t>(-1);
  }
  state.at = position;
  if (state.waiting == 0 || state.newest_waiting <= position) return;
  // Those steps are none of its own any more.
  for (auto bucket = waiting_.upper_bound(position); bucket != waiting_.end();) {
    Withdraw(rank, bucket->second.folds);
    bucket = bucket->second.folds.empty() ? waiting_.erase(bucket) : std::next(bucket);
  }
  const auto same = waiting_.find(position);
  const bool has_it = same != waiting_.end() && Find(rank, same->second.folds) != same->second.folds.end();
  state.newest_waiting = has_it ? position : Position();
  state.withdrawn_at = steps_ + 1;
}

void Gathering::Withdraw(int rank, Folds& folds) {
  const auto found = Find(rank, folds);
  if (found == folds.end()) return;
  Release(ranks_[static_cast<size_t>(rank)], found->second);
  folds.erase(found);
}

void Gathering::Release(Rank& state, const StepFold& fold) {
  const size_t bytes = BytesOf(fold);
  --state.waiting;
  state.waiting_bytes -= bytes;
  bytes_ -= bytes;
}

// A step that others did not reach was taken while they were silent: they are not late, it was too early.
bool Gathering::IsTakenTooFar() const { return progress_.reached().life >= 0 && progress_.reached() < taken_; }

// One fold of each rank and step, and of each rank no more than its share.
bool Gathering::MayWait(const Rank& state, Position position, size_t bytes) const {
  if (state.waiting > 0 && state.newest_waiting == position) return false;
  if (state.waiting >= kMaxStepsOfRank || state.withdrawn_at == steps_ + 1) return false;
  return bytes_ + bytes <= kCrowdedBytes || state.waiting_bytes + bytes <= (kMaxBytes - kCrowdedBytes) / ranks_.size();
}

const StepFold* Gathering::Wait(int rank, Position position, StepFold fold, uint64_t now_ns) {
  auto [found, added] = waiting_.try_emplace(position);
  Bucket& bucket = found->second;
  if (added) {
    bucket.folds.swap(spare_);
    bucket.first_ns = now_ns;
    for (const Rank& other : ranks_) bucket.passed += other.live && other.at >= position ? 1 : 0;
  }
  Rank& state = ranks_[static_cast<size_t>(rank)];
  ++state.waiting;
  state.newest_waiting = position;
  const size_t bytes = BytesOf(fold);
  state.waiting_bytes += bytes;
  bytes_ += bytes;
  return &bucket.folds.emplace_back(rank, std::move(fold)).second;
}

// Too many steps wait that most ranks have reached, or they hold too much.
bool Gathering::IsCrowded() const {
  if (bytes_ > kCrowdedBytes) return true;
  return waiting_.size() > kMaxSteps && std::next(waiting_.begin(), kMaxSteps)->first <= progress_.reached();
}

// Most ranks of a step that is taken are other processes than in the step before.
bool Gathering::IsRestarted(const Folds& folds) {
  size_t renewed = 0;
  for (const auto& [rank, fold] : folds) {
    Rank& state = ranks_[static_cast<size_t>(rank)];
    Release(state, fold);
    renewed += state.process_id != 0 && state.process_id != fold.process_id ? 1 : 0;
    state.process_id = fold.process_id;
  }
  return renewed * 2 > folds.size();
}

// After a step was taken: whoever has not reached the last few is not waited for.
void Gathering::CountMissing() {
  for (int rank = 0; rank < size(); ++rank) {
    Rank& state = ranks_[static_cast<size_t>(rank)];
    if (!state.live) continue;
    state.missed = state.at >= taken_ ? 0 : state.missed + 1;
    if (state.missed >= kSilentSteps) SetLive(rank, false);
  }
}

}  // namespace taskd::diagnosis
