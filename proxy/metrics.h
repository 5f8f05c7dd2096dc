// /metrics of a proxy: its node's ranks, a few dozen series each (docs/metrics.md).
#pragma once

#include <string>

#include "common/http_server.h"
#include "proxy/node.h"

namespace taskd::proxy {

// `node` outlives the handler, which is called in the HTTP server's thread.
HttpHandler MakeMetrics(const Node* node, int node_rank, const std::string& host);

}  // namespace taskd::proxy
