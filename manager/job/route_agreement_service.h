// taskd.v1.RouteAgreement: `taskd route --agree` of all nodes.
//
// Served over mutual TLS only: its callers have proven to be parts of the job.
#pragma once

#include <memory>

#include "manager/switch/core.h"

namespace grpc {
class Service;
}

namespace taskd::manager {

// Its rounds end with its streams.
std::unique_ptr<grpc::Service> MakeRouteAgreementService(const JobShape& shape);

}  // namespace taskd::manager
