// taskd.v1.Control: what `taskd switch` and `taskd status` ask.
//
// Served over mutual TLS only: whoever calls it has proven to be a part of the job.
#pragma once

#include <memory>

#include "manager/core.h"
#include "manager/diagnosis_core.h"
#include "manager/supervision_core.h"

namespace grpc {
class Service;
}

namespace taskd::manager {

// `started`: when the manager was. Keeps no state but the calls under way, which ManagerCore::Close ends.
std::unique_ptr<grpc::Service> MakeControlService(std::shared_ptr<ManagerCore> core,
                                                  std::shared_ptr<DiagnosisCore> diagnosis,
                                                  std::shared_ptr<SupervisionCore> supervision, SteadyTime started);

}  // namespace taskd::manager
