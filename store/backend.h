// The backend of a store's connections: the keys, or a tier's core and its uplink.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/address.h"
#include "common/event_loop.h"
#include "store/core.h"
#include "store/sharing.h"
#include "store/tier_core.h"
#include "store/tier_link.h"

namespace taskd::store {

class StoreBackend {
 public:
  struct Callbacks {
    StoreCoreHost host;
    Sharing::SendRevoke send_revoke;
    std::function<void()> lost;      // for a tier: the store above is lost; Reset() must follow
    std::function<void()> schedule;  // Flush() has to run when the round ends
  };

  // `secret` is that of TierLink.
  StoreBackend(EventLoop* loop, bool is_tier, const std::string& secret, Callbacks callbacks);

  // The core that executes the calls of connections. Execute() does what StoreCore's does.
  StoreCore& core() { return *core_; }
  const StoreCore& core() const { return *core_; }
  StoreCore::Result Execute(StoreCall& call);
  // Forgets all state, as after a start.
  void Reset();

  // Sends requests that were held back for others to join. To be called when a round ends.
  void Flush();
  // Returns true if too much waits to be written to the upstream: no more calls may be executed.
  bool is_full() const;
  // Returns true if Execute() may be called for this operation now.
  bool MayExecute(StoreOp op) const {
    const bool waits = op == StoreOp::kWait || op == StoreOp::kBarrier;
    return !is_full() && (!waits || core_->may_wait());
  }
  // To be called about once a second. Returns the streams that have owed an acknowledgement for patience_ms().
  std::vector<uint64_t> Tick(int64_t now_ns);
  // Returns how long to wait for acknowledgements: the peer timeout, and less for a tier. The store above must receive
  // the acknowledgement of this tier in time, and not give it up because of a tier below.
  int64_t patience_ms() const;

  void SetPeerTimeout(int64_t timeout_ms);
  void SetUpstream(const HostPort& upstream) { uplink_->SetTarget(upstream); }
  void ExpectEnd() { uplink_->ExpectEnd(); }

  uint64_t bytes() const { return core_->bytes() + sharing_->bytes(); }  // approximate memory
  uint64_t requests() const { return requests_; }                        // executed requests
  uint64_t upstream_requests() const { return uplink_ == nullptr ? 0 : uplink_->requests(); }
  uint64_t upstream_bytes() const { return uplink_ == nullptr ? 0 : uplink_->bytes(); }

 private:
  const Callbacks callbacks_;
  std::unique_ptr<Sharing> sharing_;
  std::unique_ptr<StoreCore> core_;
  TierCore* tier_ = nullptr;          // core_ if this is a tier
  std::unique_ptr<TierLink> uplink_;  // only for a tier
  int64_t peer_timeout_ms_ = kPeerTimeoutMs;
  uint64_t requests_ = 0;
};

}  // namespace taskd::store
