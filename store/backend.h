// What a store's connections ask: the keys, or a tier's way to them with its uplink.
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
    std::function<void()> lost;      // a tier's: the store above is; Reset() is to follow
    std::function<void()> schedule;  // Flush() has something to do when the round ends
  };

  // `secret`: TierLink's.
  StoreBackend(EventLoop* loop, bool is_tier, const std::string& secret, Callbacks callbacks);

  // What the calls of connections come to. Execute(): as StoreCore's.
  StoreCore& core() { return *core_; }
  const StoreCore& core() const { return *core_; }
  StoreCore::Result Execute(StoreCall& call);
  // Forgets everything, as after a start.
  void Reset();

  // When a round ends: what was held back for others to join goes up.
  void Flush();
  // So much waits to be written to the upstream that nothing more may be asked of it.
  bool is_full() const;
  // Execute() may be called for this operation now.
  bool MayExecute(StoreOp op) const {
    const bool waits = op == StoreOp::kWait || op == StoreOp::kBarrier;
    return !is_full() && (!waits || core_->may_wait());
  }
  // To be called about once a second. The streams that have owed an acknowledgement for patience_ms().
  std::vector<uint64_t> Tick(int64_t now_ns);
  // The peer time-out, less than which a tier has for those below it: the store above is to see that tier's
  // acknowledgement, and not to give up the tier because of one below it.
  int64_t patience_ms() const;

  void SetPeerTimeout(int64_t timeout_ms);
  void SetUpstream(const HostPort& upstream) { uplink_->SetTarget(upstream); }
  void ExpectEnd() { uplink_->ExpectEnd(); }

  uint64_t bytes() const { return core_->bytes() + sharing_->bytes(); }  // of memory, about
  uint64_t requests() const { return requests_; }                        // executed
  uint64_t upstream_requests() const { return uplink_ == nullptr ? 0 : uplink_->requests(); }
  uint64_t upstream_bytes() const { return uplink_ == nullptr ? 0 : uplink_->bytes(); }

 private:
  const Callbacks callbacks_;
  std::unique_ptr<Sharing> sharing_;
  std::unique_ptr<StoreCore> core_;
  TierCore* tier_ = nullptr;          // core_, where this is a tier
  std::unique_ptr<TierLink> uplink_;  // a tier's
  int64_t peer_timeout_ms_ = kPeerTimeoutMs;
  uint64_t requests_ = 0;
};

}  // namespace taskd::store
