// TLS 1.3 between two launchers of a job, as a filter: bytes in, bytes out, no I/O.
//
// With a secret both sides prove it (job_secret.h). Without one, because the job was given none, the server shows
// a certificate that the client cannot check, and takes clients without one: the connection is then safe from those who
// only listen.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace taskd {

class TlsChannel {
 public:
  // `own_secret`: what this side shows a certificate of; a client may have none. `peer_proves`: the other side has to
  // show one of the same secret. INTERNAL: OpenSSL refuses.
  static absl::StatusOr<std::unique_ptr<TlsChannel>> Server(std::string_view own_secret, bool peer_proves);
  static absl::StatusOr<std::unique_ptr<TlsChannel>> Client(std::string_view secret);
  virtual ~TlsChannel() = default;

  // Bytes of the peer, cut anywhere. Appends the plaintext to `plain`, and what has to be sent in reply to `out`, also
  // on errors. PERMISSION_DENIED: the peer has no secret or another one than this side, or reports the same of us.
  // INVALID_ARGUMENT: this is no TLS, or broken. Not to be called again after an error.
  virtual absl::Status Receive(std::string_view bytes, std::string& plain, std::string& out) = 0;
  // Appends to `out` what has to be sent; before the handshake is over, what is written is kept until then. An empty
  // `plain` begins the handshake.
  virtual void Send(std::string_view plain, std::string& out) = 0;
};

}  // namespace taskd
