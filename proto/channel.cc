#include "proto/channel.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "common/address.h"
#include "common/foreign_owner.h"
#include "common/job_file.h"
#include "common/job_secret.h"
#include "common/log.h"
#include "google/protobuf/stubs/logging.h"
#include "grpc/grpc.h"
#include "grpc/support/log.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/create_channel_posix.h"
#include "grpcpp/resource_quota.h"
#include "grpcpp/security/server_credentials.h"
#include "grpcpp/security/tls_certificate_provider.h"
#include "grpcpp/security/tls_certificate_verifier.h"
#include "grpcpp/security/tls_credentials_options.h"
#include "grpcpp/support/channel_arguments.h"
#include "taskd/own_user.h"

namespace taskd::proto {
namespace {

// A server that vanished without a word, or was stopped, is noticed after time + timeout.
constexpr int kKeepaliveTimeMs = 10'000;
constexpr int kKeepaliveTimeoutMs = 10'000;
// A client is not judged by its silence: it may have been stopped, and be back. Whoever minds asks for signs of life on
// its stream. The bytes of the pings are for the kernel, which gives a machine up that does not acknowledge them.
constexpr int kServerKeepaliveTimeoutMs = 24 * 3600 * 1000;
// Clients that ping more often are disconnected. ClusterD's Go clients may ping each 3 s.
constexpr int kMinPingIntervalMs = 2'000;
constexpr int kHandshakeTimeoutMs = 10'000;
constexpr int kMaxStreamsPerConnection = 4096;
// Of services with a thread a call; ours have none.
constexpr int kMostSyncThreads = 8;
// A node is back soon after its manager, however long the manager was away.
constexpr int kFirstReconnectMs = 100;
constexpr int kMaxReconnectMs = 1'000;
constexpr int kConnectTimeoutMs = 5'000;

constexpr size_t kMaxTlsFileBytes = size_t{1} << 20;

// Through links: Kubernetes mounts secrets so.
absl::StatusOr<std::string> ReadTlsFile(const std::string& path, bool is_key) {
  auto error = [&](const std::string& what) {
    return absl::InvalidArgumentError(absl::StrCat("--tls-dir: ", path, ": ", what));
  };
  UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat info;
  if (!fd.valid() || fstat(fd.get(), &info) != 0) {
    return error(absl::StrCat(strerror(errno), " (ca.crt, tls.crt and tls.key are needed)"));
  }
  if (!S_ISREG(info.st_mode)) return error("is not a file");
  if (is_key && !IsOwnUserOrRoot(info.st_uid)) {
    return error(absl::StrCat(ForeignOwner(info.st_uid), "; the key must belong to this user or root"));
  }
  if (is_key && (info.st_mode & S_IRWXO) != 0) {
    return error(absl::StrCat("has mode ", absl::Hex(info.st_mode >> 6 & 7), absl::Hex(info.st_mode >> 3 & 7),
                              absl::Hex(info.st_mode & 7), "; others must not reach the key"));
  }
  std::string content(std::min<size_t>(info.st_size, kMaxTlsFileBytes), '\0');
  const ssize_t size = read(fd.get(), content.data(), content.size());
  if (size <= 0) return error(size < 0 ? strerror(errno) : "is empty");
  content.resize(static_cast<size_t>(size));
  return content;
}

absl::StatusOr<JobCertificates> ReadTlsFiles(const std::string& folder) {
  absl::StatusOr<std::string> ca = ReadTlsFile(folder + "/ca.crt", false);
  if (!ca.ok()) return ca.status();
  absl::StatusOr<std::string> cert = ReadTlsFile(folder + "/tls.crt", false);
  if (!cert.ok()) return cert.status();
  absl::StatusOr<std::string> key = ReadTlsFile(folder + "/tls.key", true);
  if (!key.ok()) return key.status();
  return JobCertificates{*std::move(ca), *std::move(cert), *std::move(key)};
}

absl::StatusOr<JobCertificates> FilesOf(const Security& security) {
  if (!security.tls_dir.empty()) return ReadTlsFiles(security.tls_dir);
  if (!security.tls_name.empty()) return absl::InvalidArgumentError("--tls-name: there is no --tls-dir");
  // Without a secret the handshake is still to fail, and not the call for want of certificates: nobody has this one.
  return IssueCertificates(security.secret.empty() ? NewSecret() : security.secret);
}

std::string FindSecret(const HostPort& address, const std::string& fallback) {
  if (std::optional<JobFile> job = JobAt(address)) return job->secret;
  if (!fallback.empty()) return fallback;
  const char* task = std::getenv("MINDX_TASK_ID");
  return task != nullptr && *task != '\0' ? StandInSecret(task) : "";
}

// OpenSSL's own check of the server would do, but could not distinguish a stranger from a network that is down.
class SecretVerifier final : public grpc::experimental::ExternalCertificateVerifier {
 public:
  SecretVerifier(std::string authority, std::function<void()> on_stranger)
      : authority_(std::move(authority)), on_stranger_(std::move(on_stranger)) {}

  bool Verify(grpc::experimental::TlsCustomVerificationCheckRequest* request, std::function<void(grpc::Status)>,
              grpc::Status* status) override {
    const grpc::string_ref certificate = request->peer_cert();
    if (IsSignedBy({certificate.data(), certificate.size()}, authority_)) return true;
    *status = {grpc::StatusCode::UNAUTHENTICATED, "whoever answers there does not have this job's secret"};
    if (on_stranger_) on_stranger_();
    return true;
  }
  void Cancel(grpc::experimental::TlsCustomVerificationCheckRequest*) override {}

 private:
  const std::string authority_;
  const std::function<void()> on_stranger_;
};

// That OpenSSL found a way from the certificate to ca.crt comes before; this is about the name.
class NameVerifier final : public grpc::experimental::ExternalCertificateVerifier {
 public:
  explicit NameVerifier(std::string name) : name_(std::move(name)) {}

  bool Verify(grpc::experimental::TlsCustomVerificationCheckRequest* request, std::function<void(grpc::Status)>,
              grpc::Status* status) override {
    const grpc::string_ref certificate = request->peer_cert();
    if (IsForName({certificate.data(), certificate.size()}, name_)) return true;
    *status = {grpc::StatusCode::UNAUTHENTICATED,
               absl::StrCat("the certificate of whoever answers there is not for ", name_, " (--tls-name)")};
    return true;
  }
  void Cancel(grpc::experimental::TlsCustomVerificationCheckRequest*) override {}

 private:
  const std::string name_;
};

// `chain`: OpenSSL has to find a way from the server's certificate to the authority; else `verifier` is alone with it.
std::shared_ptr<grpc::ChannelCredentials> VerifiedCredentials(
    const JobCertificates& files, bool chain, std::shared_ptr<grpc::experimental::CertificateVerifier> verifier) {
  grpc::experimental::TlsChannelCredentialsOptions options;
  options.set_certificate_provider(std::make_shared<grpc::experimental::StaticDataCertificateProvider>(
      files.authority, std::vector<grpc::experimental::IdentityKeyCertPair>{{files.key, files.certificate}}));
  options.watch_root_certs();
  options.watch_identity_key_cert_pairs();
  options.set_certificate_verifier(std::move(verifier));
  options.set_verify_server_certs(chain);
  options.set_check_call_host(false);
  return grpc::experimental::TlsCredentials(options);
}

// Of what one in plain text sends: the call is ended where it would be more.
constexpr size_t kPlainChannelBytes = size_t{16} << 20;

grpc::ChannelArguments ClientLimits(Silence silence) {
  grpc::ChannelArguments args;
  args.SetMaxReceiveMessageSize(kMaxMessageBytes);
  args.SetMaxSendMessageSize(kMaxMessageBytes);
  // For ever switches off TCP_USER_TIMEOUT, too.
  args.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, silence == Silence::kEndsCalls ? kKeepaliveTimeMs : INT_MAX);
  args.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveTimeoutMs);
  return args;
}

std::shared_ptr<grpc::Channel> Dial(const std::string& address,
                                    const std::shared_ptr<grpc::ChannelCredentials>& credentials, Silence silence,
                                    const std::string& name = "") {
  grpc::ChannelArguments args = ClientLimits(silence);
  if (!name.empty()) args.SetSslTargetNameOverride(name);
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

}  // namespace

void InitGrpcLog() {
  // Abseil as Debian builds it looks for cycles at each lock, and gRPC locks a dozen times a message.
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
  gpr_set_log_verbosity(GPR_LOG_SEVERITY_ERROR);
  gpr_set_log_function([](gpr_log_func_args* args) { spdlog::debug("grpc: {}", args->message); });
  // Protobuf has a line on stderr for each text of a peer that is not UTF-8.
  google::protobuf::SetLogHandler([](google::protobuf::LogLevel, const char*, int, const std::string& message) {
    spdlog::debug("protobuf: {}", message);
  });
}

absl::Status CheckListenAllowed(const std::string& address, const Security& security, bool allow_plaintext) {
  absl::StatusOr<HostPort> parsed = ParseHostPort("--listen", address);
  if (!parsed.ok()) return parsed.status();
  if (allow_plaintext || IsLoopback(*parsed) || !security.tls_dir.empty() || !security.secret.empty()) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "--listen: ", address, " can be reached from other machines; add --tls-dir, TASKD_TOKEN or --allow-plaintext"));
}

absl::StatusOr<std::shared_ptr<const TlsContext>> MakeServerTls(const Security& security) {
  absl::StatusOr<JobCertificates> files = FilesOf(security);
  if (!files.ok()) return files.status();
  const bool has_files = !security.tls_dir.empty();
  absl::StatusOr<std::shared_ptr<const TlsContext>> tls =
      TlsContext::GrpcServer(*files, has_files ? security.tls_name : "");
  if (!tls.ok() && has_files) {
    return absl::InvalidArgumentError(absl::StrCat("--tls-dir: ", security.tls_dir, ": ", tls.status().message()));
  }
  return tls;
}

absl::StatusOr<std::shared_ptr<grpc::Channel>> MakeChannel(const std::string& address, const Security& security,
                                                           std::function<void()> on_stranger, Silence silence) {
  using grpc::experimental::ExternalCertificateVerifier;
  absl::StatusOr<JobCertificates> files = FilesOf(security);
  if (!files.ok()) return files.status();
  if (security.tls_dir.empty()) {
    auto verifier = ExternalCertificateVerifier::Create<SecretVerifier>(files->authority, std::move(on_stranger));
    return Dial(address, VerifiedCredentials(*files, false, std::move(verifier)), silence, kJobHostName);
  }
  if (!security.tls_name.empty()) {
    auto verifier = ExternalCertificateVerifier::Create<NameVerifier>(security.tls_name);
    return Dial(address, VerifiedCredentials(*files, true, std::move(verifier)), silence, security.tls_name);
  }
  return Dial(address, grpc::SslCredentials({files->authority, files->key, files->certificate}), silence);
}

std::shared_ptr<grpc::Channel> MakePlainChannel(const std::string& address, UniqueFd connection) {
  grpc::ChannelArguments args = ClientLimits(Silence::kEndsCalls);
  args.SetResourceQuota(grpc::ResourceQuota().Resize(kPlainChannelBytes));
  args.SetString(GRPC_ARG_DEFAULT_AUTHORITY, address);
  return grpc::CreateCustomInsecureChannelFromFd(address, connection.release(), args);
}

absl::StatusOr<std::shared_ptr<grpc::Channel>> ManagerDial::Channel() {
  absl::StatusOr<HostPort> parsed = ParseHostPort("--manager", address_);
  if (!parsed.ok()) return parsed.status();
  Security security = given_;
  if (security.tls_dir.empty() && security.secret.empty()) security.secret = FindSecret(*parsed, given_.fallback);
  std::lock_guard lock(mutex_);
  if (channel_ == nullptr || security.secret != secret_) {
    *met_stranger_ = false;
    absl::StatusOr<std::shared_ptr<grpc::Channel>> channel = MakeChannel(
        address_, security, [met = met_stranger_] { *met = true; }, silence_);
    if (!channel.ok() && channel_ == nullptr) return channel.status();
    if (channel.ok()) channel_ = *std::move(channel);
    secret_ = security.secret;
  }
  return channel_;
}

void ManagerDial::Reconnect(std::chrono::milliseconds time) {
  Channel().value()->WaitForConnected(std::chrono::system_clock::now() + time);
}

absl::Status ManagerDial::Explain(absl::StatusCode code, const std::string& message) const {
  if (code != absl::StatusCode::kUnavailable || !*met_stranger_) return {code, message};
  if (!given_.secret.empty()) {
    return absl::UnauthenticatedError(absl::StrCat("whoever answers at ", address_,
                                                   " does not have this job's secret: it is another job's manager, or "
                                                   "TASKD_TOKEN is not the same there"));
  }
  return absl::UnavailableError(absl::StrCat("whoever answers at ", address_,
                                             " is no manager of this user on this machine: set TASKD_TOKEN (or "
                                             "TASKD_TLS_DIR) to what that manager has"));
}

void SetServerLimits(grpc::ServerBuilder& builder, size_t memory_bytes) {
  builder.SetResourceQuota(grpc::ResourceQuota().Resize(memory_bytes).SetMaxThreads(kMostSyncThreads));
  builder.SetMaxReceiveMessageSize(kMaxMessageBytes);
  builder.SetMaxSendMessageSize(kMaxMessageBytes);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveTimeMs);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kServerKeepaliveTimeoutMs);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, kMinPingIntervalMs);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kMaxStreamsPerConnection);
  // Else nearly each message of a proxy has a PING for its answer, whose answer wakes two threads. What it would find
  // out, how much a path holds, nobody needs: HTTP/2's 64 KiB a round trip are several seconds of a node's folds.
  builder.AddChannelArgument(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, kHandshakeTimeoutMs);
}

struct FedServer::Acceptor {
  std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> grpc;
};

FedServer::FedServer(grpc::ServerBuilder& builder) : acceptor_(std::make_unique<Acceptor>()) {
  acceptor_->grpc = builder.experimental().AddExternalConnectionAcceptor(
      grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD, grpc::InsecureServerCredentials());
}

FedServer::~FedServer() = default;

void FedServer::Take(UniqueFd connection) {
  grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters parameters;
  parameters.fd = connection.release();
  acceptor_->grpc->HandleNewConnection(&parameters);
}

}  // namespace taskd::proto
