// Places overlapping ranges of one track of a timeline on threads of it, since viewers drop a range that overlaps
// another one on its thread without lying within it. Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <set>
#include <vector>

namespace taskd::trace {

// Places ranges on lanes as they close, so that those of one lane nest or are disjoint. Memory: the ranges that are
// open and a few hundred others. Ranges that close in the order of their ends get as few lanes as greedy can; others
// may get a lane more than they need.
class TraceLanes {
 public:
  static constexpr int kMax = 64;

  void Open(uint64_t start);
  // A range that was opened with this start. -1: kMax lanes are not enough.
  int Close(uint64_t start, uint64_t end);

 private:
  struct Interval {
    uint64_t start, end;
  };
  struct Lane {
    std::vector<Interval> intervals;  // the outermost ones: by time, disjoint
    size_t merge_at = 256;
  };
  static bool Place(Lane& lane, uint64_t start, uint64_t end);
  void Merge(Lane& lane) const;

  std::vector<Lane> lanes_;
  std::multiset<uint64_t> open_;
};

}  // namespace taskd::trace
