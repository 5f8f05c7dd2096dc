// Listening TCP sockets, and who has a port that is in use.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "common/address.h"
#include "common/unique_fd.h"

namespace taskd {

// Non-blocking, close-on-exec, with the system's whole backlog. `everywhere`: on all addresses of the machine, IPv4 and
// IPv6, `address.host` is not looked at. ALREADY_EXISTS: "HOST:PORT: address in use", and by whom where that can be
// read; also while the port is the local end of a connection, for which IsListenedOn is false. UNAVAILABLE: the
// system's reason.
absl::StatusOr<UniqueFd> ListenTcp(const HostPort& address, bool everywhere);

// The port of a bound socket.
int LocalPort(int fd);

// A process listens on the TCP port, on any address of this network namespace. Also true where /proc cannot be read.
bool IsListenedOn(int port);

// "pid 123 (python3)" of a process that listens on the TCP port; empty where /proc hides it from this user.
std::string HolderOfPort(int port);

// The peer's "HOST:PORT", empty if it is gone.
std::string PeerAddress(int fd);

// Small messages go out at once, and a peer whose machine or network is gone is noticed after about `silence_ms`, at
// least 1 s. May be called again. A process that is stopped is not noticed: its kernel answers.
void SetPromptAndWatched(int fd, int64_t silence_ms);
// Small messages go out at once; a peer that is gone is noticed within minutes.
void SetPrompt(int fd);

}  // namespace taskd
