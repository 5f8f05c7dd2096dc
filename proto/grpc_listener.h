// The door of a gRPC server: accepts connections, looks at their first byte, and hands each to the server that speaks
// what it begins with. gRPC's own listener can neither serve TLS and plain text at one port, nor bound its connections,
// nor accept again after descriptors ran out once.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "common/address.h"
#include "common/unique_fd.h"

namespace taskd::proto {

class GrpcListener {
 public:
  // What a connection begins with.
  enum class Speaks : uint8_t {
    kTls,
    kPlain,
    kPlainOwn,  // and the kernel says that this user, or root, has the other end, on this machine
  };
  // Takes the connection over; nothing of it has been read. On the listener's thread.
  using Take = std::function<void(Speaks speaks, UniqueFd connection)>;

  // Budgets. A peer is an address, or on loopback a user.
  struct Limits {
    size_t connections = 0;          // at once; 0: what the descriptor limit leaves when kSpareDescriptors are kept
    size_t silent = 1024;            // that have not sent a byte; the oldest goes when there are more
    int64_t first_byte_ms = 10'000;  // for a silent one
    size_t plain = 1024;             // connections in plain text
    size_t plain_of_peer = 128;
    // Of a peer that speaks TLS, half of `connections`: whoever floods leaves the others their half.
  };
  static constexpr size_t kSpareDescriptors = 256;  // for files, rings and what else the process opens

  // UNAVAILABLE, ALREADY_EXISTS: cannot listen there, and why. 0.0.0.0 and :: mean every address of the machine,
  // localhost both loopback addresses.
  // bound: called once, before the first connection is taken; those that come meanwhile wait.
  static absl::StatusOr<std::unique_ptr<GrpcListener>> Listen(const HostPort& address, const Limits& limits, Take take,
                                                              const std::function<void(int port)>& bound = {});
  ~GrpcListener();  // closes what has not been handed over; `take` is not called after that
  GrpcListener(const GrpcListener&) = delete;
  GrpcListener& operator=(const GrpcListener&) = delete;

  int port() const;

 private:
  class Impl;
  explicit GrpcListener(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace taskd::proto
