// The door of a gRPC server: accepts connections, looks at their first byte, and hands each to the server that speaks
// what it begins with. gRPC's own listener can neither serve TLS and plain text at one port, nor bound its connections,
// nor accept again after descriptors ran out once.
//
// TLS ends here: gRPC gets what a peer says once that peer has proven itself, and not one byte before (tls_relay.h). A
// call that has a connection to itself need not go there at all (stream_connection.h).
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "common/address.h"
#include "common/handshake_budget.h"
#include "common/tls_channel.h"
#include "common/unique_fd.h"
#include "proto/stream_connection.h"

namespace taskd::proto {

class GrpcListener {
 public:
  // What a connection begins with.
  enum class Speaks : uint8_t {
    kTls,  // the peer has proven itself; what is taken over is in plain text, by a UNIX socket named for PeerOf()
    kPlain,
    kPlainOwn,  // and the kernel says that this user, or root, has the other end, on this machine
  };
  // Takes the connection over; nothing of it has been read. On the listener's thread.
  using Take = std::function<void(Speaks speaks, UniqueFd connection)>;

  // Calls that the listener serves itself, on its own thread: those that are the only one of a connection over TLS.
  // Null: none is served so. `peer`: its address. `ready`: to be called, on any thread and however late, when the
  // call's Next() may have something.
  using Open = std::function<std::unique_ptr<StreamCall>(std::string_view path, const std::string& peer,
                                                         std::function<void()> ready)>;

  // Budgets. A peer is an address, of IPv6 a /64, or on loopback a user.
  struct Limits {
    // For connections: one in plain text takes one, one of TLS three, or one if its call is served here. 0: what the
    // descriptor limit leaves when kSpareDescriptors are kept.
    size_t descriptors = 0;
    HandshakeBudget::Limits unproven = {};  // silent ones, too
    size_t plain = 1024;                    // connections in plain text
    size_t plain_of_peer = 128;
    // Of a peer that speaks TLS, half of `descriptors`: whoever floods leaves the others their half.
  };
  static constexpr size_t kSpareDescriptors = 256;  // for files, rings and what else the process opens

  // UNAVAILABLE, ALREADY_EXISTS: cannot listen there, and why. 0.0.0.0 and :: mean every address of the machine,
  // localhost both loopback addresses.
  // tls: null: whoever speaks it is closed.
  // bound: called once, before the first connection is taken; those that come meanwhile wait.
  static absl::StatusOr<std::unique_ptr<GrpcListener>> Listen(const HostPort& address, const Limits& limits,
                                                              std::shared_ptr<const TlsContext> tls, Take take,
                                                              const std::function<void(int port)>& bound = {},
                                                              Open open = nullptr);
  // Connections that were taken over end with their server; those of TLS have a second for their last bytes.
  ~GrpcListener();
  GrpcListener(const GrpcListener&) = delete;
  GrpcListener& operator=(const GrpcListener&) = delete;

  int port() const;
  // Closes what has not been taken over; `take` is not called after that. Those of TLS go on.
  void Stop();

 private:
  class Impl;
  explicit GrpcListener(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// "ipv4:10.0.0.7:40312": of whom gRPC says that he is `peer` (ServerContext::peer()), also where that is a relay of ours.
std::string PeerOf(const std::string& peer);

}  // namespace taskd::proto
