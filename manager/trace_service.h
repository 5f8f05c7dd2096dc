// ClusterD's TrainingDataTrace (TaskD contract §1.1; "The switch" in docs/architecture.md).
#pragma once

#include <memory>
#include <string>

#include "manager/core.h"

namespace grpc {
class Service;
}

namespace taskd::manager {

struct TraceAccess {
  // Whoever reaches the service may call it: it is served over mutual TLS, or the operator allows plain text.
  bool open = true;
  // Otherwise a call needs this as its bearer token; empty: none is right.
  std::string token;
};

// Keeps no state but its subscriptions, which ManagerCore::Close ends.
std::unique_ptr<grpc::Service> MakeTraceService(std::shared_ptr<ManagerCore> core, const TraceAccess& access);

}  // namespace taskd::manager
