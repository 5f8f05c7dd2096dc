// How every role dials and listens: addresses, mutual TLS, the job's token, limits. The one place that knows them.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "grpcpp/channel.h"
#include "grpcpp/client_context.h"
#include "grpcpp/security/server_credentials.h"
#include "grpcpp/server_builder.h"
#include "grpcpp/server_context.h"

namespace taskd {

// What protects a connection (docs/security-model.md).
struct Security {
  std::string tls_dir;  // ca.crt, tls.crt, tls.key for mutual TLS; empty: plain text
  std::string token;    // TASKD_TOKEN; empty: none
};

// Largest message in either direction, on every connection of TaskD.
inline constexpr int kMaxMessageBytes = 4 * 1024 * 1024;

// Sends gRPC's own log through ours, at level debug: a peer's broken handshake is not our operator's error. Once, in
// main.
void InitGrpcLog();

// OK if `address` (HOST:PORT, [IPV6]:PORT) may be listened on: loopback always; others with TLS, a token or
// `allow_plaintext`. INVALID_ARGUMENT names the address and what to add.
absl::Status CheckListenAllowed(const std::string& address, const Security& security, bool allow_plaintext);

// INVALID_ARGUMENT names the file of tls_dir that cannot be read.
absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> MakeServerCredentials(const Security& security);
absl::StatusOr<std::shared_ptr<grpc::Channel>> MakeChannel(const std::string& address, const Security& security);

// Message sizes, keep-alive and stream limits of a listener.
void SetServerLimits(grpc::ServerBuilder& builder);

// Puts the token on an outgoing call; nothing without one.
void AddToken(grpc::ClientContext& context, const Security& security);

// UNAUTHENTICATED without a token, PERMISSION_DENIED with a wrong one, OK if it is right or none is set.
grpc::Status CheckToken(const grpc::ServerContextBase& context, const Security& security);

}  // namespace taskd
