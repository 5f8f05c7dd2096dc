#include "common/peer_user.h"

#include <arpa/inet.h>
#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/files.h"
#include "common/unique_fd.h"

namespace taskd {
namespace {

// Sockets in any other state have lost their owner: the kernel calls them root's.
constexpr char kEstablished[] = "01";

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

// The kernel was asked by netlink: it knows the socket, knows that there is none, or was not able to answer.
struct Asked {
  bool answered = false;
  std::optional<uid_t> user;
};

// sock_diag(7): one socket is looked up, however many there are.
Asked AskNetlink(const End& local, const End& remote) {
  struct {
    nlmsghdr header;
    inet_diag_req_v2 request;
  } message{};
  message.header.nlmsg_len = sizeof(message);
  message.header.nlmsg_type = SOCK_DIAG_BY_FAMILY;
  message.header.nlmsg_flags = NLM_F_REQUEST;
  message.request.sdiag_family = local.is_v4() ? AF_INET : AF_INET6;
  message.request.sdiag_protocol = IPPROTO_TCP;
  inet_diag_sockid& id = message.request.id;
  id.idiag_sport = htons(local.port);
  id.idiag_dport = htons(remote.port);
  id.idiag_cookie[0] = id.idiag_cookie[1] = INET_DIAG_NOCOOKIE;
  const int first = local.is_v4() ? 3 : 0;
  for (int word = first; word < 4; ++word) {
    id.idiag_src[word - first] = local.v6[word];
    id.idiag_dst[word - first] = remote.v6[word];
  }

  const UniqueFd netlink(socket(AF_NETLINK, SOCK_DGRAM | SOCK_CLOEXEC, NETLINK_SOCK_DIAG));
  if (netlink.get() < 0 || send(netlink.get(), &message, sizeof(message), 0) != sizeof(message)) return {};
  alignas(nlmsghdr) char answer[4096];
  const ssize_t size = recv(netlink.get(), answer, sizeof(answer), MSG_DONTWAIT);  // the kernel answers within send()
  const auto* header = reinterpret_cast<const nlmsghdr*>(answer);
  if (size < 0 || !NLMSG_OK(header, static_cast<size_t>(size))) return {};
  if (header->nlmsg_type == NLMSG_ERROR && header->nlmsg_len >= NLMSG_LENGTH(sizeof(nlmsgerr))) {
    // No such socket; but a kernel without this service answers the same.
    const auto* error = static_cast<const nlmsgerr*>(NLMSG_DATA(header));
    return {.answered = error->error == -ENOENT, .user = std::nullopt};
  }
  if (header->nlmsg_type != SOCK_DIAG_BY_FAMILY || header->nlmsg_len < NLMSG_LENGTH(sizeof(inet_diag_msg))) return {};
  const auto* found = static_cast<const inet_diag_msg*>(NLMSG_DATA(header));
  if (found->idiag_state != TCP_ESTABLISHED) return {.answered = true, .user = std::nullopt};
  return {.answered = true, .user = found->idiag_uid};
}

std::optional<uid_t> FindUser(const char* path, const std::string& local, const std::string& remote) {
  std::istringstream file(ReadSystemFile(path));
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
  static std::atomic<bool> netlink_has_found{false};  // so that "no such socket" is an answer
  const Asked asked = AskNetlink(*peer, *own);
  if (asked.user) netlink_has_found = true;
  if (asked.user || (asked.answered && netlink_has_found)) return asked.user;
  std::optional<uid_t> user;
  if (peer->is_v4()) user = FindUser("/proc/net/tcp", peer->V4(), own->V4());
  // Also IPv4 by a socket of IPv6.
  return user ? user : FindUser("/proc/net/tcp6", peer->V6(), own->V6());
}

std::string PeerShare(int fd) {
  const std::optional<End> peer = EndOf(fd, getpeername);
  if (!peer || peer->is_loopback()) {
    const std::optional<uid_t> user = UserOfLoopbackPeer(fd);
    return user ? absl::StrCat("user ", *user) : "an unknown user of this machine";
  }
  char text[INET6_ADDRSTRLEN] = "";
  if (peer->is_v4()) return inet_ntop(AF_INET, &peer->v6[3], text, sizeof(text));
  const std::array<uint32_t, 4> network = {peer->v6[0], peer->v6[1], 0, 0};
  return absl::StrCat(inet_ntop(AF_INET6, network.data(), text, sizeof(text)), "/64");
}

}  // namespace taskd
