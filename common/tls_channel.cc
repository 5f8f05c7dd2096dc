#include "common/tls_channel.h"

#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>

#include <algorithm>
#include <array>
#include <climits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/job_secret.h"

namespace taskd {
namespace {

template <auto Free>
struct Freer {
  template <typename T>
  void operator()(T* object) const {
    Free(object);
  }
};
using Bio = std::unique_ptr<BIO, Freer<BIO_free_all>>;
using Certificate = std::unique_ptr<X509, Freer<X509_free>>;
using Context = std::unique_ptr<SSL_CTX, Freer<SSL_CTX_free>>;
using Key = std::unique_ptr<EVP_PKEY, Freer<EVP_PKEY_free>>;
using Session = std::unique_ptr<SSL, Freer<SSL_free>>;

Bio Text(const std::string& pem) { return Bio(BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size()))); }

absl::Status Refused(const char* what) {
  char text[256];
  ERR_error_string_n(ERR_get_error(), text, sizeof(text));
  ERR_clear_error();
  return absl::InvalidArgumentError(absl::StrCat("TLS: ", what, ": ", text));
}

// Of an alert or a failed check: it is about who has which secret.
bool IsAboutIdentity(unsigned long error) {
  if (ERR_GET_LIB(error) != ERR_LIB_SSL) return false;
  switch (ERR_GET_REASON(error)) {
    case SSL_R_CERTIFICATE_VERIFY_FAILED:
    case SSL_R_PEER_DID_NOT_RETURN_A_CERTIFICATE:
    case SSL_R_TLSV13_ALERT_CERTIFICATE_REQUIRED:
    case SSL_R_TLSV1_ALERT_UNKNOWN_CA:
    case SSL_R_TLSV1_ALERT_DECRYPT_ERROR:
    case SSL_R_SSLV3_ALERT_BAD_CERTIFICATE:
    case SSL_R_SSLV3_ALERT_CERTIFICATE_UNKNOWN:
    case SSL_R_SSLV3_ALERT_HANDSHAKE_FAILURE:
    case SSL_R_TLSV1_ALERT_ACCESS_DENIED:
      return true;
    default:
      return false;
  }
}

// What a session reads and writes: the bytes that the caller has given, and his buffer. OpenSSL's own memory BIOs keep
// as much memory as they ever needed.
struct Wire {
  std::string_view in;
  std::string* out = nullptr;
};

int ReadWire(BIO* bio, char* to, size_t size, size_t* done) {
  auto* wire = static_cast<Wire*>(BIO_get_data(bio));
  BIO_clear_retry_flags(bio);
  *done = std::min(size, wire->in.size());
  if (*done == 0) {
    BIO_set_retry_read(bio);
    return 0;
  }
  wire->in.copy(to, *done);
  wire->in.remove_prefix(*done);
  return 1;
}

int WriteWire(BIO* bio, const char* from, size_t size, size_t* done) {
  static_cast<Wire*>(BIO_get_data(bio))->out->append(from, size);
  *done = size;
  return 1;
}

long ControlWire(BIO*, int command, long, void*) { return command == BIO_CTRL_FLUSH ? 1 : 0; }

const BIO_METHOD* WireMethod() {
  static const BIO_METHOD* const method = [] {
    BIO_METHOD* made = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "taskd");
    if (made == nullptr) return made;
    BIO_meth_set_read_ex(made, ReadWire);
    BIO_meth_set_write_ex(made, WriteWire);
    BIO_meth_set_ctrl(made, ControlWire);
    return made;
  }();
  return method;
}

class Channel final : public TlsChannel {
 public:
  Channel(Session session, bool alpn) : session_(std::move(session)), needs_alpn_(alpn) {}

  // False: there is no memory.
  bool Begin();
  absl::Status Receive(std::string_view bytes, std::string& plain, std::string& out) override;
  void Send(std::string_view plain, std::string& out) override;
  void End(std::string& out) override;
  bool proven() const override { return SSL_is_init_finished(session_.get()) == 1; }

 private:
  const Session session_;
  const bool needs_alpn_;
  Wire wire_;  // set during a call
  std::string waiting_;
};

bool Channel::Begin() {
  BIO* wire = WireMethod() == nullptr ? nullptr : BIO_new(WireMethod());
  if (wire == nullptr) return false;
  BIO_set_data(wire, &wire_);
  BIO_set_init(wire, 1);
  SSL_set_bio(session_.get(), wire, wire);
  return true;
}

void Channel::Send(std::string_view plain, std::string& out) {
  ERR_clear_error();
  wire_.out = &out;
  if (!proven()) {
    waiting_ += plain;
    SSL_do_handshake(session_.get());
    if (!proven()) return;
    plain = {};
  }
  const std::string waiting = std::exchange(waiting_, {});
  for (std::string_view text : {std::string_view(waiting), plain}) {
    while (!text.empty()) {
      const int size = static_cast<int>(std::min<size_t>(text.size(), INT_MAX));
      const int written = SSL_write(session_.get(), text.data(), size);
      if (written <= 0) return;  // it is broken, which the next Receive() says
      text.remove_prefix(static_cast<size_t>(written));
    }
  }
}

absl::Status Channel::Receive(std::string_view bytes, std::string& plain, std::string& out) {
  ERR_clear_error();
  wire_ = {bytes, &out};
  std::array<char, 16 * 1024> buffer;
  int size = 0;
  while ((size = SSL_read(session_.get(), buffer.data(), buffer.size())) > 0) {
    plain.append(buffer.data(), static_cast<size_t>(size));
    if (wire_.in.empty() && SSL_has_pending(session_.get()) == 0) break;  // asking once more is not free
  }
  wire_.in = {};
  const int why = size > 0 ? SSL_ERROR_WANT_READ : SSL_get_error(session_.get(), size);
  const unsigned long error = ERR_peek_last_error();
  if (why == SSL_ERROR_ZERO_RETURN) return absl::OutOfRangeError("the TLS connection has ended");
  if (why != SSL_ERROR_WANT_READ) {
    char text[256];
    ERR_error_string_n(error, text, sizeof(text));
    ERR_clear_error();
    if (IsAboutIdentity(error) || SSL_get_verify_result(session_.get()) != X509_V_OK)
      return absl::PermissionDeniedError("the other side has another secret, or none");
    return absl::InvalidArgumentError(error == 0 ? "the TLS connection has ended" : absl::StrCat("TLS: ", text));
  }
  if (needs_alpn_ && proven()) {
    const unsigned char* chosen = nullptr;
    unsigned int length = 0;
    SSL_get0_alpn_selected(session_.get(), &chosen, &length);
    if (length == 0) return absl::InvalidArgumentError("TLS: the client does not offer HTTP/2");
  }
  Send("", out);
  return absl::OkStatus();
}

void Channel::End(std::string& out) {
  ERR_clear_error();
  wire_.out = &out;
  if (proven()) SSL_shutdown(session_.get());
}

class ContextOfSide final : public TlsContext {
 public:
  ContextOfSide(bool is_server, bool alpn) : is_server_(is_server), alpn_(alpn) {}

  absl::Status Begin();
  // Each is INVALID_ARGUMENT where `pem` is no such thing.
  absl::Status Show(const std::string& certificate, const std::string& key);
  absl::Status Believe(const std::string& authorities, const std::string& peer_name);
  std::unique_ptr<TlsChannel> Open() const override;

 private:
  const bool is_server_;
  const bool alpn_;
  Context context_;
};

// HTTP/2 (RFC 7540 section 3.3), or no connection.
int ChooseHttp2(SSL*, const unsigned char** chosen, unsigned char* length, const unsigned char* offered,
                unsigned int size, void*) {
  static constexpr unsigned char kHttp2[] = {2, 'h', '2'};
  unsigned char* found = nullptr;
  if (SSL_select_next_proto(&found, length, kHttp2, sizeof(kHttp2), offered, size) != OPENSSL_NPN_NEGOTIATED) {
    return SSL_TLSEXT_ERR_ALERT_FATAL;
  }
  *chosen = found;
  return SSL_TLSEXT_ERR_OK;
}

absl::Status ContextOfSide::Begin() {
  ERR_clear_error();
  context_.reset(SSL_CTX_new(is_server_ ? TLS_server_method() : TLS_client_method()));
  if (context_ == nullptr || SSL_CTX_set_min_proto_version(context_.get(), TLS1_3_VERSION) != 1) {
    return Refused("no TLS 1.3");
  }
  // The client chooses among these: a large group would be a lever on the server's processor.
  if (SSL_CTX_set1_groups_list(context_.get(), "X25519:P-256") != 1) return Refused("no X25519");
  SSL_CTX_set_session_cache_mode(context_.get(), SSL_SESS_CACHE_OFF);
  SSL_CTX_set_num_tickets(context_.get(), 0);
  SSL_CTX_set_mode(context_.get(), SSL_MODE_RELEASE_BUFFERS);
  if (alpn_) SSL_CTX_set_alpn_select_cb(context_.get(), ChooseHttp2, nullptr);
  return absl::OkStatus();
}

absl::Status ContextOfSide::Show(const std::string& certificate, const std::string& key) {
  const Bio certificates = Text(certificate);
  const Certificate own(PEM_read_bio_X509(certificates.get(), nullptr, nullptr, nullptr));
  if (own == nullptr || SSL_CTX_use_certificate(context_.get(), own.get()) != 1) return Refused("the certificate");
  while (Certificate next{PEM_read_bio_X509(certificates.get(), nullptr, nullptr, nullptr)}) {
    if (SSL_CTX_add1_chain_cert(context_.get(), next.get()) != 1) return Refused("the certificate's chain");
  }
  ERR_clear_error();  // there is no further one
  // An empty password: nobody is asked for one.
  const Key private_key(PEM_read_bio_PrivateKey(Text(key).get(), nullptr, nullptr, const_cast<char*>("")));
  if (private_key == nullptr || SSL_CTX_use_PrivateKey(context_.get(), private_key.get()) != 1 ||
      SSL_CTX_check_private_key(context_.get()) != 1) {
    return Refused("the certificate's key");
  }
  return absl::OkStatus();
}

absl::Status ContextOfSide::Believe(const std::string& authorities, const std::string& peer_name) {
  X509_STORE* store = SSL_CTX_get_cert_store(context_.get());
  const Bio certificates = Text(authorities);
  int count = 0;
  while (Certificate next{PEM_read_bio_X509(certificates.get(), nullptr, nullptr, nullptr)}) {
    if (X509_STORE_add_cert(store, next.get()) != 1) return Refused("the authority");
    ++count;
  }
  if (count == 0) return Refused("the authority");
  ERR_clear_error();
  X509_STORE_set_flags(store, X509_V_FLAG_PARTIAL_CHAIN);  // an authority below another one is one, too
  if (!peer_name.empty()) {
    X509_VERIFY_PARAM* checks = SSL_CTX_get0_param(context_.get());
    X509_VERIFY_PARAM_set_hostflags(checks, X509_CHECK_FLAG_NO_WILDCARDS | X509_CHECK_FLAG_NEVER_CHECK_SUBJECT);
    if (X509_VERIFY_PARAM_set1_host(checks, peer_name.c_str(), peer_name.size()) != 1) return Refused("the name");
  }
  SSL_CTX_set_verify(context_.get(), SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
  return absl::OkStatus();
}

std::unique_ptr<TlsChannel> ContextOfSide::Open() const {
  ERR_clear_error();
  Session session(SSL_new(context_.get()));
  if (session == nullptr) return nullptr;
  if (is_server_) {
    SSL_set_accept_state(session.get());
  } else {
    SSL_set_connect_state(session.get());
  }
  auto channel = std::make_unique<Channel>(std::move(session), alpn_);
  if (!channel->Begin()) return nullptr;
  return channel;
}

absl::StatusOr<std::shared_ptr<const TlsContext>> OfSecret(bool is_server, std::string_view secret, bool peer_proves) {
  auto context = std::make_shared<ContextOfSide>(is_server, false);
  if (absl::Status status = context->Begin(); !status.ok()) return status;
  if (secret.empty()) return context;
  absl::StatusOr<JobCertificates> issued = IssueCertificates(secret);
  if (!issued.ok()) return issued.status();
  absl::Status status = context->Show(issued->certificate, issued->key);
  if (status.ok() && peer_proves) status = context->Believe(issued->authority, is_server ? "" : kJobHostName);
  if (!status.ok()) return absl::InternalError(status.message());
  return context;
}

}  // namespace

absl::StatusOr<std::shared_ptr<const TlsContext>> TlsContext::GrpcServer(const JobCertificates& pem,
                                                                         const std::string& peer_name) {
  auto context = std::make_shared<ContextOfSide>(true, true);
  absl::Status status = context->Begin();
  if (status.ok()) status = context->Show(pem.certificate, pem.key);
  if (status.ok()) status = context->Believe(pem.authority, peer_name);
  if (!status.ok()) return status;
  return context;
}

absl::StatusOr<std::shared_ptr<const TlsContext>> TlsContext::Server(std::string_view own_secret, bool peer_proves) {
  return OfSecret(true, own_secret, peer_proves);
}

absl::StatusOr<std::shared_ptr<const TlsContext>> TlsContext::Client(std::string_view secret) {
  return OfSecret(false, secret, !secret.empty());
}

}  // namespace taskd
