// `taskd store`: a TCPStore server for clients of PyTorch, or a tier of one, in the foreground.
#pragma once

#include <string>

#include "absl/status/status.h"

namespace taskd {

struct StoreCommandOptions {
  std::string listen;            // HOST:PORT; port 0: a free one
  std::string upstream;          // HOST:PORT of a taskd store whose tier this is; empty: none
  std::string dialect = "auto";  // auto, 1.x, 2.1, 2.x: what clients without VALIDATE are taken for
  uint32_t memory_limit_mb = 0;  // in MiB (StoreServer::Options); 0: DefaultStoreMemoryBytes()
  double stats_s = 0;            // a line of JSON on stderr so often; 0: never
};

// Prints "listening HOST:PORT" when it is ready, and returns after SIGTERM or SIGINT. Raises the soft limit of open
// files: each client takes one. INVALID_ARGUMENT: wrong usage. ALREADY_EXISTS: the address is in use.
absl::Status RunStoreCommand(const StoreCommandOptions& options);

}  // namespace taskd
