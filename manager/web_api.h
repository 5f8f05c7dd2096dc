// What the page and programs read over HTTP: /api/v1/..., JSON with "schema":1 (docs/formats.md).
//
// Design: a rendering is shared by all who ask for the same within kShared, so that viewers cost next to nothing. All
// renderings kept have a size in bytes; above it the oldest go.
#pragma once

#include <chrono>
#include <memory>

#include "common/http_server.h"
#include "manager/core.h"
#include "manager/diagnosis_core.h"
#include "manager/event_log.h"
#include "manager/history.h"
#include "manager/supervision_core.h"

namespace taskd::manager {

struct WebSources {
  std::shared_ptr<ManagerCore> core;
  std::shared_ptr<DiagnosisCore> diagnosis;
  std::shared_ptr<SupervisionCore> supervision;
  std::shared_ptr<const History> history;
  std::shared_ptr<const EventLog> events;
  SteadyTime started;  // of the manager: since then there is history
};

inline constexpr std::chrono::milliseconds kSharedRendering{500};

// The handlers are called in one thread, the HTTP server's.
HttpHandlers MakeWebApi(const WebSources& sources);

}  // namespace taskd::manager
