#include "common/address.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <sys/socket.h>

#include <cerrno>
#include <charconv>
#include <cstring>

#include "common/unique_fd.h"
#include "fmt/format.h"

namespace taskd {

absl::StatusOr<HostPort> ParseHostPort(std::string_view what, std::string_view value) {
  auto bad = [&] {
    return absl::InvalidArgumentError(
        fmt::format("{}: '{}' is not HOST:PORT (an IPv6 address goes into brackets: [::1]:9601)", what, value));
  };
  HostPort result;
  size_t colon = value.rfind(':');
  if (colon == std::string_view::npos || colon == 0) return bad();
  std::string_view host = value.substr(0, colon);
  std::string_view port = value.substr(colon + 1);
  if (host.front() == '[') {
    if (host.back() != ']' || host.size() < 3) return bad();
    host = host.substr(1, host.size() - 2);
    in6_addr ignored;
    if (inet_pton(AF_INET6, std::string(host).c_str(), &ignored) != 1) return bad();
  } else if (host.find(':') != std::string_view::npos) {
    return bad();
  }
  auto [end, error] = std::from_chars(port.data(), port.data() + port.size(), result.port);
  if (error != std::errc() || end != port.data() + port.size() || result.port < 0 || result.port > 65535) {
    return absl::InvalidArgumentError(fmt::format("{}: port '{}' of '{}' is not 0 to 65535", what, port, value));
  }
  result.host = std::string(host);
  return result;
}

std::string FormatHostPort(const HostPort& address) {
  if (address.host.find(':') != std::string::npos) return fmt::format("[{}]:{}", address.host, address.port);
  return fmt::format("{}:{}", address.host, address.port);
}

absl::Status CheckCanListen(std::string_view what, const HostPort& address) {
  auto fail = [&](const char* why) {
    return absl::UnavailableError(fmt::format("{}: cannot listen on {}: {}", what, FormatHostPort(address), why));
  };
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  int code = getaddrinfo(address.host.c_str(), std::to_string(address.port).c_str(), &hints, &found);
  if (code != 0) return fail(gai_strerror(code));
  // A name may stand for several addresses; a server is content with one of them.
  int error = 0;
  bool any = false;
  for (addrinfo* info = found; info != nullptr && !any; info = info->ai_next) {
    UniqueFd fd(socket(info->ai_family, info->ai_socktype | SOCK_CLOEXEC, info->ai_protocol));
    int on = 1;
    any = fd.valid() && setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0 &&
          bind(fd.get(), info->ai_addr, info->ai_addrlen) == 0 && listen(fd.get(), 1) == 0;
    if (!any) error = errno;
  }
  freeaddrinfo(found);
  if (any) return absl::OkStatus();
  const absl::Status failure = fail(strerror(error));
  return error == EADDRINUSE ? absl::AlreadyExistsError(failure.message()) : failure;
}

bool IsLoopback(const HostPort& address) {
  if (address.host == "localhost") return true;
  in_addr v4;
  if (inet_pton(AF_INET, address.host.c_str(), &v4) == 1) return (ntohl(v4.s_addr) >> 24) == 127;
  in6_addr v6;
  return inet_pton(AF_INET6, address.host.c_str(), &v6) == 1 && IN6_IS_ADDR_LOOPBACK(&v6);
}

}  // namespace taskd
