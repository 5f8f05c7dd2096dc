// Asks NCCL's RAS for one answer. It listens on each node of a job (NCCL 2.24 and later, JSON from 2.28.7 on) and
// answers for the whole job.
//
// The protocol, as NCCL's own client speaks it: lines of text, upper or lower case. The client says "CLIENT PROTOCOL 2"
// and is answered "SERVER PROTOCOL n"; each of "TIMEOUT s" and "SET FORMAT json" is answered "OK"; behind "STATUS" comes
// the answer, whose end is that the server closes.
//
// Anybody on the machine can listen there. Over loopback the answer is taken from a process of this user or root alone;
// it is bounded in bytes and time.
#pragma once

#include <chrono>
#include <cstddef>
#include <string>

#include "absl/status/statusor.h"
#include "common/address.h"
#include "common/environment.h"

namespace taskd::evidence {

// Where a rank's NCCL with this environment listens: NCCL_RAS_ADDR ("host:port", IPv6 in brackets), else
// localhost:28028. NOT_FOUND: nowhere (NCCL_RAS_ENABLE=0). INVALID_ARGUMENT: it is no address.
absl::StatusOr<HostPort> RasAddress(const Environment& environment);

// The answer, "{…}", as it came. NOT_FOUND: nobody listens there. UNAVAILABLE: why there is none, one line. Blocks, at
// most `timeout`, and as long as it takes to resolve a name.
absl::StatusOr<std::string> AskRas(const HostPort& address, size_t max_bytes, std::chrono::milliseconds timeout);

}  // namespace taskd::evidence
