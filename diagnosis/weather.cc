#include "diagnosis/weather.h"

#include <algorithm>

#include "diagnosis/stats.h"

namespace taskd::diagnosis {
namespace {

constexpr double kKeepsChoosingLogP = -9;  // p < 1e-4

}  // namespace

void Weather::Add(int rank, int64_t onset, int64_t end, double step_ns, double excess_ns) {
  const int64_t steps = end - onset;
  if (steps <= 0 || static_cast<double>(steps) * step_ns > kLongestNs) return;
  rises_.push_back({rank, onset, steps, step_ns, excess_ns});
  ++by_rank_[rank];
  while (rises_.size() > kMost) Drop();
}

void Weather::Forget(int64_t step) {
  while (!rises_.empty() && rises_.front().onset < step - kRemember) Drop();
}

void Weather::Drop() {
  const auto found = by_rank_.find(rises_.front().rank);
  if (--found->second == 0) by_rank_.erase(found);
  rises_.pop_front();
}

bool Weather::Explains(int rank, int peers, double lasted_ns) const {
  const auto own = by_rank_.find(rank);
  const size_t of_rank = own == by_rank_.end() ? 0 : own->second;
  if (LogBinomialTail(static_cast<int>(rises_.size()), static_cast<int>(of_rank), 1.0 / peers) < kKeepsChoosingLogP) {
    return false;
  }
  return std::any_of(rises_.begin(), rises_.end(), [&](const Rise& rise) {
    return lasted_ns <= std::max(kShortNs, 2 * static_cast<double>(rise.steps) * rise.step_ns);
  });
}

double Weather::mean_steps() const {
  double sum = 0;
  for (const Rise& rise : rises_) sum += static_cast<double>(rise.steps);
  return rises_.empty() ? 0 : sum / static_cast<double>(rises_.size());
}

double Weather::cost_ns(int64_t step) const {
  double sum = 0;
  for (const Rise& rise : rises_) sum += static_cast<double>(rise.steps) * rise.excess_ns;
  return rises_.empty() ? 0 : sum / static_cast<double>(std::max<int64_t>(1, step - first_step() + 1));
}

}  // namespace taskd::diagnosis
