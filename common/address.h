// HOST:PORT as users write it.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace taskd {

struct HostPort {
  std::string host;  // a name or an address, IPv6 without its brackets
  int port = 0;      // 0..65535; 0 lets the kernel choose where one listens
};

// "127.0.0.1:9601", "[::1]:9601", "node-0.svc:9601". INVALID_ARGUMENT names `what`, the value and the rule.
absl::StatusOr<HostPort> ParseHostPort(std::string_view what, std::string_view value);

// Puts IPv6 back into brackets.
std::string FormatHostPort(const HostPort& address);

// Whether a TCP server could listen there now; port 0 always can. ALREADY_EXISTS (it is in use) or UNAVAILABLE: `what`, the
// address and the system's reason, which gRPC's own listeners do not report. What is free now may be taken a moment later.
absl::Status CheckCanListen(std::string_view what, const HostPort& address);

// 127.0.0.0/8, ::1 and "localhost".
bool IsLoopback(const HostPort& address);

}  // namespace taskd
