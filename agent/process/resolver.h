// Names to addresses without blocking an event loop, and whether they are this machine's.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/address.h"
#include "common/event_loop.h"

namespace taskd::process {

struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t length = 0;
};

// Any address of any interface of this machine, loopback included.
bool IsOwnAddress(const SocketAddress& address);

// Whether `host` is this machine: "localhost", its name, its full name, or a name or address of which `addresses` (what
// it resolves to) has one of this machine's. A name that does not resolve (yet) is compared by its first label.
bool IsThisMachine(const std::string& host, const std::vector<SocketAddress>& addresses);

class Resolver {
 public:
  // UNAVAILABLE: the system's reason. Never an empty list.
  using Callback = std::function<void(absl::StatusOr<std::vector<SocketAddress>>)>;

  // `loop` must outlive this.
  explicit Resolver(EventLoop* loop) : loop_(loop) {}
  ~Resolver() { Cancel(); }
  Resolver(const Resolver&) = delete;
  Resolver& operator=(const Resolver&) = delete;

  // Calls back on the loop's thread, later. One at a time: another Resolve() cancels the one before.
  void Resolve(const HostPort& address, Callback callback);
  void Cancel();

 private:
  struct Query;

  EventLoop* const loop_;
  std::shared_ptr<Query> query_;
};

}  // namespace taskd::process
