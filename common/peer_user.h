// Whose process is at the other end of a TCP connection that does not leave this machine.
#pragma once

#include <sys/types.h>

#include <optional>

namespace taskd {

// The user who made the socket at the other end of `fd`, as the kernel reports it, in this process's user namespace.
// Nothing: the connection is not between two loopback addresses, its other end is not in this network namespace or no
// longer open, or the kernel does not say. One lookup by sock_diag(7); a kernel without it makes us read /proc/net/tcp,
// whose length is that of all connections. Thread-safe.
std::optional<uid_t> UserOfLoopbackPeer(int fd);

}  // namespace taskd
