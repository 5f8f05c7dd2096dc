// taskd.v1.Supervision: what launchers report, and hear of hangs.
//
// Served over mutual TLS only: its callers have proven to be parts of the job.
#pragma once

#include <memory>

#include "manager/supervision/supervision_core.h"
#include "manager/switch/core.h"

namespace grpc {
class Service;
}

namespace taskd::manager {

// Keeps no state but its watchers, which SupervisionCore::Close ends.
std::unique_ptr<grpc::Service> MakeSupervisionService(std::shared_ptr<SupervisionCore> core, const JobShape& shape);

}  // namespace taskd::manager
