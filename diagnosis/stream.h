// One number observed once a step, watched for a lasting or a recurring rise: the change detector that all features
// share.
//
// Design: five sums of deviations (CUSUM) look at five scales of time, each for the rise that it would show in about so
// many steps: the first one for what is twice the noise or more and takes some eight steps, the last one for an eighth of
// the noise, which takes some two thousand. The noise of each is measured at its own scale, by means of steps in a row
// (ScaleNoise): what goes together for a while does not count as many witnesses.
//
// A stream is in one of three states.
//
//   state         what ends it                                      next
//   quiet         a sum of deviations is above its threshold,       lasting; intermittent if the rise has come back
//                 or several jumps came in a row                    twice soon after it was cleared
//   quiet         more spikes in the window than peers have         lasting if most steps spike, else intermittent
//   lasting       the mirrored sum is above the threshold           quiet
//   intermittent  no spike for much longer than between spikes      quiet
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "diagnosis/late.h"
#include "diagnosis/measured.h"
#include "diagnosis/parameters.h"
#include "diagnosis/stats.h"

namespace taskd::diagnosis {

// Steps of the recurrence window.
inline constexpr int kSpikeWindow = 128;

// Scales of time, the finest first.
inline constexpr size_t kScales = 5;
// The drift of a scale's sum, standard deviations: it is the best one for a rise of twice as much.
inline constexpr std::array<double, kScales> kDrift = {1, 0.5, 0.25, 0.125, 0.0625};
// Steps over whose means its noise is measured: half of those that it needs for such a rise.
inline constexpr std::array<int, kScales> kBlock = {4, 16, 64, 256, 1024};

// The thresholds of all sums, standard deviations.
using Thresholds = std::array<double, kScales>;
// With these, healthy noise lets one of the sums of a stream pass once in `arl` observations.
Thresholds ThresholdsFor(double arl);

// Of the noise at each scale, as if it were one observation's: that of a mean of n, times the root of n. 0: not known.
using ScaleSigmas = std::array<float, kScales>;

class Stream {
 public:
  // All in the unit of the observations.
  struct Limits {
    double sigma = 0.01;  // standard deviation of the noise of one observation
    double one = 0.01;    // the same by how far two in a row are apart: less, where noise goes together for a while
    double dead = 0.01;   // rise over the own past that is nobody's fault: ranks are not equal
    double most = 0.035;  // a rise that is one wherever the stream began, so also from the first step on
    Thresholds h = {11};  // of the sums
    // As ScaleSigmas; that of a scale whose noise is not known stands still. The first one is `sigma`.
    std::array<double, kScales> sigmas = {0.01};

    // `one`: of one observation; `measured`: what ScaleNoise has. A longer scale has no less than a shorter one.
    void SetNoise(double one, const ScaleSigmas& measured);
    double jump =
        parameters.jump;       // a rise that needs no more than a few steps in a row, if it is far above the noise, too
    double clip = 4;           // the most that one step adds to the sum, standard deviations (CusumClip)
    int jumps = 3;             // the few steps (StepsBeyondChance)
    double spike_rate = 0.02;  // how often a step of a healthy peer spikes
    double jump_rate = 0.02;   // how often a healthy peer has such a rise
    double big = parameters.big;  // a spike that is big whatever the noise is
    double big_rate = 0.02;       // how often a healthy peer has one
  };

  enum class Event { kNone, kRaised, kCleared };

  // The same deviation in ns: what is lost, and what it would have taken without it.
  struct Time {
    double excess = 0, reference = 0;
  };
  Event Observe(int64_t step, double d, const Time& time, const Limits& limits);
  // The process is a new one, or other times are observed: the past level is learned anew; what was raised stays raised.
  void Rebase();
  // Whether what was raised goes on cannot be known: it is as if it had not been.
  void Drop();
  void Reset() { *this = Stream(); }

  bool raised() const { return state_ != State::kQuiet; }
  int64_t raised_step() const { return rise_->raised_step; }  // when it was raised; of a raised one
  // Raised, but on the way to be cleared.
  bool IsFading() const { return raised() && rise_->down > rise_->down_h / 3; }
  bool intermittent() const { return state_ == State::kIntermittent; }
  // On the way to be raised: more than `share` of a threshold.
  bool IsRising(double share) const { return raised() || risen_ > share; }
  // The first step of the deviation.
  int64_t onset() const { return rise_->onset; }
  // The same of what has come back soon after it was cleared: where it did so the last time.
  int64_t returned() const { return rise_->returned; }
  // It was there in the first step that was observed, so it may have been there before. Never so after a Rebase() of a
  // stream that was watched for long enough without a rise.
  bool from_start() const { return rise_->from_start; }
  // Mean of the deviation while it lasts; over all steps if it comes and goes.
  double mean() const { return mean_; }
  // What it cost in the last steps in which it was there, all of them if it comes and goes; of a cleared one in its last.
  Measured::Means measured() const { return rise_->measured.means(); }
  double mean_excess() const { return measured().excess; }
  // Mean distance of the deviation from its mean, while it lasts.
  double spread() const { return rise_->spread; }
  // Of mean(); of a small rise as if of the one in so many steps that shows as clearly.
  double z() const { return rise_->z; }
  // Standard error of mean(), by the noise of as many steps as it is of.
  double error() const { return rise_->error; }
  // Means of as many steps hardly ever differ by so much in this job.
  bool StandsOut() const { return raised() && rise_->stands_out; }
  // It lasts, and means of as many steps are known to go up and down by nearly as much, or to be expected to.
  bool IsUsual() const { return state_ == State::kLasting && rise_->usual; }
  // It has lasted for a block of steps of which it is known how far their means go up and down in this job, and stands out
  // from that.
  bool IsClear() const { return raised() && rise_->clear; }
  // And it is no larger than what steps are anyway now and then.
  bool IsBeyondWeather() const { return raised() && rise_->beyond_weather; }
  // Steps differed by little (parameters.quiet_noise) when it rose.
  bool rose_in_quiet() const { return rise_->rose_in_quiet; }
  double base() const { return base_; }  // the own past: mean of what was observed while nothing rose
  int observations() const { return seen_; }
  // What the rise is decided by. Of a quiet stream: the largest sum against its threshold, and means since it was 0, or of
  // the last steps where it is. Of a raised one: what raised it, a sum, large rises in a row, or events.
  struct Trace {
    double statistic = 0, threshold = 0;
    int64_t since_step = -1;  // -1: nothing rises
    int steps = 0;            // that the sum is of; 0 of a raised one
    Measured::Means measured;
  };
  // `h`: the thresholds of its sums.
  Trace trace(const Thresholds& h) const;
  // The smallest rise that a sum would have told with 99 % within `steps` observations, the last ones; infinite if there is
  // none.
  double SmallestRise(const Limits& limits, int steps) const;
  // Of the last kSpikeWindow steps: those above the noise by two, three or four standard deviations; those by four that
  // are big, too; and the jumps.
  int spikes() const { return window_counts_[kSpikes]; }
  int jumps() const { return window_counts_[kJumps]; }
  int big_spikes() const { return window_counts_[kBigSpikes]; }
  int outliers(size_t level) const { return window_counts_[level]; }
  static constexpr size_t kLevels = 3;
  // Of the spikes and big spikes: how often one follows some steps without. What hits a rank for a while is one event.
  int spike_starts() const { return CountStarts(kSpikes); }
  int big_spike_starts() const { return CountStarts(kBigSpikes); }
  int trials() const { return seen_ < kSpikeWindow ? seen_ : kSpikeWindow; }

 private:
  enum class State : uint8_t { kQuiet, kLasting, kIntermittent };
  struct Observation {
    int64_t step;
    double d;
    Time time;
    double z;    // over the limit
    bool spike;  // far above the noise
    bool jump;   // and a large rise
  };
  // The sum of one scale, and means since it was last zero, or since a step that alone added more than all before it.
  struct Sum {
    float value = 0;
    int count = 0;
    float mean = 0;
    float mean_excess = 0;
    float mean_reference = 0;
    int64_t first_step = -1;  // -1: it is empty
  };
  // The deviation under way or, of a quiet stream, the last one.
  struct Rise {
    int64_t onset = -1;
    int64_t returned = -1;
    int64_t raised_step = -1;
    double z = 0;
    double error = 0;
    double spread = 0;  // mean distance from the mean while raised
    double down = 0;
    double down_h = 1;
    int64_t cleared = -1;                // the last time
    double last_mean = 0;                // of what was cleared then
    int count = 0;                       // steps that mean_ is of
    int returns = 0;                     // how often it came back soon after it was cleared
    int quiet = 0;                       // steps without a spike, while intermittent
    uint8_t scale = 0;                   // of the sum that raised it
    float statistic = 0, threshold = 0;  // that raised it
    bool stands_out = false;
    bool usual = false;
    bool clear = false;
    bool beyond_weather = false;
    bool from_start = false;
    bool rose_in_quiet = false;
    Measured measured;
  };

  // What is known of means of some steps: the scale of their noise, the longest one of which anything is, whether steps go
  // together, the standard error as far as it is known, and what it is expected to be.
  struct Means {
    size_t scale = 0, longest = 0;
    bool go_together = false;
    double error = 0, expected = 0;
  };

  void Learn(double d, const Limits& limits);
  static Means MeansOf(int count, const Limits& limits);
  static double SigmaBeyond(size_t longest, int count, const Limits& limits);
  static Observation Classify(int64_t step, double d, const Time& time, double limit, const Limits& limits);
  void Remember(const Observation& now, const Limits& limits);
  // The steps of the three states: the state after it.
  State WatchForRise(const Observation& now, const Limits& limits);
  State FollowLasting(const Observation& now, const Limits& limits);
  State FollowIntermittent(const Observation& now);
  double LimitOf(size_t scale, const Limits& limits) const { return LimitOf(scale, limits, Known()); }
  double LimitOf(size_t scale, const Limits& limits, double known) const;
  double Known() const;
  static double LimitFor(double unequal, size_t scale, const Limits& limits);
  void AddToSums(const Observation& now, const Limits& limits);
  void AddTo(size_t scale, const Observation& now, double z);
  State RaiseBySum(int64_t step, const Limits& limits);
  Measured::Means LeadMeans(int64_t step) const;    // since the leading sum was empty
  Measured::Means WindowMeans(int64_t step) const;  // as if the exponential means were plain ones
  void RaisedBy(double statistic, double threshold);
  void BeginRaised(int64_t step, const Limits& limits);
  void Weigh(const Limits& limits);
  void BeginQuiet(int64_t step);
  using Bits = std::array<uint64_t, 2>;  // of the last 128 steps
  // What is looked for in them: the levels of outliers, of which the last are spikes, and others.
  static constexpr size_t kSpikes = kLevels - 1, kJumps = kLevels, kBigSpikes = kLevels + 1, kWindows = kLevels + 2;
  std::optional<size_t> FindRecurring(const Limits& limits) const;
  State RaiseByRecurrence(int64_t step, const Bits& spikes);
  static std::pair<int, int> FindFirst(const Bits& spikes);
  void ShiftIn(size_t window, bool bit);
  void ForgetWindows();
  static bool IsSet(const Bits& bits, int age) { return (bits[static_cast<size_t>(age / 64)] >> (age % 64) & 1) != 0; }
  int CountStarts(size_t window) const {
    if (window_counts_[window] <= 1) return window_counts_[window];
    const Bits& bits = (*windows_)[window];
    Bits starts = bits;
    for (int gap = 1; gap <= parameters.event_gap; ++gap) {
      starts[0] &= ~(bits[0] >> gap | bits[1] << (64 - gap));
      starts[1] &= ~(bits[1] >> gap);
    }
    return std::popcount(starts[0]) + std::popcount(starts[1]);
  }

  // There are several of these for each rank, and each step looks at all of them: together no more than a line of a cache,
  // and what most streams do not have at present is apart. Means as float are good for 8192 observations and more: what a
  // step adds is far above their last digit.
  int seen_ = 0;
  int jumps_ = 0;                                  // the last steps, all of them
  std::array<uint8_t, kWindows> window_counts_{};  // bits that are set
  uint8_t rose_later_ = 0;                         // a bit a sum: it was empty before, or next to nothing; and kWatched
  uint8_t lead_ = 0;                               // which sum is the largest
  State state_ = State::kQuiet;
  float base_ = 0;
  float risen_ = 0;  // the largest of the sums, as a share of its threshold
  Late<Rise> rise_;
  Late<std::array<Sum, kScales>> sums_;       // while one of them is above 0
  Late<std::array<Bits, kWindows>> windows_;  // while a bit is set
  float window_excess_ = 0;                   // exponential means over the spike window
  float window_reference_ = 0;
  float window_d_ = 0;
  float mean_ = 0;  // of the leading sum; while raised an exponential mean
};

// Of what many ranks never do.
using LateStream = Late<Stream>;

// How often healthy steps lie far outside, over the streams of a class. What a stream does itself is what is in
// question, so its own steps do not count for it.
class StreamTails {
 public:
  void Count(const Stream& stream);
  // Fills clip, jumps, spike_rate, big_rate and jump_rate. `leave_out`: whether the stream was counted and has peers.
  void Apply(Stream::Limits& limits, const Stream& stream, bool leave_out = true) const;

 private:
  TailRate jumps_;
  TailRate spike_starts_;
  TailRate big_spike_starts_;
  std::array<TailRate, Stream::kLevels> outliers_;
};

// Means of blocks of observations in a row, at each scale.
class BlockMeans {
 public:
  // Where a block has just ended: how far its mean is from that of some blocks ago, as the standard deviation that would
  // have such a distance; else nothing, here as -1. A lasting rise makes a few of them large, not all.
  std::array<float, kScales> Add(double d);
  void Restart() { steps_ = 0; }

 private:
  static constexpr int kApart = 3;

  int steps_ = 0;
  std::array<float, kBlock[0]> newest_{};
  std::array<float, kScales> sums_{};                       // of the blocks under way
  std::array<std::array<float, kApart>, kScales> means_{};  // of the last ones
};

// The noise of a class of streams at each scale, from how far the means of blocks are apart. The newest ones.
class ScaleNoise {
 public:
  static constexpr size_t kBlocks = 256;  // of a scale
  static constexpr size_t kSources = 16;  // that are listened to: of more the blocks would be of a short while
  static constexpr size_t kEnough = 12;

  // What the source's stream observed; not while that stands out from noise (`quiet` false).
  void Add(int source, double d, bool quiet);
  // As of the last Update().
  const ScaleSigmas& sigmas() const { return sigmas_; }
  // `one`: the noise of one observation, by how far two in a row are apart. `typical`: without what is seldom; for streams
  // that may all change at once.
  void Update(double one, bool typical = false);
  // Without what one source contributed and, where it is one of a few that are compared with each other, without what is
  // seldom (`typical`): that is its own doing there, too. Costs a pass over all blocks.
  ScaleSigmas SigmasWithout(int source, double one, bool typical);
  // Of a pair, whose blocks are there twice, once of each sign. Costs as much.
  ScaleSigmas SigmasOfPair(double one);
  // Sources have other numbers now.
  void ForgetSources() {
    sources_.clear();
    none_forgotten_until_ = 0;
  }

 private:
  struct Source {
    int id;
    uint64_t heard;  // the value of added_
    BlockMeans means;
  };
  struct Block {
    int source;
    float distance;
  };
  struct Scale {
    std::vector<Block> blocks;
    size_t next = 0;
    float measured = 0;
    bool changed = false;
  };
  Source* Listen(int id);
  double SigmaOf(size_t scale, bool typical);
  // Of the blocks of all sources but `left_out`; each is there `times`.
  ScaleSigmas SigmasOf(std::optional<int> left_out, size_t times, double one, bool typical);
  static void Expect(ScaleSigmas& sigmas, const std::array<size_t, kScales>& blocks, double one);

  uint64_t added_ = 0;
  uint64_t none_forgotten_until_ = 0;  // that value of added_
  std::vector<Source> sources_;
  std::array<Scale, kScales> scales_;
  ScaleSigmas sigmas_{};
  std::vector<double> scratch_;
};

}  // namespace taskd::diagnosis
