// For the manager's tests: the folds of a small data-parallel job of one node after the other, each step an all-reduce
// over everybody. A slow rank computes longer, and the others wait for it.
#pragma once

#include <algorithm>
#include <map>
#include <vector>

#include "marks/step_fold.h"

namespace taskd::manager {

struct TestJob {
  int ranks = 8;
  uint64_t own_ns = 80'000'000;                   // what a healthy rank computes in a step
  uint64_t transfer_ns = 20'000'000;              // of the all-reduce itself
  uint64_t begin_ns = 1'790'000'000'000'000'000;  // Unix, of step 0
  std::map<int, double> slow = {};                // rank -> factor on own_ns

  GroupInfo Group() const { return {"world", "dp", {{0, 1, ranks}}}; }

  uint64_t Own(int rank, int64_t step) const {
    auto factor = slow.find(rank);
    // Up to 1 % that no two ranks or steps share: real ranks are never equal.
    uint64_t noise = (static_cast<uint64_t>(step) * 7919 + static_cast<uint64_t>(rank) * 104729) % 800'000;
    return static_cast<uint64_t>(static_cast<double>(own_ns) * (factor == slow.end() ? 1.0 : factor->second)) + noise;
  }

  // One step of all ranks, by rank; `end_ns` is the end of the step before, and becomes the end of this one.
  std::vector<StepFold> Step(int64_t step, uint64_t& end_ns) const {
    uint64_t slowest = 0;
    for (int rank = 0; rank < ranks; ++rank) slowest = std::max(slowest, Own(rank, step));
    const uint64_t begin = end_ns;
    end_ns += slowest + transfer_ns;
    std::vector<StepFold> folds;
    for (int rank = 0; rank < ranks; ++rank) {
      StepFold& fold = folds.emplace_back();
      fold.step = step;
      fold.process_id = static_cast<uint32_t>(1000 + rank);
      fold.start_ns = begin;
      fold.end_ns = end_ns;
      fold.previous_end_ns = begin;
      fold.head_ns = Own(rank, step);
      fold.covered_ns = end_ns - begin - fold.head_ns;
      OpFold& op = fold.ops.emplace_back();
      op.op = CommOp::kAllReduce;
      op.size_log2 = 27;
      op.count = 1;
      op.bytes = uint64_t{1} << 27;
      op.duration_ns = op.min_duration_ns = fold.covered_ns;
      op.first_start_ns = begin + fold.head_ns;
      op.last_end_ns = end_ns;
      fold.samples.push_back({0, CommOp::kAllReduce, 0, op.first_start_ns, end_ns});
    }
    return folds;
  }
};

}  // namespace taskd::manager
