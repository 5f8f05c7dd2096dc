// A TCPStore server for clients of PyTorch, as root or tier. One epoll thread serves any number of servers.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "common/address.h"
#include "common/event_loop.h"
#include "store/frame_service.h"
#include "store/request.h"

namespace taskd::store {

struct StoreStats {
  uint64_t connections = 0;        // open now, of all kinds
  uint64_t tiers = 0;              // tiers among these
  uint64_t requests = 0;           // served to clients and tiers since the start
  uint64_t upstream_requests = 0;  // sent to the upstream since the start
  uint64_t upstream_bytes = 0;
  uint64_t keys = 0;     // at the root: keys; at a tier: copies that it holds
  uint64_t waiting = 0;  // clients that wait for keys now
  uint64_t refused = 0;  // connections closed because of what they sent
  uint64_t bytes = 0;    // approximate memory of keys, values, copies and connections
};

// Returns 4 GiB, or a quarter of AvailableMemoryBytes() if that is less.
uint64_t DefaultStoreMemoryBytes();

class StoreServer {
 public:
  struct Options {
    HostPort listen;          // port 0: any free port
    bool dual_stack = false;  // also listen on every address of the machine, IPv4 and IPv6, not only `listen.host`
    bool is_tier = false;     // SetUpstream() sets a tier's upstream; until then its clients wait
    std::string upstream;     // HOST:PORT of a taskd store; empty: this is the root
    StoreDialect unvalidated = StoreDialect::k1x;
    // Over loopback, tiers and peers of the frame service must run as this user or root, if the kernel reports the
    // user. If this is set, clients must too, or as a user for which it returns true. It is called on the loop's
    // thread.
    std::function<bool(uid_t user)> serves_user;
    // Tiers below have to prove this secret, and this tier proves it to a store above that asks for it. Empty: there is
    // none.
    std::string secret;
    FrameService frame_service;  // other peers that this port serves
    // The limit of StoreStats::bytes. Beyond it, connections that want to write are closed, and others may still read.
    uint64_t memory_limit_bytes = DefaultStoreMemoryBytes();
  };

  // `loop` must outlive the server; call this on its thread or before it runs. ALREADY_EXISTS: the address is in use
  // (the message says so, and names the process if that is readable). INVALID_ARGUMENT: the upstream is not HOST:PORT.
  // UNAVAILABLE: listening failed for another reason.
  static absl::StatusOr<std::unique_ptr<StoreServer>> Start(EventLoop* loop, const Options& options);
  virtual ~StoreServer() = default;  // closes all connections

  virtual int port() const = 0;
  virtual StoreStats stats() const = 0;
  // Only for tiers. If the upstream changes, all connections are closed, as if the old upstream had died.
  virtual void SetUpstream(const HostPort& upstream) = 0;
  // Sets how long a peer may be silent when its machine or network is gone, or owe an acknowledgement that others wait
  // for. It holds for tiers, peers of the frame service and a tier's own upstream that connect from now on. The default
  // is 60 s.
  virtual void SetPeerTimeout(int64_t timeout_ms) = 0;
  // Only for tiers: announces that the job is over and the store above will end, which is then not logged.
  virtual void ExpectEnd() = 0;
  // Sends a frame to a peer of the frame service. Ignores a peer that has gone.
  virtual void SendFrame(uint64_t peer, std::string_view body) = 0;
  virtual void SetMaxFrameBytes(uint64_t peer, uint32_t bytes) = 0;  // limit for the frames that it sends
  virtual void ClosePeer(uint64_t peer) = 0;                         // closes it after its frames have been written
  // Only for the root, between two tries of the job, when no rank runs. Forgets the keys that clients of 2.2 and later
  // wrote, which expect a new store for each try, or all keys. Clients of 1.x put the number of the try into their
  // keys: for them `all` is needed only if that number stays the same.
  virtual void ForgetTry(bool all) = 0;
};

}  // namespace taskd::store
