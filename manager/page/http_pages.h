// What the manager shows over HTTP beside its data: /healthz and the page.
#pragma once

#include <functional>

#include "common/http_server.h"

namespace taskd::manager {

// /healthz. `serving`: whether gRPC answers; called in the HTTP server's thread, must not wait. Without it: 503.
HttpHandler MakeHealth(std::function<bool()> serving);

// The page at / and what it is made of (manager/page/web).
HttpHandlers MakePage();

}  // namespace taskd::manager
