#include "store/connection.h"

#include <netinet/in.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace taskd::store {

PeerKey KeyOf(const sockaddr_storage& address) {
  PeerKey key{};
  if (address.ss_family == AF_INET6) {
    memcpy(key.data(), &reinterpret_cast<const sockaddr_in6&>(address).sin6_addr, key.size());
  } else {
    memcpy(key.data(), &reinterpret_cast<const sockaddr_in&>(address).sin_addr, sizeof(in_addr));
  }
  return key;
}

OwnerKey OwnerOf(const sockaddr_storage& address, std::optional<uid_t> user) {
  OwnerKey owner{KeyOf(address), user};
  if (user) {
    owner.address = {};  // 127.0.0.1, 127.0.0.2 and ::1 are one owner
  } else if (address.ss_family == AF_INET6 &&
             !IN6_IS_ADDR_V4MAPPED(&reinterpret_cast<const sockaddr_in6&>(address).sin6_addr)) {
    std::fill(owner.address.begin() + 8, owner.address.end(), 0);
  }
  return owner;
}

bool Connection::HasMore() const {
  if (is_client()) return client.head || parser.buffered_bytes() > 0;
  return tier != nullptr && !blocked && !tier->queue.empty();
}

size_t Connection::received_bytes() const {
  if (is_client()) return parser.kept_bytes();
  return frames->size() + (tier != nullptr ? tier->queue_bytes : 0);
}

size_t Connection::bytes() const {
  const size_t bytes = out.capacity() + received_bytes() + client.call_bytes + client.wait_bytes;
  return tier != nullptr ? bytes + tier->under_way_bytes : bytes;
}

bool Connection::Write() {
  while (unread() > 0) {
    const ssize_t size = send(fd.get(), out.data() + written, unread(), MSG_NOSIGNAL);
    if (size < 0) {
      if (errno == EAGAIN || errno == EINTR) break;
      return false;
    }
    written += static_cast<size_t>(size);
  }
  if (unread() == 0) {
    out.clear();
    if (out.capacity() > kMaxIdleBytes) out.shrink_to_fit();
    written = 0;
  } else if (written > kMaxUnreadReplies && written > out.size() / 2) {
    out.erase(0, written);
    written = 0;
  }
  return true;
}

}  // namespace taskd::store
