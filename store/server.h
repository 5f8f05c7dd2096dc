// A TCPStore server for clients of PyTorch, root or tier. One epoll thread serves any number of servers.
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
  uint64_t connections = 0;        // open now, of every kind
  uint64_t tiers = 0;              // of these, tiers
  uint64_t requests = 0;           // served since the start; of clients and tiers
  uint64_t upstream_requests = 0;  // sent to the upstream since the start
  uint64_t upstream_bytes = 0;
  uint64_t keys = 0;     // at the root: keys; at a tier: copies that it holds
  uint64_t waiting = 0;  // clients that wait for keys now
  uint64_t refused = 0;  // connections closed because of what they sent
  uint64_t bytes = 0;    // of memory, about: keys, values, copies and what connections keep
};

// 4 GiB, or a quarter of AvailableMemoryBytes() where that is less.
uint64_t DefaultStoreMemoryBytes();

class StoreServer {
 public:
  struct Options {
    HostPort listen;          // port 0: a free one
    bool dual_stack = false;  // also listen on every address of the machine, IPv4 and IPv6, not only `listen.host`
    bool is_tier = false;     // a tier, whose upstream SetUpstream() sets; until then its clients wait
    std::string upstream;     // HOST:PORT of a taskd store; empty: this is the root
    StoreDialect unvalidated = StoreDialect::k1x;
    // Over loopback tiers and peers of the frame service are this user's or root's, where the kernel tells. Where this is
    // set clients are, too, or of a user for whom it is true; it is called on the loop's thread.
    std::function<bool(uid_t user)> serves_user;
    // What tiers below have to prove, and this tier proves to the store above that asks for it. Empty: nothing.
    std::string secret;
    FrameService frame_service;  // whom else this port is for
    // What StoreStats::bytes may become. Beyond it whoever wants to write is closed, and others go on reading.
    uint64_t memory_limit_bytes = DefaultStoreMemoryBytes();
  };

  // `loop` must outlive the server; call on its thread or before it runs.
  // ALREADY_EXISTS: the address is in use (message: "address in use" and, where that is readable, by whom).
  // INVALID_ARGUMENT: the upstream is not HOST:PORT. UNAVAILABLE: cannot listen for another reason.
  static absl::StatusOr<std::unique_ptr<StoreServer>> Start(EventLoop* loop, const Options& options);
  virtual ~StoreServer() = default;  // closes every connection

  virtual int port() const = 0;
  virtual StoreStats stats() const = 0;
  // Tier only. Another upstream than before: all connections are closed, as if the old one had died.
  virtual void SetUpstream(const HostPort& upstream) = 0;
  // Of tiers, of peers of the frame service and of a tier's own upstream that connect from now on: how long one may be
  // silent whose machine or network is gone, or owe what others wait for. Before the first call 60 s.
  virtual void SetPeerTimeout(int64_t timeout_ms) = 0;
  // Tier only: the job is over, the store above will go, which is not logged.
  virtual void ExpectEnd() = 0;
  // To peers of the frame service. One that is gone: nothing happens.
  virtual void SendFrame(uint64_t peer, std::string_view body) = 0;
  virtual void SetMaxFrameBytes(uint64_t peer, uint32_t bytes) = 0;  // of what it sends
  virtual void ClosePeer(uint64_t peer) = 0;                         // after what was sent has been written
  // Root only, between two tries of the job, when no rank runs: forgets the keys that clients of 2.2 and later wrote,
  // who expect a new store for every try, or all. Clients of 1.x put the number of the try into their keys: for them
  // `all` is needed only where that number stays.
  virtual void ForgetTry(bool all) = 0;
};

}  // namespace taskd::store
