#include "tests/diagnosis/ragged.h"

#include <array>
#include <cstdint>

#include "agent/simulate/random.h"

namespace taskd::evaluation {
namespace {

using simulate::Fault;
using simulate::FaultKind;
using simulate::Job;
using simulate::Layout;
using simulate::Mix;

Layout MakeLayout(int index) {
  Layout layout;
  switch (index % 5) {
    case 0:
      layout.dp = 8;
      layout.microbatches = 1;
      break;
    case 1:
      layout.dp = 32;
      layout.microbatches = 2;
      break;
    case 2:
      layout.pp = 4;
      layout.dp = 8;
      layout.ranks_per_node = 4;
      layout.microbatches = 8;
      break;
    case 3:
      layout.tp = 4;
      layout.dp = 8;
      layout.microbatches = 2;
      layout.layers = 2;
      break;
    default:
      layout.dp = 3;
      layout.microbatches = 1;
  }
  return layout;
}

}  // namespace

void MakeRagged(const Ragged& what, int index, Case& made) {
  Job& job = made.job;
  uint64_t draws = 0;
  const auto next = [&] { return Mix(job.seed, 0x52616767, ++draws); };
  const auto below = [&](int limit) { return static_cast<int>(next() % static_cast<uint64_t>(limit)); };
  job.layout = MakeLayout(index);
  job.steps = 500;
  job.marks.work = what.known;
  if (what.lengths) job.noise.work_sigma = std::array{0.1, 0.2, 0.3, 0.4}[static_cast<size_t>(index / 5 % 4)];
  if (what.loads) {
    // One replica, or all a little: from the start, or from the middle on.
    job.noise.replica_work.assign(static_cast<size_t>(job.layout.dp), 1);
    if (index % 2 == 0) {
      job.noise.replica_work[static_cast<size_t>(below(job.layout.dp))] = simulate::Uniform(next(), 1.2, 2);
    } else {
      for (double& work : job.noise.replica_work) work = simulate::Uniform(next(), 0.8, 1.25);
    }
    if (index / 2 % 2 == 1) job.noise.replica_work_step = 60 + below(60);
  }
  made.honesty = !what.faults || index % 3 == 2;
  if (made.honesty) return;
  Fault fault;
  fault.kind = FaultKind::kCompute;
  fault.severity = std::array{1.1, 1.2, 1.3, 1.5}[static_cast<size_t>(index / 3 % 4)];
  fault.first_step = 140 + below(60);
  fault.targets = {below(job.layout.ranks())};
  job.faults.push_back(fault);
}

}  // namespace taskd::evaluation
