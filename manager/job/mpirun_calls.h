// The mpirun calls of an attempt, as node 0 reports them and every other node hears them.
#pragma once

#include <cstdint>
#include <set>
#include <utility>
#include <vector>

#include "manager/job/job_messages.h"

namespace taskd::manager {

class MpirunCalls {
 public:
  enum class Taken { kNew, kKnown, kTooMany };

  // Each beginning and each end counts once: node 0 reports all of them again after its stream broke.
  Taken Take(const JobMpirunCall& call) {
    if (!known_.emplace(call.number, call.ended).second) return Taken::kKnown;
    if (all_.size() >= JobLimits::kMaxMpirunEvents) return Taken::kTooMany;
    all_.push_back(call);
    return Taken::kNew;
  }
  // In the order in which they were reported.
  const std::vector<JobMpirunCall>& all() const { return all_; }

 private:
  std::vector<JobMpirunCall> all_;
  std::set<std::pair<uint32_t, bool>> known_;  // number, ended
};

}  // namespace taskd::manager
