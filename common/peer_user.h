// Whose process is at the other end of a TCP connection that does not leave this machine.
#pragma once

#include <sys/types.h>

#include <optional>

namespace taskd {

// The user who made the socket at the other end of `fd`, as the kernel tells it (/proc/net/tcp), in this process's user
// namespace. Nothing: the connection is not between two loopback addresses, its other end is not in this network
// namespace or no longer open, or /proc does not tell. Reads a table of all connections: for what comes seldom.
std::optional<uid_t> UserOfLoopbackPeer(int fd);

}  // namespace taskd
