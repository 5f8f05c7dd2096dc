#include "proto/channel.h"

#include <fstream>
#include <iterator>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "common/address.h"
#include "common/log.h"
#include "grpc/grpc.h"
#include "grpc/support/log.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/support/channel_arguments.h"

namespace taskd {
namespace {

constexpr char kAuthorization[] = "authorization";
constexpr std::string_view kBearer = "Bearer ";

// A peer that vanished without a word is noticed after time + timeout.
constexpr int kKeepaliveTimeMs = 10'000;
constexpr int kKeepaliveTimeoutMs = 10'000;
// Clients that ping more often are disconnected. ClusterD's Go clients may ping each 3 s.
constexpr int kMinPingIntervalMs = 2'000;
constexpr int kHandshakeTimeoutMs = 10'000;
constexpr int kMaxStreamsPerConnection = 4096;
// A node is back soon after its manager, however long the manager was away.
constexpr int kFirstReconnectMs = 100;
constexpr int kMaxReconnectMs = 1'000;
constexpr int kConnectTimeoutMs = 5'000;

struct TlsFiles {
  std::string ca, cert, key;
};

absl::StatusOr<std::string> ReadTlsFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string content((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  if (!file || content.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--tls-dir: cannot read ", path, " (ca.crt, tls.crt and tls.key are needed)"));
  }
  return content;
}

absl::StatusOr<TlsFiles> ReadTlsFiles(const std::string& folder) {
  absl::StatusOr<std::string> ca = ReadTlsFile(folder + "/ca.crt");
  if (!ca.ok()) return ca.status();
  absl::StatusOr<std::string> cert = ReadTlsFile(folder + "/tls.crt");
  if (!cert.ok()) return cert.status();
  absl::StatusOr<std::string> key = ReadTlsFile(folder + "/tls.key");
  if (!key.ok()) return key.status();
  return TlsFiles{*std::move(ca), *std::move(cert), *std::move(key)};
}

// Takes as long for each wrong token of one length, so that an answer's time tells nothing about the right one.
bool SameToken(std::string_view given, std::string_view right) {
  unsigned difference = given.size() == right.size() ? 0 : 1;
  for (size_t i = 0; i < given.size(); ++i) {
    difference |= static_cast<unsigned char>(given[i]) ^ static_cast<unsigned char>(right[i % right.size()]);
  }
  return difference == 0;
}

}  // namespace

void InitGrpcLog() {
  gpr_set_log_verbosity(GPR_LOG_SEVERITY_ERROR);
  gpr_set_log_function([](gpr_log_func_args* args) { spdlog::debug("grpc: {}", args->message); });
}

absl::Status CheckListenAllowed(const std::string& address, const Security& security, bool allow_plaintext) {
  absl::StatusOr<HostPort> parsed = ParseHostPort("--listen", address);
  if (!parsed.ok()) return parsed.status();
  if (allow_plaintext || IsLoopback(*parsed) || !security.tls_dir.empty() || !security.token.empty()) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "--listen: ", address, " can be reached from other machines; add --tls-dir, TASKD_TOKEN or --allow-plaintext"));
}

absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> MakeServerCredentials(const Security& security) {
  if (security.tls_dir.empty()) return grpc::InsecureServerCredentials();
  absl::StatusOr<TlsFiles> files = ReadTlsFiles(security.tls_dir);
  if (!files.ok()) return files.status();
  grpc::SslServerCredentialsOptions options(GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  options.pem_root_certs = files->ca;
  options.pem_key_cert_pairs.push_back({files->key, files->cert});
  return grpc::SslServerCredentials(options);
}

absl::StatusOr<std::shared_ptr<grpc::Channel>> MakeChannel(const std::string& address, const Security& security) {
  std::shared_ptr<grpc::ChannelCredentials> credentials = grpc::InsecureChannelCredentials();
  if (!security.tls_dir.empty()) {
    absl::StatusOr<TlsFiles> files = ReadTlsFiles(security.tls_dir);
    if (!files.ok()) return files.status();
    credentials = grpc::SslCredentials({files->ca, files->key, files->cert});
  }
  grpc::ChannelArguments args;
  args.SetMaxReceiveMessageSize(kMaxMessageBytes);
  args.SetMaxSendMessageSize(kMaxMessageBytes);
  args.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveTimeMs);
  args.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveTimeoutMs);
  args.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, kFirstReconnectMs);
  args.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, kMaxReconnectMs);
  args.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, kConnectTimeoutMs);  // in fact the limit of one attempt
  args.SetInt(GRPC_ARG_DNS_MIN_TIME_BETWEEN_RESOLUTIONS_MS, kMaxReconnectMs);
  // http_proxy is often set in training containers and never meant for the job's own traffic.
  args.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  // Channels to one address must not share a connection: their credentials and back-off are their own.
  args.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  return grpc::CreateCustomChannel(absl::StrCat("dns:///", address), credentials, args);
}

void SetServerLimits(grpc::ServerBuilder& builder) {
  builder.SetMaxReceiveMessageSize(kMaxMessageBytes);
  builder.SetMaxSendMessageSize(kMaxMessageBytes);
  // Otherwise two servers share a port and each gets some of the connections.
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveTimeMs);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveTimeoutMs);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, kMinPingIntervalMs);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kMaxStreamsPerConnection);
  builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, kHandshakeTimeoutMs);
}

void AddToken(grpc::ClientContext& context, const Security& security) {
  if (!security.token.empty()) context.AddMetadata(kAuthorization, std::string(kBearer) + security.token);
}

grpc::Status CheckToken(const grpc::ServerContextBase& context, const Security& security) {
  if (security.token.empty()) return grpc::Status::OK;
  auto [begin, end] = context.client_metadata().equal_range(kAuthorization);
  if (begin == end) return {grpc::StatusCode::UNAUTHENTICATED, "a token is needed (TASKD_TOKEN)"};
  std::string_view value(begin->second.data(), begin->second.size());
  if (!value.starts_with(kBearer)) {
    return {grpc::StatusCode::UNAUTHENTICATED, "authorization is not 'Bearer <token>'"};
  }
  if (std::next(begin) != end || !SameToken(value.substr(kBearer.size()), security.token)) {
    return {grpc::StatusCode::PERMISSION_DENIED, "the token is wrong"};
  }
  return grpc::Status::OK;
}

}  // namespace taskd
