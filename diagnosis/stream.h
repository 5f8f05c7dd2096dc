// One number observed once a step, watched for a lasting or a recurring rise: the change detector that all features
// share.
//
// Design: a stream is in one of three states.
//
//   state         what ends it                                      next
//   quiet         the sum of deviations is above its threshold,     lasting; intermittent if the rise has come back
//                 or several jumps came in a row                    twice soon after it was cleared
//   quiet         more spikes in the window than peers have         lasting if most steps spike, else intermittent
//   lasting       the mirrored sum is above the threshold           quiet
//   intermittent  no spike for much longer than between spikes      quiet
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <utility>

#include "diagnosis/stats.h"

namespace taskd::diagnosis {

// Steps of the recurrence window.
inline constexpr int kSpikeWindow = 128;

class Stream {
 public:
  // All in the unit of the observations.
  struct Limits {
    double sigma = 0.01;       // standard deviation of the noise of one observation
    double dead = 0.01;        // rise over the own past that is nobody's fault: ranks are not equal
    double most = 0.035;       // a rise that is one wherever the stream began, so also from the first step on
    double h = 11;             // CUSUM threshold, standard deviations
    double jump = 0.12;        // a rise that needs no more than a few steps in a row if it is also far above the noise
    double clip = 4;           // the most that one step adds to the sum, standard deviations (CusumClip)
    int jumps = 3;             // the few steps (StepsBeyondChance)
    double spike_rate = 0.02;  // how often a step of a healthy peer spikes
    double jump_rate = 0.02;   // how often a healthy peer has such a rise
    double big = 0.25;         // a spike that is big whatever the noise is
    double big_rate = 0.02;    // how often a healthy peer has one
  };

  enum class Event { kNone, kRaised, kCleared };

  // `excess` is the same deviation as lost time, ns.
  Event Observe(int64_t step, double d, double excess, const Limits& limits);
  // The process is a new one: the past level is learned anew; what was raised stays raised.
  void Rebase();
  void Reset() { *this = Stream(); }

  bool raised() const { return state_ != State::kQuiet; }
  int64_t raised_step() const { return raised_step_; }  // when it was raised; of a raised one
  // Raised, but on the way to be cleared.
  bool IsFading() const { return raised() && down_ > h_ / 3; }
  bool intermittent() const { return state_ == State::kIntermittent; }
  // On the way to be raised: more than `share` of the threshold.
  bool IsRising(double share) const { return raised() || sum_ > share * h_; }
  // The first step of the deviation.
  int64_t onset() const { return onset_; }
  // It was there in the first step that was observed: it may have been there before.
  bool from_start() const { return from_start_; }
  // Mean of the deviation while it lasts; over all steps if it comes and goes.
  double mean() const { return mean_; }
  double mean_excess() const { return mean_excess_; }
  // Mean distance of the deviation from its mean, while it lasts.
  double spread() const { return spread_; }
  double z() const { return z_; }  // of mean()
  int observations() const { return seen_; }
  // Of the last kSpikeWindow steps: those above the noise by two, three or four standard deviations; those by four that
  // are big, too; and the jumps.
  int spikes() const { return Count(outliers_[2]); }
  int jumps() const { return Count(jump_bits_); }
  int big_spikes() const { return Count(big_spikes_); }
  int outliers(size_t level) const { return Count(outliers_[level]); }
  static constexpr size_t kLevels = 3;
  int trials() const { return seen_ < kSpikeWindow ? seen_ : kSpikeWindow; }

 private:
  enum class State : uint8_t { kQuiet, kLasting, kIntermittent };
  struct Observation {
    int64_t step;
    double d;
    double excess;
    double z;    // over the limit
    bool spike;  // far above the noise
    bool jump;   // and a large rise
  };

  void Learn(double d, const Limits& limits);
  Observation Classify(int64_t step, double d, double excess, const Limits& limits) const;
  void Remember(const Observation& now, const Limits& limits);
  // The steps of the three states: the state after it.
  State WatchForRise(const Observation& now, const Limits& limits);
  State FollowLasting(const Observation& now, const Limits& limits);
  State FollowIntermittent(const Observation& now);
  bool AddToSum(const Observation& now, const Limits& limits);
  State RaiseBySum(int64_t step);
  void TakeWindowMeans();
  void BeginRaised(int64_t step, double sigma);
  void BeginQuiet(int64_t step);
  using Bits = std::array<uint64_t, 2>;  // of the last 128 steps
  const Bits* FindRecurring(const Limits& limits) const;
  State RaiseByRecurrence(int64_t step, const Bits& spikes);
  static std::pair<int, int> FindFirst(const Bits& spikes);
  static void ShiftIn(Bits& bits, bool bit);
  static bool IsSet(const Bits& bits, int age) { return (bits[static_cast<size_t>(age / 64)] >> (age % 64) & 1) != 0; }
  static int Count(const Bits& bits) { return std::popcount(bits[0]) + std::popcount(bits[1]); }

  int seen_ = 0;
  double base_ = 0;
  double limit_ = 0;
  double sum_ = 0;
  double h_ = 11;
  int jumps_ = 0;
  int64_t rise_step_ = -1;   // the first step of the sum; -1: it is empty
  bool rose_later_ = false;  // it was empty before, or next to nothing
  Bits jump_bits_{};
  Bits big_spikes_{};
  std::array<Bits, kLevels> outliers_{};
  double window_excess_ = 0;  // exponential means over the spike window
  double window_d_ = 0;

  // Of the deviation under way: sums since the sum was last zero; exponential means while raised.
  int count_ = 0;
  double mean_ = 0;
  double mean_excess_ = 0;
  double z_ = 0;
  double spread_ = 0;  // mean distance from the mean while raised

  State state_ = State::kQuiet;
  bool from_start_ = false;
  int64_t onset_ = -1;
  int64_t raised_step_ = -1;
  int returns_ = 0;  // how often it came back soon after it was cleared
  double down_ = 0;
  int quiet_ = 0;         // steps without a spike, while intermittent
  int64_t cleared_ = -1;  // the last time
  double last_mean_ = 0;  // of the deviation that was cleared then
};

// How often healthy steps lie far outside, over the streams of a class. What a stream does itself is what is in
// question, so its own steps do not count for it.
class StreamTails {
 public:
  void Count(const Stream& stream);
  // Fills clip, jumps, spike_rate and big_rate. `leave_out`: whether the stream was counted and has peers.
  void Apply(Stream::Limits& limits, const Stream& stream, bool leave_out = true) const;

 private:
  TailRate jumps_;
  TailRate big_spikes_;
  std::array<TailRate, Stream::kLevels> outliers_;
};

}  // namespace taskd::diagnosis
