// taskd.v1.Diagnosis: what `taskd diagnose --manager` asks.
//
// Served over mutual TLS only: its callers have proven to be parts of the job.
#pragma once

#include <functional>
#include <memory>

#include "manager/switch/core.h"
#include "manager/verdicts/diagnosis_core.h"
#include "taskd/v1/diagnosis.pb.h"

namespace grpc {
class Service;
}

namespace taskd::manager {

// Sets DiagnosisReport.hang where the job hangs. Called from any thread.
using FillHang = std::function<void(v1::DiagnosisReport*)>;

// Keeps no state but its watchers, which DiagnosisCore::Close ends.
std::unique_ptr<grpc::Service> MakeDiagnosisService(std::shared_ptr<DiagnosisCore> core, const JobShape& shape,
                                                    FillHang fill_hang = {});

}  // namespace taskd::manager
