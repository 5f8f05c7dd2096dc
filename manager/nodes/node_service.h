// taskd.v1.NodeLink: the proxies' streams.
//
// Served over mutual TLS only: its callers have proven to be parts of the job.
#pragma once

#include <memory>

#include "manager/switch/core.h"
#include "manager/verdicts/diagnosis_core.h"

namespace grpc {
class Service;
}

namespace taskd::manager {

// Keeps no state but the streams, which ManagerCore::Close ends.
std::unique_ptr<grpc::Service> MakeNodeService(std::shared_ptr<ManagerCore> core,
                                               std::shared_ptr<DiagnosisCore> diagnosis);

}  // namespace taskd::manager
