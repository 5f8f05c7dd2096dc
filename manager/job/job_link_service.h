// taskd.v1.JobLink: where the nodes of a job that was started in a mode of `taskd run` meet.
//
// Served over mutual TLS only: whoever calls it has proven to be a part of the job.
#pragma once

#include <functional>
#include <memory>

#include "manager/switch/core.h"

namespace grpc {
class Service;
}

namespace taskd::manager {

struct JobLinkService {
  std::unique_ptr<grpc::Service> service;
  std::function<void()> close;  // ends its streams; before the server is shut down
};

// `hosted`: JobState.hosted. `remote`: commands may be run on nodes that take them; never on the strength of a stand-in
// for a secret.
JobLinkService MakeJobLinkService(const JobShape& shape, bool hosted, bool remote);

}  // namespace taskd::manager
