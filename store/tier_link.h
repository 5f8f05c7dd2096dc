// Connects a tier to the store above it. Tries again for ever.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "common/address.h"
#include "common/event_loop.h"
#include "common/frame_buffer.h"
#include "common/unique_fd.h"
#include "store/tier_frame.h"

namespace taskd::store {

// The default limit of a peer's silence: a VM that is migrated and a machine that swaps come back within it.
inline constexpr int64_t kPeerTimeoutMs = 60'000;

class TierLink {
 public:
  struct Callbacks {
    std::function<void(TierFrame)> received;
    std::function<void()> lost;  // an established connection is lost; open requests will not be answered
  };

  // To be used on the loop's thread. `secret` is proven to a store above that asks for it; empty: there is none.
  TierLink(EventLoop* loop, std::string secret, Callbacks callbacks);
  ~TierLink();
  TierLink(const TierLink&) = delete;
  TierLink& operator=(const TierLink&) = delete;

  // Sets how long the store above may be silent when its machine or network is gone, for connections from now on.
  void SetPeerTimeout(int64_t timeout_ms) { peer_timeout_ms_ = timeout_ms; }
  // Connects to `upstream` from now on. If it differs from the present one, an established connection is lost.
  void SetTarget(const HostPort& upstream);

  // Keeps the frame until there is a connection; Flush() writes it.
  void Send(const TierFrame& frame);
  void Flush();
  // Announces that the store above will end, which is then not logged.
  void ExpectEnd() { expect_end_ = true; }
  bool connected() const { return state_ == State::kConnected; }
  // Returns how long the store above waits for acknowledgements, as it last reported.
  std::optional<int64_t> patience_ms() const { return patience_ms_; }
  size_t unwritten_bytes() const { return out_.size() - written_; }
  uint64_t requests() const { return requests_; }
  uint64_t bytes() const { return bytes_; }

 private:
  enum class State { kApart, kConnecting, kGreeting, kConnected };

  void Connect();
  void Leave();
  void Retry(const std::string& reason);
  void OnEvent(uint32_t events);
  void Greet();
  bool Prove(const std::string& challenge);
  void Receive();
  void Write(std::string& out, size_t& written);

  EventLoop& loop_;
  const std::string secret_;
  HostPort upstream_;
  int64_t peer_timeout_ms_ = kPeerTimeoutMs;
  std::optional<int64_t> patience_ms_;
  const Callbacks callbacks_;
  State state_ = State::kApart;
  UniqueFd fd_;
  FrameBuffer in_{kMaxFrameBytes};
  std::string greeting_;
  size_t greeting_written_ = 0;
  std::string out_;
  size_t written_ = 0;
  bool broken_ = false;
  bool expect_end_ = false;
  EventLoop::TimerId timer_{};
  int64_t pause_ns_ = 0;
  std::string said_;  // the last reason that was logged
  uint64_t requests_ = 0;
  uint64_t bytes_ = 0;
};

}  // namespace taskd::store
