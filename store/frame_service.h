// Serves peers other than PyTorch's clients on the store's port: connections that begin with the magic of the service.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace taskd::store {

// A peer that connects and sends 00 and `magic` belongs to the service. From then on both sides send frames
// (common/frame_buffer.h), whose meaning the server does not know. Callbacks run on the loop's thread.
struct FrameService {
  // 0: there is no service. Other values exceed kMaxKeyBytes, because a 1.x client may begin with 00 and the length of
  // a key. They also differ from the store's own magics (wire.h).
  uint32_t magic = 0;
  uint32_t max_frame_bytes = 0;  // limit for a peer's frames until SetMaxFrameBytes() sets another
  // `share` identifies the peer for budgets (PeerShare() in common/peer_user.h). `is_own`: the kernel reports that the
  // peer runs as this user or root.
  std::function<void(uint64_t peer, const std::string& address, const std::string& share, bool is_own)> opened;
  std::function<void(uint64_t peer, std::string_view body)> received;
  std::function<void(uint64_t peer)> closed;
};

}  // namespace taskd::store
