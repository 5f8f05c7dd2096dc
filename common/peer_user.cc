#include "common/peer_user.h"

#include <arpa/inet.h>
#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <linux/unix_diag.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "common/files.h"
#include "common/unique_fd.h"
#include "taskd/own_user.h"

namespace taskd {
namespace {

// In the table sockets in any other state may have lost their owner: the kernel calls them root's.
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

struct alignas(nlmsghdr) DiagBuffer {
  char bytes[4096];
};

// sock_diag(7): looks up one socket, however many there are. Returns the kernel's answer, which lies in `buffer`; null: it
// could not be asked.
template <typename Request>
const nlmsghdr* AskSockDiag(const Request& request, DiagBuffer& buffer) {
  struct {
    nlmsghdr header;
    Request request;
  } message{};
  message.header.nlmsg_len = sizeof(message);
  message.header.nlmsg_type = SOCK_DIAG_BY_FAMILY;
  message.header.nlmsg_flags = NLM_F_REQUEST;
  message.request = request;
  const UniqueFd netlink(socket(AF_NETLINK, SOCK_DGRAM | SOCK_CLOEXEC, NETLINK_SOCK_DIAG));
  if (netlink.get() < 0 || send(netlink.get(), &message, sizeof(message), 0) != sizeof(message)) return nullptr;
  // The kernel answers within send().
  const ssize_t size = recv(netlink.get(), buffer.bytes, sizeof(buffer.bytes), MSG_DONTWAIT);
  const auto* header = reinterpret_cast<const nlmsghdr*>(buffer.bytes);
  return size >= 0 && NLMSG_OK(header, static_cast<size_t>(size)) ? header : nullptr;
}

Asked AskNetlink(const End& local, const End& remote) {
  inet_diag_req_v2 request{};
  request.sdiag_family = local.is_v4() ? AF_INET : AF_INET6;
  request.sdiag_protocol = IPPROTO_TCP;
  inet_diag_sockid& id = request.id;
  id.idiag_sport = htons(local.port);
  id.idiag_dport = htons(remote.port);
  id.idiag_cookie[0] = id.idiag_cookie[1] = INET_DIAG_NOCOOKIE;
  const int first = local.is_v4() ? 3 : 0;
  for (int word = first; word < 4; ++word) {
    id.idiag_src[word - first] = local.v6[word];
    id.idiag_dst[word - first] = remote.v6[word];
  }
  DiagBuffer buffer;
  const nlmsghdr* header = AskSockDiag(request, buffer);
  if (header == nullptr) return {};
  if (header->nlmsg_type == NLMSG_ERROR && header->nlmsg_len >= NLMSG_LENGTH(sizeof(nlmsgerr))) {
    // No such socket; but a kernel without this service answers the same.
    const auto* error = static_cast<const nlmsgerr*>(NLMSG_DATA(header));
    return {.answered = error->error == -ENOENT, .user = std::nullopt};
  }
  if (header->nlmsg_type != SOCK_DIAG_BY_FAMILY || header->nlmsg_len < NLMSG_LENGTH(sizeof(inet_diag_msg))) return {};
  const auto* found = static_cast<const inet_diag_msg*>(NLMSG_DATA(header));
  // What is left of a socket that nobody has any more is root's, says the kernel.
  if (found->idiag_inode == 0) return {.answered = true, .user = std::nullopt};
  return {.answered = true, .user = found->idiag_uid};
}

// Returns the socket's user if it is a stream socket with that name. Names are compared by bytes: a name may contain line
// breaks, and then look like several lines of /proc/net/unix.
std::optional<uid_t> UserOfUnixSocket(uint32_t inode, std::string_view abstract_name) {
  unix_diag_req request{};
  request.sdiag_family = AF_UNIX;
  request.udiag_states = ~0U;
  request.udiag_ino = inode;
  request.udiag_show = UDIAG_SHOW_NAME | UDIAG_SHOW_UID;
  request.udiag_cookie[0] = request.udiag_cookie[1] = INET_DIAG_NOCOOKIE;
  DiagBuffer buffer;
  const nlmsghdr* header = AskSockDiag(request, buffer);
  if (header == nullptr || header->nlmsg_type != SOCK_DIAG_BY_FAMILY) return std::nullopt;
  const auto* found = static_cast<const unix_diag_msg*>(NLMSG_DATA(header));
  if (header->nlmsg_len < NLMSG_LENGTH(sizeof(unix_diag_msg)) || found->udiag_type != SOCK_STREAM) return std::nullopt;
  std::optional<uid_t> user;
  bool has_name = false;
  size_t at = NLMSG_LENGTH(sizeof(unix_diag_msg));
  while (at + sizeof(nlattr) <= header->nlmsg_len) {
    const auto* attribute = reinterpret_cast<const nlattr*>(buffer.bytes + at);
    if (attribute->nla_len < sizeof(nlattr) || at + attribute->nla_len > header->nlmsg_len) break;
    const std::string_view value(buffer.bytes + at + sizeof(nlattr), attribute->nla_len - sizeof(nlattr));
    if (attribute->nla_type == UNIX_DIAG_NAME) {
      has_name = value.starts_with('\0') && value.substr(1) == abstract_name;
    } else if (attribute->nla_type == UNIX_DIAG_UID && value.size() == sizeof(uint32_t)) {
      uint32_t number = 0;
      std::memcpy(&number, value.data(), sizeof(number));
      user = number;
    }
    at += NLA_ALIGN(attribute->nla_len);
  }
  return has_name ? user : std::nullopt;
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

LoopbackPeer FindLoopbackPeer(int fd) {
  const std::optional<End> own = EndOf(fd, getsockname);
  if (!own || !own->is_loopback()) return {};
  const std::optional<End> peer = EndOf(fd, getpeername);
  const LoopbackPeer gone{.gone = true, .user = std::nullopt};
  if (!peer) return errno == ENOTCONN ? gone : LoopbackPeer{};  // it was reset; what came before can still be read
  if (!peer->is_loopback()) return {};
  const Asked asked = AskNetlink(*peer, *own);
  if (asked.user) return {.gone = false, .user = asked.user};
  // "No such socket" is an answer of a kernel that knows this end, which goes where the other one resets it.
  if (asked.answered && (AskNetlink(*own, *peer).user || !EndOf(fd, getpeername))) return gone;
  std::optional<uid_t> user;
  if (peer->is_v4()) user = FindUser("/proc/net/tcp", peer->V4(), own->V4());
  // Also IPv4 by a socket of IPv6.
  return {.gone = false, .user = user ? user : FindUser("/proc/net/tcp6", peer->V6(), own->V6())};
}

std::optional<uid_t> UserOfLoopbackPeer(int fd) { return FindLoopbackPeer(fd).user; }

bool MayBeStrangers(const LoopbackPeer& peer) {
  if (!peer.user) return peer.gone;
  // Where this process's own user has no id of its own here, nobody's tells anything.
  return !IsOwnUserOrRoot(*peer.user) && !IsUnmappedUser(geteuid());
}

std::optional<uid_t> UserOfAbstractSocket(std::string_view name) {
  const std::string path = "@" + std::string(name);
  std::ifstream file("/proc/net/unix");
  for (std::string line; std::getline(file, line);) {
    // Num, RefCount, Protocol, Flags, Type, St, Inode, Path
    const std::vector<std::string> fields = absl::StrSplit(line, ' ', absl::SkipEmpty());
    uint32_t inode = 0;
    if (fields.size() != 8 || fields[7] != path || !absl::SimpleAtoi(fields[6], &inode)) continue;
    if (const std::optional<uid_t> user = UserOfUnixSocket(inode, name)) return user;
  }
  return std::nullopt;
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

std::string NetworkOf(const std::string& share) {
  constexpr std::string_view kSuffix = "/64";
  constexpr size_t kBytes = 48 / 8;
  in6_addr address;
  if (!share.ends_with(kSuffix) ||
      inet_pton(AF_INET6, share.substr(0, share.size() - kSuffix.size()).c_str(), &address) != 1) {
    return share;
  }
  std::fill(std::begin(address.s6_addr) + kBytes, std::end(address.s6_addr), 0);
  char text[INET6_ADDRSTRLEN] = "";
  return absl::StrCat(inet_ntop(AF_INET6, &address, text, sizeof(text)), "/48");
}

}  // namespace taskd
