// taskd.v1.Actions, from the job's decisions.
#pragma once

#include <memory>

#include "grpcpp/impl/service_type.h"
#include "manager/actions/action_core.h"
#include "manager/switch/core.h"

namespace taskd::manager {

std::unique_ptr<grpc::Service> MakeActionService(std::shared_ptr<ActionCore> actions, const JobShape& shape);

}  // namespace taskd::manager
