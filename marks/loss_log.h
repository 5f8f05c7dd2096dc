// Records when a rank's records were lost, until the steps of that time are summarised (mark_fold.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "marks/step_cutter.h"

namespace taskd {

// Not thread-safe.
class LossLog {
 public:
  // If there are this many losses, a further one is merged into the newest.
  static constexpr size_t kMaxLosses = 1 << 12;

  void Add(uint64_t begin_ns, uint64_t end_ns, uint64_t records);
  void AddOne(uint64_t at_ns) { Add(at_ns, at_ns, 1); }
  void Clear() { losses_.clear(); }
  // Removes the losses that begin at or before `end_ns`. Returns the number of lost records, saturated, and sets
  // `spans` to their times, disjoint and in order.
  uint32_t TakeUntil(uint64_t end_ns, std::vector<LostSpan>& spans);

 private:
  struct Loss {
    LostSpan span;
    uint64_t records;
  };

  std::vector<Loss> losses_;
};

}  // namespace taskd
