// A node's vote on the job's route plan (proto/taskd/v1/route_agreement.proto, `taskd route --agree`).
//
// Until it has acknowledged a plan, a node may fall back to identity by itself: no node adopts a plan that this one did
// not acknowledge. From then on only the manager knows how the round ended. Without its word the node writes nothing
// and fails: the others may have adopted the plan.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "agent/route/adoption.h"
#include "proto/channel.h"

namespace taskd::route {

struct AgreeOptions {
  std::string manager;  // HOST:PORT
  proto::Security security;
  std::string job;  // namespace/name; empty: the manager's
  int nodes = 0;    // 1..65536
  int index = 0;    // 0..nodes-1
  // Counted from the call of Decide. A node that has acknowledged waits kInDoubtWait longer for the verdict.
  int timeout_s = 60;
};

struct RouteDecision {
  bool adopt = false;  // false: identity
  std::string reason;  // of identity: one line that names a node's index or the manager's address
};

// Thread safety: one thread. Starts threads, so not before the process has forked what it forks without exec.
class RouteAgreement {
 public:
  static constexpr std::chrono::seconds kInDoubtWait{15};

  // INVALID_ARGUMENT names the flag, the value and the rule, or the TLS folder. Does not connect yet.
  static absl::StatusOr<std::unique_ptr<RouteAgreement>> Create(const AgreeOptions& options);
  virtual ~RouteAgreement() = default;

  // Once. Any error: write nothing, exit 1. FAILED_PRECONDITION: refused (rank tables differ, an index twice, another
  // job, a manager that knows no agreements). UNAUTHENTICATED, PERMISSION_DENIED: the token. UNAVAILABLE: acknowledged,
  // and then no verdict. Never INVALID_ARGUMENT.
  virtual absl::StatusOr<RouteDecision> Decide(const route::PlannedRoute& planned) = 0;

  // The files of the adopted plan are written. Waits up to 2 s to notify the manager; a failure to do so is no error.
  virtual void Written() = 0;
};

}  // namespace taskd::route
