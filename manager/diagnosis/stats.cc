#include "manager/diagnosis/stats.h"

#include <algorithm>
#include <cmath>

namespace taskd::diagnosis {

double LowerMedian(std::vector<double>& values) {
  if (values.empty()) return 0;
  auto middle = values.begin() + static_cast<std::ptrdiff_t>((values.size() - 1) / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

double CusumThreshold(double arl, double k) {
  auto run_length = [k](double h) {
    double x = 2 * k * (h + 1.166);
    return (std::exp(x) - x - 1) / (2 * k * k);
  };
  double low = 0;
  double high = 200;
  for (int i = 0; i < 60; ++i) {
    double middle = (low + high) / 2;
    (run_length(middle) < arl ? low : high) = middle;
  }
  return high;
}

double LogBinomialTail(int trials, int hits, double p) {
  if (hits <= 0) return 0;
  if (hits > trials || p <= 0) return -INFINITY;
  if (p >= 1) return 0;
  // Terms fall off geometrically above the mean; below it the tail is not interesting and the sum is still right.
  double log_term = std::lgamma(trials + 1.0) - std::lgamma(hits + 1.0) - std::lgamma(trials - hits + 1.0) +
                    hits * std::log(p) + (trials - hits) * std::log1p(-p);
  double sum = 1;
  double term = 1;
  for (int k = hits; k < trials; ++k) {
    term *= static_cast<double>(trials - k) / (k + 1) * p / (1 - p);
    sum += term;
    if (term < sum * 1e-12) break;
  }
  return std::min(0.0, log_term + std::log(sum));
}

void NoisePool::Add(double difference) {
  if (values_.size() < kValues) {
    values_.push_back(difference);
    return;
  }
  values_[next_] = difference;
  next_ = (next_ + 1) % kValues;
}

void NoisePool::Update() {
  if (!ready()) return;
  scratch_ = values_;
  // 1.4826: the median of |x| of a normal x to its standard deviation; sqrt(2): a difference of two observations.
  sigma_ = 1.4826 * LowerMedian(scratch_) / std::sqrt(2.0);
}

}  // namespace taskd::diagnosis
