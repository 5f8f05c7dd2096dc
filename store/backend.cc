#include "store/backend.h"

#include <algorithm>
#include <utility>

#include "store/root_core.h"

namespace taskd::store {
namespace {

constexpr size_t kMaxUplinkBacklog = 16 * 1024 * 1024;
constexpr int64_t kNsPerMs = 1'000'000;
constexpr int64_t kLeastMarginMs = 3'000;  // more than two ticks

}  // namespace

StoreBackend::StoreBackend(EventLoop* loop, bool is_tier, const std::string& secret, Callbacks callbacks)
    : callbacks_(std::move(callbacks)) {
  if (is_tier) {
    auto received = [this](TierFrame frame) {
      tier_->Received(std::move(frame));
      callbacks_.schedule();
    };
    uplink_ = std::make_unique<TierLink>(loop, secret, TierLink::Callbacks{received, callbacks_.lost});
  }
  Reset();
}

void StoreBackend::Reset() {
  sharing_ = std::make_unique<Sharing>(callbacks_.send_revoke);
  if (uplink_ == nullptr) {
    core_ = std::make_unique<RootCore>(callbacks_.host, sharing_.get());
    return;
  }
  auto tier = std::make_unique<TierCore>(callbacks_.host, sharing_.get(), [this](const TierFrame& frame) {
    uplink_->Send(frame);
    callbacks_.schedule();
  });
  tier_ = tier.get();
  core_ = std::move(tier);
}

StoreCore::Result StoreBackend::Execute(StoreCall& call) {
  const StoreCore::Result result = core_->Execute(call);
  if (result == StoreCore::Result::kBlocked) return result;
  ++requests_;
  callbacks_.schedule();  // a tier holds back requests that others may join
  return result;
}

void StoreBackend::Flush() {
  if (tier_ == nullptr) return;
  tier_->BeforeFlush();
  uplink_->Flush();
  if (uplink_->connected()) tier_->Flushed();
}

bool StoreBackend::is_full() const { return uplink_ != nullptr && uplink_->unwritten_bytes() > kMaxUplinkBacklog; }

std::vector<uint64_t> StoreBackend::Tick(int64_t now_ns) {
  sharing_->set_now_ns(now_ns);
  return sharing_->Late(now_ns - patience_ms() * kNsPerMs);
}

int64_t StoreBackend::patience_ms() const {
  if (uplink_ == nullptr) return peer_timeout_ms_;
  const int64_t above_ms = std::min(uplink_->patience_ms().value_or(peer_timeout_ms_), peer_timeout_ms_);
  return above_ms - std::min(std::max(above_ms / 12, kLeastMarginMs), above_ms / 2);
}

void StoreBackend::SetPeerTimeout(int64_t timeout_ms) {
  peer_timeout_ms_ = timeout_ms;
  if (uplink_ != nullptr) uplink_->SetPeerTimeout(timeout_ms);
}

}  // namespace taskd::store
