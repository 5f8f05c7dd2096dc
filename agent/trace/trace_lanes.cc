#include "agent/trace/trace_lanes.h"

#include <algorithm>
#include <utility>

namespace taskd::trace {

void TraceLanes::Open(uint64_t start) { open_.insert(start); }

int TraceLanes::Close(uint64_t start, uint64_t end) {
  if (auto it = open_.find(start); it != open_.end()) open_.erase(it);
  for (size_t i = 0; i <= lanes_.size() && i < kMax; ++i) {
    if (i == lanes_.size()) lanes_.emplace_back();
    if (!Place(lanes_[i], start, end)) continue;
    if (lanes_[i].intervals.size() > lanes_[i].merge_at) Merge(lanes_[i]);
    return static_cast<int>(i);
  }
  return -1;
}

// What lies within an outermost interval is not known any more: nothing is placed in there later on, though it might
// fit.
bool TraceLanes::Place(Lane& lane, uint64_t start, uint64_t end) {
  if (start == end) return true;  // a point fits everywhere
  std::vector<Interval>& all = lane.intervals;
  auto first = std::partition_point(all.begin(), all.end(), [&](const Interval& i) { return i.end <= start; });
  auto last = first;
  for (; last != all.end() && last->start < end; ++last) {
    if (last->start < start || last->end > end) return false;
    // Of two ranges that begin together some viewers take the one that comes first in the file for the outer one.
    if (last->start == start && last->end < end) return false;
  }
  if (first == last) {
    all.insert(first, {start, end});
  } else {
    *first = {start, end};
    all.erase(first + 1, last);
  }
  return true;
}

// A gap matters only to a range that begins in it. The last few stay apart for ranges that close late.
void TraceLanes::Merge(Lane& lane) const {
  constexpr size_t kKeep = 64;
  std::vector<Interval>& all = lane.intervals;
  std::vector<Interval> merged;
  for (size_t i = 0; i < all.size(); ++i) {
    if (!merged.empty() && i + kKeep < all.size()) {
      auto begun = open_.lower_bound(merged.back().end);
      if (begun == open_.end() || *begun > all[i].start) {
        merged.back().end = all[i].end;
        continue;
      }
    }
    merged.push_back(all[i]);
  }
  all = std::move(merged);
  lane.merge_at = std::max<size_t>(256, 2 * all.size());
}

}  // namespace taskd::trace
