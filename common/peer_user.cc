#include "common/peer_user.h"

#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace taskd {
namespace {

constexpr char kEstablished[] = "01";  // others have lost their owner: the kernel calls them root's

struct End {
  std::array<uint32_t, 4> v6{};  // in network order; IPv4 as ::ffff:a.b.c.d
  uint16_t port = 0;

  bool is_v4() const { return v6[0] == 0 && v6[1] == 0 && v6[2] == htonl(0xffff); }
  bool is_loopback() const {
    if (is_v4()) return ntohl(v6[3]) >> 24 == 127;
    return v6[0] == 0 && v6[1] == 0 && v6[2] == 0 && v6[3] == htonl(1);
  }
  // As the table has them: words as this machine reads them.
  std::string V4() const { return absl::StrFormat("%08X:%04X", v6[3], port); }
  std::string V6() const { return absl::StrFormat("%08X%08X%08X%08X:%04X", v6[0], v6[1], v6[2], v6[3], port); }
};

template <typename GetName>
std::optional<End> EndOf(int fd, GetName get_name) {
  sockaddr_storage storage{};
  socklen_t length = sizeof(storage);
  if (get_name(fd, reinterpret_cast<sockaddr*>(&storage), &length) != 0) return std::nullopt;
  End end;
  if (storage.ss_family == AF_INET) {
    const auto* address = reinterpret_cast<const sockaddr_in*>(&storage);
    end.v6 = {0, 0, htonl(0xffff), address->sin_addr.s_addr};
    end.port = ntohs(address->sin_port);
  } else if (storage.ss_family == AF_INET6) {
    const auto* address = reinterpret_cast<const sockaddr_in6*>(&storage);
    std::memcpy(end.v6.data(), &address->sin6_addr, sizeof(end.v6));
    end.port = ntohs(address->sin6_port);
  } else {
    return std::nullopt;
  }
  return end;
}

std::optional<uid_t> FindUser(const char* path, const std::string& local, const std::string& remote) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (line.find(local) == std::string::npos) continue;
    std::istringstream fields(line);
    std::string slot, from, to, state, queues, timer, retransmits, user;
    fields >> slot >> from >> to >> state >> queues >> timer >> retransmits >> user;
    uid_t number = 0;
    if (from == local && to == remote && state == kEstablished && absl::SimpleAtoi(user, &number)) return number;
  }
  return std::nullopt;
}

}  // namespace

std::optional<uid_t> UserOfLoopbackPeer(int fd) {
  const std::optional<End> own = EndOf(fd, getsockname);
  const std::optional<End> peer = EndOf(fd, getpeername);
  if (!own || !peer || !own->is_loopback() || !peer->is_loopback()) return std::nullopt;
  std::optional<uid_t> user;
  if (peer->is_v4()) user = FindUser("/proc/net/tcp", peer->V4(), own->V4());
  // Also IPv4 by a socket of IPv6.
  return user ? user : FindUser("/proc/net/tcp6", peer->V6(), own->V6());
}

}  // namespace taskd
