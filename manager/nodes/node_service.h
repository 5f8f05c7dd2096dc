// taskd.v1.NodeLink: the proxies' streams.
//
// Served over mutual TLS only: its callers have proven to be parts of the job.
#pragma once

#include <memory>

#include "manager/switch/core.h"
#include "manager/verdicts/diagnosis_core.h"
#include "proto/grpc_listener.h"

namespace grpc {
class Service;
}

namespace taskd::manager {

// Both keep no state but the streams, which ManagerCore::Close ends. Proxies have a connection for their stream alone,
// and are served by the listener; whoever has other calls on the same connection is served by gRPC.
proto::GrpcListener::Open OpenNodeStreams(std::shared_ptr<ManagerCore> core, std::shared_ptr<DiagnosisCore> diagnosis);
std::unique_ptr<grpc::Service> MakeNodeService(std::shared_ptr<ManagerCore> core,
                                               std::shared_ptr<DiagnosisCore> diagnosis);

}  // namespace taskd::manager
