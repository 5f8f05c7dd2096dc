// taskd.v1.Diagnosis: what `taskd diagnose --manager` asks.
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

// Keeps no state but its watchers, which DiagnosisCore::Close ends.
std::unique_ptr<grpc::Service> MakeDiagnosisService(std::shared_ptr<DiagnosisCore> core, const JobShape& shape);

}  // namespace taskd::manager
