// gRPC server reflection without threads: the one that comes with gRPC keeps a thread for every stream.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "grpcpp/impl/service_type.h"

namespace taskd::manager {

// `services`: full names of those that the server has. Answers list_services, file_by_filename and
// file_containing_symbol; NOT_FOUND in the answer to anything else.
std::unique_ptr<grpc::Service> MakeReflectionService(std::vector<std::string> services);

}  // namespace taskd::manager
