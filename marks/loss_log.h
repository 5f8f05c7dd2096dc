// Where a rank's records were lost, until the steps in which that happened are folded (mark_fold.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "marks/step_cutter.h"

namespace taskd {

// Not thread-safe.
class LossLog {
 public:
  // Beyond this many losses at a time the newest one grows instead.
  static constexpr size_t kMaxLosses = 1 << 12;

  void Add(uint64_t begin_ns, uint64_t end_ns, uint64_t records);
  void AddOne(uint64_t at_ns) { Add(at_ns, at_ns, 1); }
  void Clear() { losses_.clear(); }
  // Takes those that begin until `end_ns`: where they were into `spans`, disjoint and in order; how many records they
  // are is the result, saturated.
  uint32_t TakeUntil(uint64_t end_ns, std::vector<LostSpan>& spans);

 private:
  struct Loss {
    LostSpan span;
    uint64_t records;
  };

  std::vector<Loss> losses_;
};

}  // namespace taskd
