// A node's stream to the job's manager (proto/taskd/v1/job_link.proto). It comes back by itself after a break, and says
// again what it had said; what came in between is lost, but for `end`, which is told again.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "proto/security.h"
#include "taskd/v1/job_link.pb.h"

namespace taskd::modes {

// Thread safety: any thread. Starts threads, so not before the process has forked what it forks without exec.
class JobLinkClient {
 public:
  struct Options {
    std::string manager;  // HOST:PORT
    proto::Security security;
    v1::JoinJob join;
  };
  // In a thread of the client's, one at a time; they return soon.
  struct Callbacks {
    std::function<void(const v1::JobNotice&)> notice;
    // The stream has ended, or none could be had: UNAUTHENTICATED, INVALID_ARGUMENT and UNIMPLEMENTED are final;
    // after all else it is tried again, 0.2 s later; not after an `end` or a refusal, which are the manager's last
    // word.
    std::function<void(const absl::Status&)> lost;
  };

  // INVALID_ARGUMENT: a bad address or TLS folder. That nobody answers there is no error.
  static absl::StatusOr<std::unique_ptr<JobLinkClient>> Start(Options options, Callbacks callbacks);
  // Gives what is queued 1 s to be sent. No callback comes afterwards. Not from a callback.
  virtual ~JobLinkClient() = default;

  // Returns at once. Remote output that finds no stream, or 64 MiB of it waiting already, is dropped; everything else
  // is kept (ready, ended) or sent again (mpirun).
  virtual void Send(v1::NodeReport report) = 0;
};

}  // namespace taskd::modes
