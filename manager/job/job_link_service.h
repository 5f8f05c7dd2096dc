// taskd.v1.JobLink: where the nodes of a job that was started in a mode of `taskd run` meet.
//
// Served over mutual TLS only: its callers have proven to be parts of the job.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "manager/job/job_messages.h"
#include "manager/switch/core.h"

namespace grpc {
class Service;
}

namespace taskd::manager {

struct JobLinkService {
  std::unique_ptr<grpc::Service> service;
  std::function<void()> close;  // ends its streams; before the server is shut down
};

// `on_waiting`: whom the nodes that are here wait for has changed (JobLinkCore::WaitsFor). `on_end`: the job has ended. Both
// take note and go.
// `hosted`: JobState.hosted. `remote`: commands may be run on nodes that take them; never on the strength of a stand-in
// for a secret.
JobLinkService MakeJobLinkService(const JobShape& shape, bool hosted, bool remote,
                                  std::function<void(const std::string&)> on_waiting,
                                  std::function<void(const JobEnd&)> on_end);

}  // namespace taskd::manager
