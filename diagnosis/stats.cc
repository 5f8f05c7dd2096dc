#include "diagnosis/stats.h"

#include <algorithm>
#include <cmath>

#include "diagnosis/parameters.h"

namespace taskd::diagnosis {

MedianOfOthers::MedianOfOthers(std::vector<double>& values) : size_(values.size()) {
  if (size_ == 1) middle_[0] = values[0];
  if (size_ < 2) return;
  auto at = values.begin() + static_cast<std::ptrdiff_t>((size_ - 2) / 2);
  std::nth_element(values.begin(), at, values.end());
  for (size_t i = 0; i < 2 + size_ % 2; ++i, ++at) {
    if (i > 0) std::iter_swap(at, std::min_element(at, values.end()));
    middle_[i] = *at;
  }
}

double MedianOfOthers::Without(double value) const {
  if (size_ < 2) return middle_[0];
  if (size_ % 2 == 0) return value <= middle_[0] ? middle_[1] : middle_[0];
  const double low = value <= middle_[0] ? middle_[1] : middle_[0];
  const double high = value <= middle_[1] ? middle_[2] : middle_[1];
  return (low + high) / 2;
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

void NoisePool::Add(int source, double difference) {
  if (values_.size() < kValues) {
    values_.push_back({source, difference});
    return;
  }
  values_[next_] = {source, difference};
  next_ = (next_ + 1) % kValues;
}

// A difference of two observations has twice the variance of one.
double NoisePool::MedianSigma() { return 1.4826 * LowerMedian(scratch_) / std::sqrt(2.0); }

double NoisePool::Sigma() {
  // The median is not moved by a few restless ranks; where every tenth difference is larger than a normal distribution
  // has it, that counts.
  const double by_median = MedianSigma();
  auto tenth = scratch_.begin() + static_cast<std::ptrdiff_t>(scratch_.size() * 9 / 10);
  std::nth_element(scratch_.begin(), tenth, scratch_.end());
  return std::max(by_median, *tenth / 1.645 / std::sqrt(2.0));
}

void NoisePool::Update() {
  if (!ready()) return;
  scratch_.clear();
  for (const Value& value : values_) scratch_.push_back(value.difference);
  sigma_ = Sigma();
  median_sigma_ = MedianSigma();
}

double NoisePool::SigmaWithout(int source) {
  scratch_.clear();
  for (const Value& value : values_) {
    if (value.source != source) scratch_.push_back(value.difference);
  }
  return scratch_.size() < kEnough ? sigma_ : Sigma();
}

void BlockNoise::Add(double value) {
  sum_ += value;
  if (++count_ < size_) return;
  const double mean = sum_ / size_;
  count_ = 0;
  sum_ = 0;
  if (has_last_) {
    if (differences_.size() < kBlocks) differences_.push_back(0);
    differences_[next_++ % kBlocks] = std::abs(mean - last_);
  }
  has_last_ = true;
  last_ = mean;
}

void BlockNoise::Restart() {
  count_ = 0;
  sum_ = 0;
  has_last_ = false;
}

double BlockNoise::sigma() const {
  std::vector<double> differences = differences_;
  return 1.4826 * LowerMedian(differences) / std::sqrt(2.0);
}

namespace {

double Growth(double z) { return std::exp(2 * (z - 1)); }

// The clips that are tried, the largest first: every stream asks in every step.
struct Clip {
  double clip;
  double growth;
};
std::vector<Clip> MakeClips() {
  std::vector<Clip> clips;
  for (double clip = 4; clip > 1.3; clip -= 0.1) clips.push_back({clip, Growth(clip)});
  return clips;
}

}  // namespace

double CusumClip(const std::array<double, 3>& rates) {
  static const std::vector<Clip> clips = MakeClips();
  static const double two_to_three = Growth(2.5);
  static const double three_to_four = Growth(3.5);
  const double twos = std::max(0.0, rates[0] - rates[1]);
  const double threes = std::max(0.0, rates[1] - rates[2]);
  for (const auto& [clip, growth] : clips) {
    const double mean =
        twos * std::min(two_to_three, growth) + threes * std::min(three_to_four, growth) + rates[2] * growth;
    if (mean <= 0.8) return clip;
  }
  return 1.3;
}

int StepsBeyondChance(double rate) {
  if (rate * rate * rate < parameters.jump_chance / 2) return parameters.jumps;
  return std::clamp(static_cast<int>(std::ceil(std::log(parameters.jump_chance) / std::log(std::min(rate, 0.5)))),
                    parameters.jumps, 30);
}

}  // namespace taskd::diagnosis
