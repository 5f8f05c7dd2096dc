// The mpirun calls of an attempt, as node 0 reports them and every other node hears them.
#pragma once

#include <cstdint>
#include <memory>
#include <set>
#include <utility>

#include "manager/job/job_messages.h"

namespace taskd::manager {

class MpirunCalls {
 public:
  enum class Taken { kNew, kKnown, kTooMany };

  // Each beginning and each end counts once: node 0 reports all of them again after its stream broke.
  Taken Take(const JobMpirunCall& call) {
    if (!known_.emplace(call.number, call.ended).second) return Taken::kKnown;
    if (all_->size() >= JobLimits::kMaxMpirunEvents) return Taken::kTooMany;
    all_->Append(call);
    return Taken::kNew;
  }
  // All until now.
  JobMpirunNews all() const { return {all_, all_->size()}; }

 private:
  std::shared_ptr<MpirunLog> all_ = std::make_shared<MpirunLog>();
  std::set<std::pair<uint32_t, bool>> known_;  // number, ended
};

}  // namespace taskd::manager
