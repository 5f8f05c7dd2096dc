#include "marks/loss_log.h"

#include <algorithm>
#include <limits>

namespace taskd {
namespace {

// Expects the spans to be sorted by their begins.
void JoinOverlapping(std::vector<LostSpan>& spans) {
  if (spans.empty()) return;
  size_t last = 0;
  for (size_t i = 1; i < spans.size(); ++i) {
    if (spans[i].first <= spans[last].second) {
      spans[last].second = std::max(spans[last].second, spans[i].second);
    } else {
      spans[++last] = spans[i];
    }
  }
  spans.resize(last + 1);
}

}  // namespace

void LossLog::Add(uint64_t begin_ns, uint64_t end_ns, uint64_t records) {
  if (losses_.size() < kMaxLosses) {
    losses_.push_back({{begin_ns, end_ns}, records});
    return;
  }
  Loss& newest = losses_.back();
  newest.span.first = std::min(newest.span.first, begin_ns);
  newest.span.second = std::max(newest.span.second, end_ns);
  newest.records += records;
}

uint32_t LossLog::TakeUntil(uint64_t end_ns, std::vector<LostSpan>& spans) {
  spans.clear();
  uint64_t records = 0;
  size_t kept = 0;
  for (const Loss& loss : losses_) {
    if (loss.span.first > end_ns) {
      losses_[kept++] = loss;
      continue;
    }
    records += loss.records;
    spans.push_back(loss.span);
  }
  losses_.resize(kept);
  std::sort(spans.begin(), spans.end());
  JoinOverlapping(spans);
  return static_cast<uint32_t>(std::min<uint64_t>(records, std::numeric_limits<uint32_t>::max()));
}

}  // namespace taskd
