#include "diagnosis/stream.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "diagnosis/stats.h"

namespace taskd::diagnosis {
namespace {

constexpr double kDrift = 1;           // the k of the CUSUM
constexpr double kClip = 4;            // no single step weighs more than this
constexpr int kLearn = 15;             // observations until the own past counts
constexpr double kForget = 1.0 / 720;  // half-life of the own past: 500 steps
constexpr double kJumpZ = 8;
constexpr double kSpikeZ = 4;
constexpr double kRecurrenceLogP = -23;  // p < 1e-10
constexpr int kMinSpikes = 4;
constexpr double kAlone = 4;  // times as far from the next spike as those are from each other
constexpr double kLastingShare = 0.6;
constexpr int kMinQuiet = 48;
// A deviation that comes back within so many steps was never gone.
constexpr int kSameDeviation = 60;
constexpr int kReturns = 2;       // so often, and it comes and goes
constexpr int kRaisedSteps = 40;  // that the means of a raised one are of

}  // namespace

void Stream::Learn(double d, const Limits& limits) {
  // Winsorised, so that what is wrong from the start cannot become normal.
  const double value = std::clamp(d, -limits.most, limits.most);
  if (seen_ <= kLearn) {
    base_ += (value - base_) / seen_;
  } else if (!raised() && sum_ < h_ / 3) {
    base_ += kForget * (value - base_);
  }
  limit_ = seen_ < kLearn ? limits.most : std::min(std::max(base_, 0.0) + limits.dead, limits.most);
}

void Stream::ShiftIn(Bits& bits, bool bit) {
  bits[1] = bits[1] << 1 | bits[0] >> 63;
  bits[0] = bits[0] << 1 | (bit ? 1 : 0);
}

// The big spikes or, failing that, all of them, where they are more than healthy peers have; else nothing.
const Stream::Bits* Stream::FindRecurring(const Limits& limits) const {
  auto beyond_chance = [this](const Bits& bits, double rate) {
    const int hits = Count(bits);
    return hits >= kMinSpikes && LogBinomialTail(trials(), hits, rate) < kRecurrenceLogP;
  };
  if (beyond_chance(big_spikes_, limits.big_rate)) return &big_spikes_;
  return beyond_chance(outliers_[2], limits.spike_rate) ? &outliers_[2] : nullptr;
}

Stream::Event Stream::Observe(int64_t step, double d, double excess, const Limits& limits) {
  h_ = limits.h;
  ++seen_;
  Learn(d, limits);
  const Observation now = Classify(step, d, excess, limits);
  Remember(now, limits);
  const State before = state_;
  switch (before) {
    case State::kQuiet:
      state_ = WatchForRise(now, limits);
      break;
    case State::kLasting:
      state_ = FollowLasting(now, limits);
      break;
    case State::kIntermittent:
      state_ = FollowIntermittent(now);
      break;
  }
  if ((before == State::kQuiet) == (state_ == State::kQuiet)) return Event::kNone;
  if (state_ == State::kQuiet) {
    BeginQuiet(step);
    return Event::kCleared;
  }
  BeginRaised(step, limits.sigma);
  return Event::kRaised;
}

Stream::Observation Stream::Classify(int64_t step, double d, double excess, const Limits& limits) const {
  const double z = (d - limit_) / limits.sigma;
  return {.step = step,
          .d = d,
          .excess = excess,
          .z = z,
          .spike = z > kSpikeZ && d > limit_ + 2 * limits.dead,
          .jump = z > kJumpZ && d > limits.jump};
}

void Stream::Remember(const Observation& now, const Limits& limits) {
  ShiftIn(jump_bits_, now.jump);
  ShiftIn(big_spikes_, now.spike && now.d > limits.big);
  for (size_t level = 0; level < kLevels; ++level) ShiftIn(outliers_[level], now.z > static_cast<double>(level) + 2);
  const double weight = 1.0 / std::min(seen_, kSpikeWindow / 2);
  window_excess_ += weight * (now.excess - window_excess_);
  window_d_ += weight * (now.d - window_d_);
}

Stream::State Stream::WatchForRise(const Observation& now, const Limits& limits) {
  if (!AddToSum(now, limits)) return State::kQuiet;
  if (sum_ > limits.h || jumps_ >= limits.jumps) return RaiseBySum(now.step);
  if (!now.spike || window_excess_ <= 0) return State::kQuiet;
  if (const Bits* recurring = FindRecurring(limits)) return RaiseByRecurrence(now.step, *recurring);
  return State::kQuiet;
}

// The CUSUM, and the means since it was last zero, or since a step that alone adds more than all before it: the rise
// began there, and those were noise. False: it is zero.
bool Stream::AddToSum(const Observation& now, const Limits& limits) {
  const double before = sum_;
  sum_ = std::max(0.0, sum_ + std::clamp(now.z, -limits.clip, limits.clip) - kDrift);
  jumps_ = now.jump ? jumps_ + 1 : 0;
  if (sum_ == 0 || (sum_ > 2 * before && seen_ > kLearn)) {
    rise_step_ = -1;
    rose_later_ = true;
    count_ = 0;
    mean_ = mean_excess_ = 0;
  }
  if (sum_ == 0) return false;
  if (rise_step_ < 0) rise_step_ = now.step;
  ++count_;
  mean_ += (now.d - mean_) / count_;
  mean_excess_ += (now.excess - mean_excess_) / count_;
  return true;
}

Stream::State Stream::RaiseBySum(int64_t step) {
  const bool again =
      cleared_ >= 0 && step - cleared_ < kSameDeviation && mean_ < 2 * last_mean_ && last_mean_ < 2 * mean_;
  returns_ = again ? returns_ + 1 : 0;
  if (!again) {
    onset_ = rise_step_;
    from_start_ = !rose_later_;
  }
  return returns_ >= kReturns ? State::kIntermittent : State::kLasting;
}

// How many steps ago spikes that recur began, without those of before that were alone; and how many they are.
std::pair<int, int> Stream::FindFirst(const Bits& spikes) {
  std::vector<int> ages;
  for (int age = 0; age < kSpikeWindow; ++age) {
    if (IsSet(spikes, age)) ages.push_back(age);
  }
  size_t oldest = ages.size() - 1;
  for (; oldest >= kMinSpikes; --oldest) {
    const double usual = static_cast<double>(ages[oldest - 1] - ages[0]) / static_cast<double>(oldest - 1);
    if (ages[oldest] - ages[oldest - 1] <= kAlone * std::max(1.0, usual)) break;
  }
  return {ages[oldest], static_cast<int>(oldest) + 1};
}

Stream::State Stream::RaiseByRecurrence(int64_t step, const Bits& spikes) {
  const auto [age, recurring] = FindFirst(spikes);
  onset_ = step - age;
  // Most steps since the first one: it lasts, only not evenly enough for the sum.
  if (recurring >= kLastingShare * (age + 1)) return State::kLasting;
  TakeWindowMeans();
  return State::kIntermittent;
}

Stream::State Stream::FollowLasting(const Observation& now, const Limits& limits) {
  const double half_way = (limit_ + mean_) / 2;
  if (now.d > half_way) {
    ++count_;
    const double share = 1.0 / std::min(count_, kRaisedSteps);
    mean_ += share * (now.d - mean_);
    mean_excess_ += share * (now.excess - mean_excess_);
  }
  // What varies by itself is not over because of a few good steps.
  if (now.d > limit_) spread_ += (std::abs(now.d - mean_) - spread_) / std::min(count_, kRaisedSteps);
  const double sigma = std::max(limits.sigma, 1.25 * spread_);
  // The mirrored test: half-way between the deviation and the limit.
  down_ = std::max(0.0, down_ + std::clamp(((limit_ + mean_) / 2 - now.d) / sigma, -kClip, kClip));
  return down_ > h_ ? State::kQuiet : State::kLasting;
}

Stream::State Stream::FollowIntermittent(const Observation& now) {
  TakeWindowMeans();
  quiet_ = now.spike ? 0 : quiet_ + 1;
  const int patience = std::max(kMinQuiet, 6 * trials() / std::max(1, spikes()));
  return quiet_ < patience ? State::kIntermittent : State::kQuiet;
}

void Stream::TakeWindowMeans() {
  mean_ = window_d_;
  mean_excess_ = window_excess_;
}

void Stream::BeginRaised(int64_t step, double sigma) {
  z_ = (mean_ - std::max(base_, 0.0)) / sigma;
  raised_step_ = step;
  down_ = spread_ = 0;
  quiet_ = 0;
}

void Stream::BeginQuiet(int64_t step) {
  sum_ = down_ = 0;
  count_ = jumps_ = 0;
  rise_step_ = -1;
  rose_later_ = true;
  jump_bits_ = big_spikes_ = {};
  outliers_ = {};
  cleared_ = step;
  last_mean_ = mean_;
}

void Stream::Rebase() {
  seen_ = 0;
  base_ = 0;
  jump_bits_ = big_spikes_ = {};
  outliers_ = {};
  if (!raised()) {
    sum_ = 0;
    count_ = jumps_ = 0;
    rise_step_ = -1;
    rose_later_ = false;
  }
}

void StreamTails::Count(const Stream& stream) {
  if (stream.raised()) return;
  jumps_.Add(stream.jumps(), stream.trials());
  big_spikes_.Add(stream.big_spikes(), stream.trials());
  for (size_t level = 0; level < Stream::kLevels; ++level) {
    outliers_[level].Add(stream.outliers(level), stream.trials());
  }
}

void StreamTails::Apply(Stream::Limits& limits, const Stream& stream, bool leave_out) const {
  leave_out = leave_out && !stream.raised();
  const int trials = leave_out ? stream.trials() : 0;
  std::array<double, Stream::kLevels> rates;
  for (size_t level = 0; level < Stream::kLevels; ++level) {
    rates[level] = outliers_[level].Without(leave_out ? stream.outliers(level) : 0, trials);
  }
  limits.spike_rate = rates[2];
  limits.big_rate = big_spikes_.Without(leave_out ? stream.big_spikes() : 0, trials);
  limits.clip = CusumClip(rates);
  limits.jump_rate = jumps_.Without(leave_out ? stream.jumps() : 0, trials);
  limits.jumps = StepsBeyondChance(limits.jump_rate);
}

}  // namespace taskd::diagnosis
