// The statistics of the diagnosis. Pure functions and small accumulators; docs/diagnosis.md derives them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace taskd::diagnosis {

// The lower median: the (n-1)/2-th smallest; 0 of no values. Reorders them. As a reference among peers it is a healthy
// one as long as at most half of the peers are slow, also in classes of two to four, where mean and deviation say
// nothing.
double LowerMedian(std::vector<double>& values);

// Threshold h of a one-sided CUSUM with drift k (both in standard deviations) whose mean time between false alarms is
// `arl` observations: Siegmund's approximation ARL = (exp(2kb) - 2kb - 1) / 2k^2 with b = h + 1.166.
double CusumThreshold(double arl, double k);

// ln P(X >= hits) of a binomial variable; 0 for hits <= 0.
double LogBinomialTail(int trials, int hits, double p);

// The noise of a feature over all ranks of a class: a robust standard deviation from the first differences in time,
// which a level shift of one rank does not touch. Forgets what is more than kValues old.
class NoisePool {
 public:
  static constexpr size_t kValues = 1024;
  static constexpr size_t kEnough = 24;

  // |x(t) - x(t-1)| of one rank.
  void Add(double difference);
  bool ready() const { return values_.size() >= kEnough; }
  // Standard deviation of one observation. As of the last Update().
  double sigma() const { return sigma_; }
  void Update();

 private:
  std::vector<double> values_;
  std::vector<double> scratch_;
  size_t next_ = 0;
  double sigma_ = 0;
};

}  // namespace taskd::diagnosis
