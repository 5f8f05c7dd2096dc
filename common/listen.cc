#include "common/listen.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <memory>
#include <optional>
#include <sstream>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/files.h"

namespace taskd {
namespace {

constexpr int kBacklog = 65535;  // the kernel cuts it to net.core.somaxconn

void SetOption(int fd, int level, int name, int value) { setsockopt(fd, level, name, &value, sizeof(value)); }

absl::Status Why(const HostPort& address, int error) {
  const std::string where = FormatHostPort(address);
  if (error != EADDRINUSE) return absl::UnavailableError(absl::StrCat(where, ": ", strerror(error)));
  const std::string holder = HolderOfPort(address.port);
  return absl::AlreadyExistsError(
      absl::StrCat(where, ": address in use", holder.empty() ? "" : absl::StrCat(" by ", holder)));
}

// errno, or 0 with `fd` set.
int TryListen(int family, const sockaddr* address, socklen_t length, bool both_families, UniqueFd& fd) {
  fd.reset(socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd.valid()) return errno;
  SetOption(fd.get(), SOL_SOCKET, SO_REUSEADDR, 1);
  if (family == AF_INET6) SetOption(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, both_families ? 0 : 1);
  if (bind(fd.get(), address, length) != 0 || listen(fd.get(), kBacklog) != 0) return errno;
  return 0;
}

// The inode of the socket that listens on `port`, of a line of /proc/net/tcp; empty if it does not.
std::string ListeningInode(const std::string& line, int port) {
  std::istringstream fields(line);
  std::string slot, local, remote, state, queues, timer, retransmits, uid, timeout, inode;
  fields >> slot >> local >> remote >> state >> queues >> timer >> retransmits >> uid >> timeout >> inode;
  const size_t colon = local.rfind(':');
  unsigned found = 0;
  if (state != "0A" || colon == std::string::npos || !absl::SimpleHexAtoi(local.substr(colon + 1), &found)) return "";
  return static_cast<int>(found) == port ? inode : "";
}

// The inode of the socket that listens on `port`; empty: none does. nullopt: /proc cannot be read.
std::optional<std::string> InodeOfListener(int port) {
  bool readable = false;
  for (const char* path : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    std::istringstream file(ReadSystemFile(path));
    readable |= !file.view().empty();
    for (std::string line; std::getline(file, line);) {
      if (std::string inode = ListeningInode(line, port); !inode.empty()) return inode;
    }
  }
  return readable ? std::optional<std::string>("") : std::nullopt;
}

bool HasDescriptor(const std::string& process, const std::string& target) {
  const std::string folder = absl::StrCat("/proc/", process, "/fd");
  std::unique_ptr<DIR, int (*)(DIR*)> directory(opendir(folder.c_str()), closedir);
  if (directory == nullptr) return false;
  while (const dirent* entry = readdir(directory.get())) {
    char link[64];
    const ssize_t size = readlink(absl::StrCat(folder, "/", entry->d_name).c_str(), link, sizeof(link));
    if (size > 0 && std::string_view(link, size) == target) return true;
  }
  return false;
}

}  // namespace

absl::StatusOr<UniqueFd> ListenTcp(const HostPort& address, bool everywhere) {
  UniqueFd fd;
  if (everywhere) {
    sockaddr_in6 any6{};
    any6.sin6_family = AF_INET6;
    any6.sin6_port = htons(static_cast<uint16_t>(address.port));
    int error = TryListen(AF_INET6, reinterpret_cast<sockaddr*>(&any6), sizeof(any6), true, fd);
    if (error == EAFNOSUPPORT || error == EADDRNOTAVAIL) {  // a kernel without IPv6
      sockaddr_in any{};
      any.sin_family = AF_INET;
      any.sin_port = htons(static_cast<uint16_t>(address.port));
      error = TryListen(AF_INET, reinterpret_cast<sockaddr*>(&any), sizeof(any), false, fd);
    }
    if (error != 0) return Why({"*", address.port}, error);
    return fd;
  }
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int failure = getaddrinfo(address.host.c_str(), std::to_string(address.port).c_str(), &hints, &found);
  if (failure != 0) {
    return absl::UnavailableError(absl::StrCat(FormatHostPort(address), ": ", gai_strerror(failure)));
  }
  std::unique_ptr<addrinfo, void (*)(addrinfo*)> list(found, freeaddrinfo);
  int error = 0;
  for (const addrinfo* at = list.get(); at != nullptr; at = at->ai_next) {
    error = TryListen(at->ai_family, at->ai_addr, at->ai_addrlen, false, fd);
    if (error == 0) return fd;
  }
  return Why(address, error);
}

int LocalPort(int fd) {
  sockaddr_storage address{};
  socklen_t length = sizeof(address);
  getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length);
  return ntohs(address.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6*>(&address)->sin6_port
                                             : reinterpret_cast<sockaddr_in*>(&address)->sin_port);
}

bool IsListenedOn(int port) { return InodeOfListener(port) != ""; }

std::string HolderOfPort(int port) {
  const std::string inode = InodeOfListener(port).value_or("");
  if (inode.empty()) return "";
  const std::string target = absl::StrCat("socket:[", inode, "]");
  std::unique_ptr<DIR, int (*)(DIR*)> processes(opendir("/proc"), closedir);
  if (processes == nullptr) return "";
  while (const dirent* entry = readdir(processes.get())) {
    if (entry->d_name[0] < '0' || entry->d_name[0] > '9' || !HasDescriptor(entry->d_name, target)) continue;
    std::ifstream name_file(absl::StrCat("/proc/", entry->d_name, "/comm"));
    std::string name;
    std::getline(name_file, name);
    return absl::StrCat("pid ", entry->d_name, " (", name, ")");
  }
  return "";
}

std::string PeerAddress(int fd) {
  sockaddr_storage address{};
  socklen_t length = sizeof(address);
  char host[NI_MAXHOST];
  char port[NI_MAXSERV];
  if (getpeername(fd, reinterpret_cast<sockaddr*>(&address), &length) != 0 ||
      getnameinfo(reinterpret_cast<sockaddr*>(&address), length, host, sizeof(host), port, sizeof(port),
                  NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
    return "";
  }
  int number = 0;
  return absl::SimpleAtoi(port, &number) ? FormatHostPort({host, number}) : "";
}

void SetPromptAndWatched(int fd, int64_t silence_ms) {
  // With a user time-out the kernel does not count the probes; they only have to come often enough.
  const int probe_s = static_cast<int>(std::clamp<int64_t>(silence_ms / 5000, 1, 10));
  SetOption(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  SetOption(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  SetOption(fd, IPPROTO_TCP, TCP_KEEPIDLE, probe_s);
  SetOption(fd, IPPROTO_TCP, TCP_KEEPINTVL, probe_s);
  SetOption(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, static_cast<int>(silence_ms));
}

void SetPrompt(int fd) {
  SetOption(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  SetOption(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  SetOption(fd, IPPROTO_TCP, TCP_KEEPIDLE, 60);
  SetOption(fd, IPPROTO_TCP, TCP_KEEPINTVL, 10);
  SetOption(fd, IPPROTO_TCP, TCP_KEEPCNT, 6);
}

}  // namespace taskd
