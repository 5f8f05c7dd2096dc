// grpc.health.v1.Health of a server in plain text.
#pragma once

#include <set>
#include <string>

#include "proto/plain_server.h"

namespace taskd::proto {

// Check and Watch: SERVING for the server ("") and `services` for as long as it is there; others are NOT_FOUND, or
// SERVICE_UNKNOWN for who watches.
void AddHealth(std::set<std::string> services, PlainServer::Methods* methods);

}  // namespace taskd::proto
