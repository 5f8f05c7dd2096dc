// taskd.v1.Ledger, from the job's ledger.
#pragma once

#include <memory>

#include "grpcpp/impl/service_type.h"
#include "manager/ledger/job_ledger.h"
#include "manager/switch/core.h"

namespace taskd::manager {

std::unique_ptr<grpc::Service> MakeLedgerService(std::shared_ptr<const JobLedger> ledger, const JobShape& shape);

}  // namespace taskd::manager
