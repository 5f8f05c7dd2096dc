// GET /healthz and GET /metrics (Prometheus), read-only.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "common/address.h"
#include "manager/core.h"
#include "manager/diagnosis_core.h"
#include "manager/supervision_core.h"

namespace taskd::manager {

class HttpServer {
 public:
  // UNAVAILABLE: the address cannot be listened on, with the system's reason.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(const HostPort& address, std::shared_ptr<ManagerCore> core,
                                                           std::shared_ptr<DiagnosisCore> diagnosis,
                                                           std::shared_ptr<SupervisionCore> supervision);
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  int port() const;

 private:
  class Impl;
  explicit HttpServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace taskd::manager
