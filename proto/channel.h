// How every role dials and serves: mutual TLS by the job's secret or the operator's PKI, and limits. The one place that
// knows them. What the secret proves is in common/job_secret.h, who is trusted with what in docs/security-model.md.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "common/tls_channel.h"
#include "common/unique_fd.h"
#include "grpcpp/channel.h"
#include "grpcpp/server_builder.h"
#include "proto/security.h"

namespace taskd::proto {

// Largest message in either direction, on every connection of TaskD.
inline constexpr int kMaxMessageBytes = 4 * 1024 * 1024;

// Sends gRPC's and Protobuf's own logs through ours, at level debug: a peer's broken handshake, or text, is not our
// operator's error. Once, in main.
void InitGrpcLog();

// OK if `address` (HOST:PORT, [IPV6]:PORT) may be listened on: loopback always; others with TLS, a secret that the
// operator gave, or `allow_plaintext`. INVALID_ARGUMENT names the address and what to add.
absl::Status CheckListenAllowed(const std::string& address, const Security& security, bool allow_plaintext);

// What GrpcListener needs to let in peers that prove themselves. INVALID_ARGUMENT names the file of tls_dir that cannot
// be read or used, or that others can read and must not.
absl::StatusOr<std::shared_ptr<const TlsContext>> MakeServerTls(const Security& security);

// Which side notices that the other one says nothing any more, as a machine that has lost its power, and as one that
// only was stopped for a while.
enum class Silence {
  kEndsCalls,  // gRPC: after 20 s
  kIsWatched,  // whoever calls, if anybody: gRPC waits for ever
};

// `on_stranger` is called, on any thread, each time that somebody answers at `address` who does not have the secret;
// not with a tls_dir. Nothing was sent to them.
absl::StatusOr<std::shared_ptr<grpc::Channel>> MakeChannel(const std::string& address, const Security& security,
                                                           std::function<void()> on_stranger = nullptr,
                                                           Silence silence = Silence::kEndsCalls);
// Over a connection to a server that is not TaskD's, which `address` names (plain_link.h).
std::shared_ptr<grpc::Channel> MakePlainChannel(const std::string& address, UniqueFd connection);

// The way to one manager. Where the client was given no secret it is looked up, and again for each Channel(): a manager
// that was started again has another one. Thread safe.
class ManagerDial {
 public:
  ManagerDial(std::string address, Security given, Silence silence = Silence::kEndsCalls)
      : address_(std::move(address)), given_(std::move(given)), silence_(silence) {}

  // The same as before as long as the secret is. INVALID_ARGUMENT: as MakeChannel(), or the address is none; never once
  // it was OK.
  absl::StatusOr<std::shared_ptr<grpc::Channel>> Channel();
  // Before another try, once Channel() was OK: until there is a connection, at most so long. A channel in failure connects
  // again only while somebody waits for it; calls that fail fast do not.
  void Reconnect(std::chrono::milliseconds time);
  // What became of a call, explained better where somebody answered who does not have the secret: then UNAUTHENTICATED
  // where the secret was given, so that trying again is in vain, else UNAVAILABLE; the message says what helps.
  absl::Status Explain(absl::StatusCode code, const std::string& message) const;

 private:
  const std::string address_;
  const Security given_;
  const Silence silence_;
  const std::shared_ptr<std::atomic<bool>> met_stranger_ = std::make_shared<std::atomic<bool>>(false);
  std::mutex mutex_;    // guards from here
  std::string secret_;  // of channel_
  std::shared_ptr<grpc::Channel> channel_;
};

// Message sizes, memory, threads, keep-alive and stream limits of a server. `memory_bytes`: what gRPC may buffer for all
// connections together.
void SetServerLimits(grpc::ServerBuilder& builder, size_t memory_bytes);

// A server without a listener of its own: GrpcListener brings its connections, in plain text.
class FedServer {
 public:
  // Before the builder's BuildAndStart().
  explicit FedServer(grpc::ServerBuilder& builder);
  ~FedServer();
  // Once the server runs; closed where it does not. Any thread.
  void Take(UniqueFd connection);

 private:
  struct Acceptor;
  std::unique_ptr<Acceptor> acceptor_;
};

}  // namespace taskd::proto
