// The gRPC services of the manager over its cores. They keep no state of their own but the streams under way, which
// ManagerCore::Close and DiagnosisCore::Close and SupervisionCore::Close end. Those of taskd.v1 are served over mutual
// TLS only: whoever calls them has proven to be a part of the job.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "manager/core.h"

namespace grpc {
class Service;
}

namespace taskd::manager {

class DiagnosisCore;
class SupervisionCore;

// ClusterD's TrainingDataTrace (TaskD contract §1.1, DESIGN of the switch in docs/architecture.md).
struct TraceAccess {
  // Whoever reaches the service may call it: it is served over mutual TLS, or the operator allows plain text.
  bool open = true;
  // Otherwise a call needs this as its bearer token; empty: none is right.
  std::string token;
};
std::unique_ptr<grpc::Service> MakeTraceService(std::shared_ptr<ManagerCore> core, const TraceAccess& access);
// taskd.v1.NodeLink: the proxies' streams.
std::unique_ptr<grpc::Service> MakeNodeService(std::shared_ptr<ManagerCore> core,
                                               std::shared_ptr<DiagnosisCore> diagnosis);
// taskd.v1.Control: what `taskd switch` and `taskd status` ask. `started` is the manager's.
std::unique_ptr<grpc::Service> MakeControlService(std::shared_ptr<ManagerCore> core,
                                                  std::shared_ptr<SupervisionCore> supervision, SteadyTime started);
// taskd.v1.Diagnosis: what `taskd diagnose --manager` asks.
std::unique_ptr<grpc::Service> MakeDiagnosisService(std::shared_ptr<DiagnosisCore> core, const JobShape& shape);
// taskd.v1.Supervision: what launchers report, and hear of hangs.
std::unique_ptr<grpc::Service> MakeSupervisionService(std::shared_ptr<SupervisionCore> core, const JobShape& shape);
// taskd.v1.RouteAgreement: `taskd route --agree` of all nodes. Its rounds end with its streams.
std::unique_ptr<grpc::Service> MakeRouteAgreementService(const JobShape& shape);

// taskd.v1.JobLink: where the nodes of a job that was started in a mode of `taskd run` meet. `hosted`: JobState.hosted.
// `remote`: commands may be run on nodes that take them; never on the strength of a stand-in for a secret.
struct JobLinkService {
  std::unique_ptr<grpc::Service> service;
  std::function<void()> close;  // ends its streams; before the server is shut down
};
JobLinkService MakeJobLinkService(const JobShape& shape, bool hosted, bool remote);

}  // namespace taskd::manager
