// What the manager shows over HTTP: /healthz, /metrics (Prometheus) and the page, and who may see it.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "manager/core.h"
#include "manager/diagnosis_core.h"
#include "manager/http.h"
#include "manager/supervision_core.h"

namespace taskd::manager {

// `serving`: whether gRPC answers; called in the HTTP server's thread, must not wait. Without it /healthz is 503.
HttpHandlers MakeHttpPages(std::shared_ptr<ManagerCore> core, std::shared_ptr<DiagnosisCore> diagnosis,
                           std::shared_ptr<SupervisionCore> supervision, std::function<bool()> serving);

// The page at / and what it is made of (manager/web).
HttpHandlers MakePage();

// Who may see more than /healthz (docs/security-model.md).
struct HttpAccess {
  bool anyone = false;
  bool own_user = false;  // the manager's own and root, over loopback
  std::string token;      // as a bearer token, or once as ?token=, for a cookie; empty: none is right
};
// The same pages; all but /healthz answer 401 to others.
HttpHandlers Protect(HttpHandlers pages, const HttpAccess& access);

}  // namespace taskd::manager
