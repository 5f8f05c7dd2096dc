// Whether a call means this manager's job.
#pragma once

#include <string>

#include "absl/strings/str_cat.h"
#include "grpcpp/support/status.h"
#include "manager/switch/core.h"

namespace taskd::manager {

// OK: the name is empty or this job's. INVALID_ARGUMENT: it is no NAMESPACE/NAME. NOT_FOUND: it is another job's.
inline grpc::Status CheckJob(const std::string& job, const JobShape& shape) {
  if (job.empty()) return grpc::Status::OK;
  const absl::Status name = CheckJobName(job);
  if (!name.ok()) return {grpc::StatusCode::INVALID_ARGUMENT, std::string(name.message())};
  if (!shape.job.empty() && job != shape.job) {
    return {grpc::StatusCode::NOT_FOUND, absl::StrCat("job ", job, " is not this manager's, ", shape.job)};
  }
  return grpc::Status::OK;
}

}  // namespace taskd::manager
