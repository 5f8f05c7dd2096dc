// Ports for what a C++ test starts, by the rule of tests/lib/ports.py.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>

namespace taskd::testing {

// Reserves `port` for the life of this process. Returns false if another test has reserved it or a program listens there.
inline bool HoldPort(int port) {
  // An abstract Unix address, which the kernel frees when the process ends.
  const std::string name = "taskd-test-port-" + std::to_string(port);
  sockaddr_un held{};
  held.sun_family = AF_UNIX;
  std::memcpy(held.sun_path + 1, name.data(), name.size());
  const int holder = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  bool is_free = holder >= 0 && bind(holder, reinterpret_cast<const sockaddr*>(&held), size) == 0;
  if (is_free) {
    sockaddr_storage any{};  // all addresses: both families have the port at the same place, and all else is 0
    const int ipv6 = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const int probe = ipv6 >= 0 ? ipv6 : socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    any.ss_family = ipv6 >= 0 ? AF_INET6 : AF_INET;
    reinterpret_cast<sockaddr_in&>(any).sin_port = htons(static_cast<uint16_t>(port));
    const int on = 1;
    setsockopt(probe, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    is_free = bind(probe, reinterpret_cast<const sockaddr*>(&any), sizeof any) == 0;
    if (probe >= 0) close(probe);
  }
  if (!is_free && holder >= 0) close(holder);
  return is_free;
}

// Reserves `count` consecutive free ports for the life of this process and returns the first one.
//
// They lie below the ports that the kernel gives to connections (32768 and up), so that no connection takes one by
// chance, and they stay held until the process ends: what is to listen there may start much later, or again.
inline int FreePort(int count = 1) {
  std::random_device random;
  while (true) {
    const int first = std::uniform_int_distribution<int>(15000, 30000 - count)(random);
    int held = 0;
    while (held < count && HoldPort(first + held)) ++held;
    if (held == count) return first;
  }
}

}  // namespace taskd::testing
