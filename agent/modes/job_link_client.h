// A node's stream to the job's manager (proto/taskd/v1/job_link.proto). After a break it reconnects by itself and sends
// its state again; notices of the manager in between are lost, except `end`, which the manager repeats. It says each 2 s
// that this process runs; how long the manager may be silent is for its owner to decide.
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
    // The stream has ended or could not be opened. UNAUTHENTICATED, INVALID_ARGUMENT and UNIMPLEMENTED are final; any
    // other error is retried after 0.2 s. Not called after `end` or a refusal, which are the manager's last messages.
    std::function<void(const absl::Status&)> lost;
  };

  // INVALID_ARGUMENT: a bad address or TLS folder. A manager that does not answer is no error.
  static absl::StatusOr<std::unique_ptr<JobLinkClient>> Start(Options options, Callbacks callbacks);
  // Gives what is queued 1 s to be sent. No callback comes afterwards. Not from a callback.
  virtual ~JobLinkClient() = default;

  // Returns at once. Remote output is dropped while there is no stream or 64 MiB of it are queued; everything else is
  // kept (ready, ended) or sent again (mpirun).
  virtual void Send(v1::NodeReport report) = 0;
  // Ends the stream, if there is one, and opens another.
  virtual void Reopen() = 0;
};

}  // namespace taskd::modes
