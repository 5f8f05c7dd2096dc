// TLS 1.3 as a filter: bytes in, bytes out, no I/O. Between two launchers of a job, and before the manager's gRPC.
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
#include "common/job_secret.h"

namespace taskd {

class TlsChannel {
 public:
  virtual ~TlsChannel() = default;

  // Bytes of the peer, cut anywhere; all of them are taken. Appends the plaintext to `plain`, and what has to be sent in
  // reply to `out`, also on errors. PERMISSION_DENIED: the peer has no secret or another one than this side, or reports
  // the same of us. OUT_OF_RANGE: the peer has ended the connection in order. INVALID_ARGUMENT: this is no TLS, or
  // broken. Not to be called again after an error.
  virtual absl::Status Receive(std::string_view bytes, std::string& plain, std::string& out) = 0;
  // Appends to `out` what has to be sent; before the handshake is over, what is written is kept until then. An empty
  // `plain` begins the handshake.
  virtual void Send(std::string_view plain, std::string& out) = 0;
  // Appends to `out` what tells the peer that nothing follows. Send() is not to be called after it.
  virtual void End(std::string& out) = 0;
  // The handshake is over: the peer has proven what it had to.
  virtual bool proven() const = 0;
};

// What one side shows, and whom it believes. Made once for any number of channels, which then cost no certificate.
// Thread safe.
class TlsContext {
 public:
  // A server of gRPC believes peers whose certificate `pem.authority` signed. `peer_name` not empty: and that has this
  // DNS name, exactly. `pem.certificate` may be followed by its chain, and there may be several authorities.
  // INVALID_ARGUMENT: what of `pem` cannot be used.
  static absl::StatusOr<std::shared_ptr<const TlsContext>> GrpcServer(const JobCertificates& pem,
                                                                      const std::string& peer_name);
  // `own_secret`: what this side shows a certificate of; a client may have none. `peer_proves`: the other side has to
  // show one of the same secret. INTERNAL: OpenSSL refuses.
  static absl::StatusOr<std::shared_ptr<const TlsContext>> Server(std::string_view own_secret, bool peer_proves);
  static absl::StatusOr<std::shared_ptr<const TlsContext>> Client(std::string_view secret);
  virtual ~TlsContext() = default;

  // Null: there is no memory. The channel may outlive the context.
  virtual std::unique_ptr<TlsChannel> Open() const = 0;
};

}  // namespace taskd
