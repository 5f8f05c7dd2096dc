#include "agent/simulate/work.h"

#include <cmath>

#include "agent/simulate/random.h"

namespace taskd::simulate {

double WorkOf(const Job& job, int step, int microbatch, int replica) {
  constexpr uint64_t kWork = 0x576f726b;
  const Noise& noise = job.noise;
  double work = 1;
  if (noise.work_sigma > 0) {
    const uint64_t draw = Mix(Mix(job.seed, kWork, static_cast<uint64_t>(step)), static_cast<uint64_t>(microbatch),
                              static_cast<uint64_t>(replica));
    work = std::exp(noise.work_sigma * Normal(draw) - noise.work_sigma * noise.work_sigma / 2);
  }
  if (step >= noise.replica_work_step && static_cast<size_t>(replica) < noise.replica_work.size()) {
    work *= noise.replica_work[static_cast<size_t>(replica)];
  }
  return work;
}

int64_t TokensOf(const Job& job, int step, int replica, int microbatches) {
  double work = 0;
  for (int i = 0; i < microbatches; ++i) work += WorkOf(job, step, i, replica);
  return std::llround(kTokens * work);
}

}  // namespace taskd::simulate
