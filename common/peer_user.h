// The user at the other end of a TCP connection that does not leave this machine.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>

namespace taskd {

// The user who made the socket at the other end of `fd`, as the kernel reports it, in this process's user namespace.
// Nothing: the connection is not between two loopback addresses, its other end is not in this network namespace or no
// longer open, or the kernel does not say. One lookup by sock_diag(7); a kernel without it makes us read /proc/net/tcp,
// whose length is that of all connections. Thread-safe.
std::optional<uid_t> UserOfLoopbackPeer(int fd);

// The name of the other end where shares of something are counted: "user 1000" over loopback, else "10.0.0.7", or
// "2001:db8:0:7::/64", because a peer with one address of IPv6 has that many. Loopback peers whose user the kernel does
// not say share one name; so do peers that have gone.
std::string PeerShare(int fd);

}  // namespace taskd
