// taskd.v1.Control: what `taskd switch` and `taskd status` ask.
//
// Served over mutual TLS only: its callers have proven to be parts of the job.
#pragma once

#include <memory>

#include "manager/page/job_sources.h"

namespace grpc {
class Service;
}

namespace taskd::manager {

// Keeps no state but the calls under way, which ManagerCore::Close ends.
std::unique_ptr<grpc::Service> MakeControlService(const JobSources& sources);

}  // namespace taskd::manager
