// A running manager: the core with everything around it. RunManager (manager.h) is this plus signals.
#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "manager/manager.h"

namespace taskd::manager {

class ManagerServer {
 public:
  // `options` are resolved ones. Returns once gRPC answers; on any error nothing is left running.
  static absl::StatusOr<std::unique_ptr<ManagerServer>> Start(const ManagerOptions& options);
  ~ManagerServer();  // ends everything within a few seconds, whatever the clients do
  ManagerServer(const ManagerServer&) = delete;
  ManagerServer& operator=(const ManagerServer&) = delete;

  int port() const;       // of gRPC
  int http_port() const;  // 0: no HTTP

 private:
  class Impl;
  explicit ManagerServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace taskd::manager
