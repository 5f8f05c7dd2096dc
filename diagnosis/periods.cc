#include "diagnosis/periods.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "diagnosis/parameters.h"
#include "diagnosis/stats.h"

namespace taskd::diagnosis {
namespace {

// Of a median, squared: from the median distance to it, as if the values were normal.
double SquaredErrorOf(const std::vector<double>& values, double median) {
  std::vector<double> distances;
  for (double value : values) distances.push_back(std::abs(value - median));
  const double sigma = 1.4826 * LowerMedian(distances);
  return 1.5708 * sigma * sigma / static_cast<double>(values.size());
}

}  // namespace

void Periods::Add(int64_t step, double period_ns, uint64_t end_ns) {
  history_.push_back({step, period_ns, end_ns});
  if (history_.size() > kHistory) history_.pop_front();
  std::vector<double> last;
  for (size_t i = history_.size() - std::min(history_.size(), parameters.recent_steps); i < history_.size(); ++i) {
    last.push_back(history_[i].ns);
  }
  recent_ns_ = LowerMedian(last);
}

void Periods::MarkSlow(bool slow) { history_.back().slow = slow; }

Periods::Lost Periods::LostSince(int64_t onset) const {
  std::vector<double> before;
  std::vector<double> after;
  for (auto period = history_.rbegin(); period != history_.rend(); ++period) {
    if (period->step >= onset) {
      if (period->step > history_.back().step - parameters.compared_steps) after.push_back(period->ns);
    } else if (!period->slow && before.size() < static_cast<size_t>(parameters.compared_steps)) {
      before.push_back(period->ns);
    }
  }
  if (before.size() < parameters.enough_before || after.empty()) return {};
  const double now = LowerMedian(after), then = LowerMedian(before);
  return {now - then, std::sqrt(SquaredErrorOf(after, now) + SquaredErrorOf(before, then))};
}

double Periods::MeanNs(int64_t first, int64_t last) const {
  double sum = 0;
  int steps = 0;
  for (auto period = history_.rbegin(); period != history_.rend() && period->step >= first; ++period) {
    if (period->step > last) continue;
    sum += period->ns;
    ++steps;
  }
  return steps > 0 ? sum / steps : 0;
}

double Periods::TimeSince(int64_t step) const {
  for (const Period& period : history_) {
    if (period.step < step) continue;
    return std::max(0.0, static_cast<double>(static_cast<int64_t>(history_.back().end_ns - period.end_ns)) + period.ns);
  }
  return 0;
}

uint64_t Periods::EndNs(int64_t step) const {
  for (const Period& period : history_) {
    if (period.step >= step) return period.end_ns;
  }
  return 0;
}

}  // namespace taskd::diagnosis
