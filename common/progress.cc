#include "common/progress.h"

#include <algorithm>

#include "common/median.h"

namespace taskd {
namespace {

constexpr uint64_t kCountEveryNs = 1'000'000'000;
constexpr size_t kCountsPerStep = 2;
constexpr uint64_t kPatientIntervals = 4;
// What the end of an old life may still send; then it is no end.
constexpr uint8_t kStragglers = 3;

}  // namespace

bool Progress::IsSilent(const Rank& rank, uint64_t now_ns) const {
  return now_ns > rank.last_ns && now_ns - rank.last_ns > patience_ns_;
}

int Progress::LifeOf(Rank& rank, uint32_t process_id, int64_t step, uint64_t now_ns) const {
  if (rank.life < 0) return is_restarting() && step <= reached_.step ? life() + 1 : life();
  const bool renewed = process_id != rank.process_id;
  if ((renewed ? step <= rank.step : step < rank.step) &&
      !IsBeyond({rank.life, rank.step}, std::max<int64_t>(1, stride_))) {
    rank.behind = 0;
    rank.left_ns = now_ns;
    rank.left = reached_;
    return std::clamp(rank.life + 1, life(), life() + 1);
  }
  if (rank.life < life()) {
    if (!renewed && ++rank.behind <= kStragglers) return rank.life;
    rank.behind = 0;
    return life();
  }
  const bool alone = rank.life > life() && now_ns - rank.left_ns > kAloneNs && reached_ > rank.left;
  return alone ? life() : rank.life;
}

Progress::Position Progress::Add(int rank, uint32_t process_id, int64_t step, uint64_t now_ns) {
  const auto index = static_cast<size_t>(rank);
  if (index >= ranks_.size()) ranks_.resize(index + 1);
  Rank& state = ranks_[index];
  if (state.life >= 0 && now_ns > state.last_ns) state.interval_ns = now_ns - state.last_ns;
  state.life = LifeOf(state, process_id, step, now_ns);
  state.process_id = process_id;
  state.has_voice = true;
  state.last_ns = now_ns;
  const Position at = state.at = {state.life, step};
  ++reports_;
  const bool often = reports_ * kCountsPerStep >= voices_;
  if (often || now_ns - counted_ns_ >= kCountEveryNs) Count(now_ns);
  if (!IsFarAhead(at)) state.step = step;
  return at;
}

void Progress::Remove(int rank) {
  const auto index = static_cast<size_t>(rank);
  if (index >= ranks_.size()) return;
  ranks_[index].has_voice = false;
  ++reports_;
}

void Progress::Count(uint64_t now_ns) {
  if (reports_ == 0 && now_ns - counted_ns_ < kCountEveryNs) return;
  reports_ = 0;
  counted_ns_ = now_ns;
  positions_.clear();
  intervals_.clear();
  for (const Rank& rank : ranks_) {
    if (!rank.has_voice || IsSilent(rank, now_ns)) continue;
    positions_.push_back(rank.at);
    intervals_.push_back(rank.interval_ns);
  }
  voices_ = positions_.size();
  if (positions_.empty()) return;
  const Position before = reached_;
  reached_ = LowerMedian(positions_);  // more than half have it
  LearnStride(before);
  in_next_life_ = static_cast<size_t>(
      std::count_if(positions_.begin(), positions_.end(), [this](const Position& at) { return at.life > life(); }));
  patience_ns_ = std::max(kPatienceNs, kPatientIntervals * UpperMedian(intervals_));
}

void Progress::LearnStride(const Position& before) {
  if (before.life != reached_.life || before.step < 0 || reached_.step <= before.step) return;
  strides_[strides_seen_++ % strides_.size()] = reached_.step - before.step;
  stride_ = *std::min_element(strides_.begin(),
                              strides_.begin() + static_cast<std::ptrdiff_t>(std::min(strides_seen_, strides_.size())));
}

Progress::Position Progress::at(int rank) const {
  const auto index = static_cast<size_t>(rank);
  return index < ranks_.size() ? ranks_[index].at : Position();
}

bool Progress::IsFarAhead(const Position& position) const { return stride_ > 0 && IsBeyond(position, stride_); }

bool Progress::IsBeyond(const Position& position, int64_t stride) const {
  return position.life == reached_.life && position.step > reached_.step &&
         (position.step - reached_.step) / stride > kFarAhead;
}

int64_t StepOfMost(std::vector<int64_t> steps) {
  std::erase_if(steps, [](int64_t step) { return step < 0; });
  return steps.empty() ? -1 : LowerMedian(steps);
}

bool IsFarAhead(int64_t step, int64_t of_most) { return of_most >= 0 && step > of_most && step - of_most > kFarAhead; }

}  // namespace taskd
