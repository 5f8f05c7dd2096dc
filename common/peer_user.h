// The user at the other end of a TCP connection that does not leave this machine.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <string_view>

namespace taskd {

// Who has the other end of a connection between two loopback addresses. Neither: it is none, its other end is not in
// this network namespace, or the kernel does not say.
struct LoopbackPeer {
  bool gone = false;          // no process has it any more; whose it was cannot be told
  std::optional<uid_t> user;  // who made that socket, in this process's user namespace
};
// One lookup by sock_diag(7); a kernel without it makes us read /proc/net/tcp, whose length is that of all connections,
// and does not tell who is gone. Thread-safe.
LoopbackPeer FindLoopbackPeer(int fd);
std::optional<uid_t> UserOfLoopbackPeer(int fd);  // of that

// Whether it is, or may have been, another user of this machine: neither this one nor root. False where the kernel does
// not tell.
bool MayBeStrangers(const LoopbackPeer& peer);

// Who made the stream socket that is bound to an abstract name (unix(7)) in this network namespace; `name` without the zero
// before it. Nothing: none is, or the kernel does not say (it has no unix_diag). Reads /proc/net/unix. Thread-safe.
std::optional<uid_t> UserOfAbstractSocket(std::string_view name);

// The name of the other end where shares of something are counted: "user 1000" over loopback, else "10.0.0.7", or
// "2001:db8:0:7::/64", because a peer with one address of IPv6 has that many. Loopback peers whose user the kernel does
// not say share one name; so do peers that have gone.
std::string PeerShare(int fd);
// Returns the network of a share: "2001:db8::/48" for "2001:db8:0:7::/64", since one party may own a whole /48. Any other
// share is its own network.
std::string NetworkOf(const std::string& share);

}  // namespace taskd
