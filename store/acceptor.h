// Accepts connections to a store, and makes room if file descriptors are short.
//
// PyTorch 1.9 to 2.0 keeps a second connection for each client, which never sends a byte. The client spins if that
// connection is closed. So silence alone is not a reason to close a connection; see MakeRoom().
#pragma once

#include <sys/socket.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/address.h"
#include "common/event_loop.h"
#include "common/unique_fd.h"
#include "store/connections.h"

namespace taskd::store {

class StoreAcceptor {
 public:
  using Accepted = std::function<void(UniqueFd fd, const sockaddr_storage& address, const OwnerKey& owner)>;
  using ServesUser = std::function<bool(uid_t user)>;

  // `serves_user` is that of StoreServer::Options.
  StoreAcceptor(EventLoop* loop, Connections* connections, ServesUser serves_user, Accepted accepted)
      : loop_(*loop),
        connections_(*connections),
        serves_user_(std::move(serves_user)),
        accepted_(std::move(accepted)) {}
  ~StoreAcceptor();
  StoreAcceptor(const StoreAcceptor&) = delete;
  StoreAcceptor& operator=(const StoreAcceptor&) = delete;

  // Returns the errors of StoreServer::Start().
  absl::Status Listen(const HostPort& address, bool everywhere);
  void Start();  // accepts connections from now on
  int port() const { return port_; }

  void Tick();  // to be called about once a second

 private:
  struct Silent {
    size_t speaking = 0;  // connections of this address that have sent something
    std::vector<Connection*> silent;
  };
  static constexpr int64_t kLogIntervalNs = 60'000'000'000;

  void Accept();
  bool IsServed(int fd);
  bool MayHaveMore(int fd, const sockaddr_storage& address, OwnerKey& owner);
  void Pause(absl::string_view why);
  void MakeRoom(bool urgent);
  size_t CloseSilent(Silent& peer, bool urgent);

  EventLoop& loop_;
  Connections& connections_;
  const ServesUser serves_user_;
  const Accepted accepted_;
  UniqueFd listener_;
  int port_ = 0;
  size_t max_connections_ = SIZE_MAX;
  bool paused_ = false;  // no connection is accepted at the moment
  EventLoop::TimerId resume_{};
  int64_t paused_logged_ns_ = -kLogIntervalNs;
  int64_t made_room_ns_ = 0;
  int64_t refused_logged_ns_ = -kLogIntervalNs;
  int64_t strangers_logged_ns_ = -kLogIntervalNs;
};

}  // namespace taskd::store
