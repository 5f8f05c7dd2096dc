// Others than PyTorch's clients may meet on the store's port: what begins with a magic that is theirs.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace taskd::store {

// Whoever connects and sends 00 and `magic` is the service's. From then on both sides send frames
// (common/frame_buffer.h), whose meaning the server does not know. Callbacks run on the loop's thread.
struct FrameService {
  // 0: there is none. Else beyond kMaxKeyBytes, as a 1.x client may begin with 00 and the length of a key, and none of
  // the store's own magics (wire.h).
  uint32_t magic = 0;
  uint32_t max_frame_bytes = 0;  // of a peer, until SetMaxFrameBytes() sets another limit
  // `share`: who that is, for budgets (PeerShare() in common/peer_user.h). `is_own`: this user's or root's, as the
  // kernel says.
  std::function<void(uint64_t peer, const std::string& address, const std::string& share, bool is_own)> opened;
  std::function<void(uint64_t peer, std::string_view body)> received;
  std::function<void(uint64_t peer)> closed;
};

}  // namespace taskd::store
