// What the page and programs read over HTTP: /api/v1/..., JSON with "schema":1, and /report.html (docs/formats.md).
//
// Design: a rendering is shared by all who ask for the same within kSharedRendering, so that viewers cost next to
// nothing. All renderings kept have a size in bytes; above it the oldest go.
#pragma once

#include <chrono>

#include "common/http_server.h"
#include "manager/page/job_sources.h"

namespace taskd::manager {

inline constexpr std::chrono::milliseconds kSharedRendering{500};

// The handlers are called in one thread, the HTTP server's.
HttpHandlers MakeWebApi(const JobSources& sources);

}  // namespace taskd::manager
