// What the manager shows over HTTP: /healthz and /metrics (Prometheus).
#pragma once

#include <functional>
#include <memory>

#include "manager/core.h"
#include "manager/diagnosis_core.h"
#include "manager/http.h"
#include "manager/supervision_core.h"

namespace taskd::manager {

// `serving`: whether gRPC answers; called in the HTTP server's thread, must not wait. Without it /healthz is 503.
HttpHandlers MakeHttpPages(std::shared_ptr<ManagerCore> core, std::shared_ptr<DiagnosisCore> diagnosis,
                           std::shared_ptr<SupervisionCore> supervision, std::function<bool()> serving);

}  // namespace taskd::manager
