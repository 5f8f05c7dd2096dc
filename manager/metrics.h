// /metrics of the manager: the job in a few hundred series, whatever the number of its ranks (docs/metrics.md).
#pragma once

#include "common/http_server.h"
#include "manager/web_api.h"

namespace taskd::manager {

// Called in the HTTP server's thread.
HttpHandler MakeMetrics(const WebSources& sources);

}  // namespace taskd::manager
