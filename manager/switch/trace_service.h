// ClusterD's TrainingDataTrace, as a service of gRPC's and for plain text. Both keep no state but their subscriptions,
// which ManagerCore::Close ends.
#pragma once

#include <memory>

#include "manager/switch/core.h"
#include "proto/plain_server.h"

namespace grpc {
class Service;
}

namespace taskd::manager {

std::unique_ptr<grpc::Service> MakeTraceService(std::shared_ptr<ManagerCore> core);
proto::PlainServer::Methods MakePlainTraceMethods(std::shared_ptr<ManagerCore> core);

}  // namespace taskd::manager
