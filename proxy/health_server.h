// Health for probes, on the address that agents of other implementations expect. It shows that a proxy is there and
// nothing more, so it answers in plain text, as probes ask.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace taskd::proxy {

class HealthServer {
 public:
  // INVALID_ARGUMENT: no address of ours to listen on. Any other error: the system's.
  static absl::StatusOr<std::unique_ptr<HealthServer>> Start(const std::string& address);
  ~HealthServer();

 private:
  class Impl;
  explicit HealthServer(std::unique_ptr<Impl> impl);

  std::unique_ptr<Impl> impl_;
};

}  // namespace taskd::proxy
