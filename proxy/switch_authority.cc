#include "proxy/switch_authority.h"

#include <utility>

#include "common/log.h"
#include "proxy/tick_clock.h"

namespace taskd::proxy {
namespace {

// Without a manager for this long, the node's own switch file is obeyed: longer than a manager takes to restart.
constexpr uint64_t kManagerGraceNs = 2'000'000'000;

}  // namespace

SwitchAuthority::SwitchAuthority(Node* node, std::string state_path, ProxyState state)
    : node_(node), state_path_(std::move(state_path)), state_(std::move(state)), alone_since_ns_(ReadMonotonicNs()) {}

void SwitchAuthority::OnManagerWanted(const WantedKinds& wanted) {
  std::lock_guard<std::mutex> lock(mutex_);
  Apply(wanted);
}

void SwitchAuthority::OnManagerConnected(bool connected) {
  std::lock_guard<std::mutex> lock(mutex_);
  connected_ = connected;
  alone_since_ns_ = ReadMonotonicNs();
}

void SwitchAuthority::OnFileChange(const SwitchChange& change) {
  std::lock_guard<std::mutex> lock(mutex_);
  file_state_ = ApplyClusterdChange(file_state_.value_or(SwitchState{}), change);
  file_applied_ = false;
}

void SwitchAuthority::WaitUntilDecided(std::chrono::milliseconds patience) {
  std::unique_lock<std::mutex> lock(mutex_);
  decided_.wait_for(lock, patience, [this] { return applied_.has_value(); });
}

void SwitchAuthority::Tick() {
  std::lock_guard<std::mutex> lock(mutex_);
  if (connected_ || !file_state_ || ReadMonotonicNs() - alone_since_ns_ < kManagerGraceNs) {
    // After the manager the file has to be applied anew.
    if (connected_) file_applied_ = false;
    return;
  }
  if (file_applied_) return;
  file_applied_ = true;
  spdlog::info("no manager answers: the switch file decides");
  Apply({file_state_->effective, 0});
}

void SwitchAuthority::Apply(const WantedKinds& wanted) {
  const bool changed = !applied_ || applied_->kinds != wanted.kinds;
  applied_ = wanted;
  node_->SetWanted(wanted);
  decided_.notify_all();
  if (!changed) return;
  state_.wanted = wanted.kinds;
  SaveProxyState(state_path_, state_);
}

}  // namespace taskd::proxy
