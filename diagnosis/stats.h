// The statistics of the diagnosis. Pure functions and small accumulators; docs/diagnosis.md derives them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/median.h"

namespace taskd::diagnosis {

// As a reference among peers the lower median is a healthy one as long as at most half of the peers are slow, also in
// classes of two to four, where mean and deviation show nothing.
using taskd::LowerMedian;

// The median of the others, for each of some values: half of the others can be far off, and it is neither below nor above
// what they do on average.
class MedianOfOthers {
 public:
  MedianOfOthers() = default;                            // of no values
  explicit MedianOfOthers(std::vector<double>& values);  // reorders them
  // `value`: one of them. Where there is no other one it is its own.
  double Without(double value) const;
  // The lower median of all; 0 of no values.
  double of_all() const { return size_ < 2 ? middle_[0] : middle_[size_ % 2]; }

 private:
  size_t size_ = 0;
  std::array<double, 3> middle_{};  // in order, from the (size - 2) / 2-th on, as far as they are needed
};

// Threshold h of a one-sided CUSUM with drift k (both in standard deviations) whose mean time between false alarms is
// `arl` observations: Siegmund's approximation ARL = (exp(2kb) - 2kb - 1) / 2k^2 with b = h + 1.166.
double CusumThreshold(double arl, double k);

// ln P(X >= hits) of a binomial variable; 0 for hits <= 0.
double LogBinomialTail(int trials, int hits, double p);

// The noise of a feature over all ranks of a class: a standard deviation from the first differences in time, which a
// level shift of one rank does not touch. Forgets what is more than kValues old.
class NoisePool {
 public:
  static constexpr size_t kValues = 1024;
  static constexpr size_t kEnough = 24;

  // |x(t) - x(t-1)| of one rank (or channel).
  void Add(int source, double difference);
  bool ready() const { return values_.size() >= kEnough; }
  // Standard deviation of one observation, as of the last Update().
  double sigma() const { return sigma_; }
  // The same by the median alone: of less than half of the differences, however large, it takes no notice.
  double median_sigma() const { return median_sigma_; }
  void Update();
  // The same without what one rank contributed, whose own unrest is what is in question. Costs a pass over the values.
  double SigmaWithout(int source);

 private:
  struct Value {
    int source;
    double difference;
  };
  double Sigma();        // of scratch_
  double MedianSigma();  // likewise

  std::vector<Value> values_;
  std::vector<double> scratch_;
  size_t next_ = 0;
  double sigma_ = 0;
  double median_sigma_ = 0;
};

// The noise of means over blocks of `size` values in a row, from how far neighbouring blocks are apart: values that go
// together for a while do not count as many witnesses. The newest kBlocks differences.
class BlockNoise {
 public:
  static constexpr size_t kBlocks = 32;
  static constexpr size_t kEnough = 4;

  explicit BlockNoise(int size) : size_(size) {}
  void Add(double value);
  // What follows is on another level: no difference across it.
  void Restart();
  bool ready() const { return differences_.size() >= kEnough; }
  double sigma() const;  // of one mean

 private:
  const int size_;
  int count_ = 0;  // of the block under way
  double sum_ = 0;
  bool has_last_ = false;
  double last_ = 0;
  std::vector<double> differences_;
  size_t next_ = 0;
};

// How often a healthy step lies far outside: noise has heavier tails than a normal distribution. Counted over peers.
class TailRate {
 public:
  void Add(int hits, int trials) {
    hits_ += hits;
    trials_ += trials;
  }
  // Rate without a part of what was added.
  double Without(int hits, int trials) const { return (0.1 + hits_ - hits) / (100.0 + trials_ - trials); }

 private:
  double hits_ = 0;
  double trials_ = 0;
};

// The most that one step may add to a CUSUM of drift 1 so that its false alarms stay as rare as its threshold promises,
// although healthy steps lie above two, three and four standard deviations at these rates: the mean of exp(2 (min(z,
// clip) - 1)) over them stays below 0.8. 1.3 to 4.
double CusumClip(const std::array<double, 3>& rates);

// How many steps in a row, each of probability `rate`, chance does not explain (1e-9). At least 3.
int StepsBeyondChance(double rate);

}  // namespace taskd::diagnosis
