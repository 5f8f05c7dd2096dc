// One connection of a store's server: who is at its other end, the bytes in both directions, and what that peer has
// under way.
#pragma once

#include <sys/epoll.h>
#include <sys/socket.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "common/frame_buffer.h"
#include "common/unique_fd.h"
#include "store/core.h"
#include "store/tier_frame.h"
#include "store/wire.h"

namespace taskd::store {

// What waits to be read by the peer before its next request or frame is executed.
inline constexpr size_t kMaxUnreadReplies = 1024 * 1024;    // a client
inline constexpr size_t kMaxTierUnread = 16 * 1024 * 1024;  // a tier
// What the calls of one connection may take before others have their turn. The last call may take longer.
inline constexpr int64_t kPumpSliceNs = 2'000'000;
// What a connection keeps of replies that have been read.
inline constexpr size_t kMaxIdleBytes = 64 * 1024;

// An address without its port.
using PeerKey = std::array<char, 16>;
PeerKey KeyOf(const sockaddr_storage& address);

// Who has a connection: an address, of IPv6 its first 64 bits, and on loopback a user where that is known.
struct OwnerKey {
  PeerKey address{};
  std::optional<uid_t> user;

  template <typename H>
  friend H AbslHashValue(H h, const OwnerKey& owner) {
    return H::combine(std::move(h), owner.address, owner.user.has_value(), owner.user.value_or(0));
  }
  friend bool operator==(const OwnerKey&, const OwnerKey&) = default;
};
OwnerKey OwnerOf(const sockaddr_storage& address, std::optional<uid_t> user);

// A client is synchronous: one call at a time, but what ends a wait.
struct ClientCalls {
  std::optional<StoreCall> head;  // comes next: it is blocked, or the rest of one whose answer comes in parts
  uint64_t last_call = 0;
  uint64_t busy_with = 0;  // the call that is under way, 0 for none; waits not counted
  uint64_t waits_in = 0;   // its kWait or kBarrier
  size_t call_bytes = 0;   // of the call that is under way
  size_t wait_bytes = 0;   // of its kWait or kBarrier
};

struct TierCalls {
  struct Queued {
    TierFrame frame;
    size_t bytes;
  };
  struct UnderWay {
    StoreOp op;
    size_t bytes;
  };
  std::string challenge;  // to be answered before anything else
  bool greeted = false;
  uint64_t processed = 0;    // frames executed
  std::deque<Queued> queue;  // frames that wait for the one that is blocked
  size_t queue_bytes = 0;
  absl::flat_hash_map<uint64_t, UnderWay> under_way;  // by id: calls that have no answer yet
  size_t under_way_bytes = 0;
};

struct Connection {
  // What has come from the peer so far. kWhole: a request, or it is a tier or the frame service's.
  enum class Received : uint8_t { kNothing, kBytes, kWhole };

  Connection(StoreDialect unvalidated, uint32_t service_magic) : parser(unvalidated, service_magic) {}

  uint64_t id = 0;
  UniqueFd fd;
  PeerKey peer{};
  OwnerKey owner;
  bool user_asked = false;  // whose it is was asked of the kernel
  int64_t accepted_ns = 0;
  Received received = Received::kNothing;

  StoreParser parser;                   // recognises the kind of peer; then parses a client's requests
  std::unique_ptr<FrameBuffer> frames;  // what others send
  ClientCalls client;
  std::unique_ptr<TierCalls> tier;

  std::string out;
  size_t written = 0;  // of `out`
  uint32_t interest = EPOLLIN;
  size_t charged = 0;         // of what the server's connections keep in memory
  size_t charged_unread = 0;  // of what they have not read
  int64_t answered_ns = 0;    // when something was added to what it has not read
  bool dirty = false;         // there is something to be written when the round ends
  bool blocked = false;       // its next call waits for StoreCoreHost::resume, or is held back
  bool doomed = false;        // it is closed when the round ends
  bool close_when_written = false;

  // Or the kind of peer is not known yet.
  bool is_client() const { return frames == nullptr; }
  size_t unread() const { return out.size() - written; }
  // There may be something to execute.
  bool HasMore() const;
  size_t received_bytes() const;  // and not executed
  size_t bytes() const;           // of memory, about
  // Writes as much as the peer takes. False: the connection is lost.
  bool Write();
};

}  // namespace taskd::store
