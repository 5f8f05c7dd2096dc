// One connection of a store's server: its peer, the bytes in both directions, and the calls that the peer has under
// way.
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

// The limits of the unread bytes of a peer, beyond which its next request or frame is not executed.
inline constexpr size_t kMaxUnreadReplies = 1024 * 1024;    // for a client
inline constexpr size_t kMaxTierUnread = 16 * 1024 * 1024;  // for a tier
// The time that the calls of one connection may take before other connections have their turn. The last call may exceed
// it.
inline constexpr int64_t kPumpSliceNs = 2'000'000;
// The largest buffer that a connection keeps when its replies have been read.
inline constexpr size_t kMaxIdleBytes = 64 * 1024;

// An address without its port.
using PeerKey = std::array<char, 16>;
PeerKey KeyOf(const sockaddr_storage& address);

// The owner of a connection: an address (of IPv6 its first 64 bits), and on loopback the user if it is known.
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

// A client is synchronous: it has one call at a time, besides a request that ends a wait.
struct ClientCalls {
  std::optional<StoreCall> head;  // comes next: it is blocked, or the rest of a call whose answer comes in parts
  uint64_t last_call = 0;
  uint64_t busy_with = 0;  // the call that is under way, 0 if there is none; waits are not counted
  uint64_t waits_in = 0;   // the id of its kWait or kBarrier
  size_t call_bytes = 0;   // memory of the call that is under way
  size_t wait_bytes = 0;   // memory of its kWait or kBarrier
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
  std::string challenge;  // the peer has to answer this before anything else
  bool greeted = false;
  uint64_t processed = 0;    // number of executed frames
  std::deque<Queued> queue;  // frames that wait for the blocked one
  size_t queue_bytes = 0;
  absl::flat_hash_map<uint64_t, UnderWay> under_way;  // by id: calls that have no answer yet
  size_t under_way_bytes = 0;
};

struct Connection {
  // How much has come from the peer so far. kWhole: a request, or the peer is a tier or belongs to the frame service.
  enum class Received : uint8_t { kNothing, kBytes, kWhole };

  Connection(StoreDialect unvalidated, uint32_t service_magic) : parser(unvalidated, service_magic) {}

  uint64_t id = 0;
  UniqueFd fd;
  PeerKey peer{};
  OwnerKey owner;
  bool user_asked = false;  // the kernel was asked for the user
  int64_t accepted_ns = 0;
  Received received = Received::kNothing;

  StoreParser parser;                   // recognises the kind of peer, then parses a client's requests
  std::unique_ptr<FrameBuffer> frames;  // bytes from other kinds of peers
  ClientCalls client;
  std::unique_ptr<TierCalls> tier;

  std::string out;
  size_t written = 0;  // bytes of `out`
  uint32_t interest = EPOLLIN;
  size_t charged = 0;         // counted in Connections::buffered_bytes()
  size_t charged_unread = 0;  // counted in Connections::unread_bytes()
  int64_t answered_ns = 0;    // time when its unread bytes last grew
  bool dirty = false;         // `out` has to be written when the round ends
  bool blocked = false;       // its next call waits for StoreCoreHost::resume, or is held back
  bool doomed = false;        // the connection is closed when the round ends
  bool close_when_written = false;

  // Returns true for a client, and while the kind of peer is unknown.
  bool is_client() const { return frames == nullptr; }
  size_t unread() const { return out.size() - written; }
  // Returns true if there may be something to execute.
  bool HasMore() const;
  size_t received_bytes() const;  // bytes that are not executed yet
  size_t bytes() const;           // approximate memory
  // Writes as much as the peer takes. Returns false if the connection is lost.
  bool Write();
};

}  // namespace taskd::store
