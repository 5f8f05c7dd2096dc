// /metrics of the manager: the job in a few hundred series, whatever the number of its ranks (docs/metrics.md).
#pragma once

#include "common/http_server.h"
#include "manager/page/job_sources.h"

namespace taskd::manager {

// Called in the HTTP server's thread of pages.
HttpHandler MakeMetrics(const JobSources& sources);

}  // namespace taskd::manager
