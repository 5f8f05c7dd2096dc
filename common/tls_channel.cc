#include "common/tls_channel.h"

#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>

#include <algorithm>
#include <array>
#include <climits>

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
  return absl::InternalError(absl::StrCat("TLS: ", what, ": ", text));
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

class Channel : public TlsChannel {
 public:
  absl::Status Open(bool is_server, std::string_view secret, bool peer_proves);
  absl::Status Receive(std::string_view bytes, std::string& plain, std::string& out) override;
  void Send(std::string_view plain, std::string& out) override;

 private:
  void Flush(std::string& out);

  Context context_;
  Session session_;
  BIO* in_ = nullptr;   // the session's
  BIO* out_ = nullptr;  // the session's
  std::string waiting_;
};

absl::Status Channel::Open(bool is_server, std::string_view secret, bool peer_proves) {
  ERR_clear_error();
  context_.reset(SSL_CTX_new(is_server ? TLS_server_method() : TLS_client_method()));
  if (context_ == nullptr || SSL_CTX_set_min_proto_version(context_.get(), TLS1_3_VERSION) != 1) {
    return Refused("no TLS 1.3");
  }
  SSL_CTX_set_session_cache_mode(context_.get(), SSL_SESS_CACHE_OFF);
  SSL_CTX_set_num_tickets(context_.get(), 0);
  if (!secret.empty()) {
    absl::StatusOr<JobCertificates> issued = IssueCertificates(secret);
    if (!issued.ok()) return issued.status();
    const Certificate own(PEM_read_bio_X509(Text(issued->certificate).get(), nullptr, nullptr, nullptr));
    const Certificate authority(PEM_read_bio_X509(Text(issued->authority).get(), nullptr, nullptr, nullptr));
    const Key key(PEM_read_bio_PrivateKey(Text(issued->key).get(), nullptr, nullptr, nullptr));
    if (own == nullptr || authority == nullptr || key == nullptr ||
        SSL_CTX_use_certificate(context_.get(), own.get()) != 1 ||
        SSL_CTX_use_PrivateKey(context_.get(), key.get()) != 1 ||
        X509_STORE_add_cert(SSL_CTX_get_cert_store(context_.get()), authority.get()) != 1) {
      return Refused("the job's certificate");
    }
  }
  if (peer_proves) SSL_CTX_set_verify(context_.get(), SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
  session_.reset(SSL_new(context_.get()));
  in_ = BIO_new(BIO_s_mem());
  out_ = BIO_new(BIO_s_mem());
  if (session_ == nullptr || in_ == nullptr || out_ == nullptr) return Refused("no session");
  SSL_set_bio(session_.get(), in_, out_);
  if (is_server) {
    SSL_set_accept_state(session_.get());
  } else {
    if (peer_proves && SSL_set1_host(session_.get(), kJobHostName) != 1) return Refused("no name to expect");
    SSL_set_connect_state(session_.get());
  }
  return absl::OkStatus();
}

void Channel::Flush(std::string& out) {
  std::array<char, 16 * 1024> buffer;
  for (int size; (size = BIO_read(out_, buffer.data(), buffer.size())) > 0;) out.append(buffer.data(), size);
}

void Channel::Send(std::string_view plain, std::string& out) {
  ERR_clear_error();
  waiting_ += plain;
  if (!SSL_is_init_finished(session_.get())) SSL_do_handshake(session_.get());
  size_t sent = 0;
  while (SSL_is_init_finished(session_.get()) && sent < waiting_.size()) {
    const size_t size = std::min<size_t>(waiting_.size() - sent, INT_MAX);
    const int written = SSL_write(session_.get(), waiting_.data() + sent, static_cast<int>(size));
    if (written <= 0) break;
    sent += static_cast<size_t>(written);
  }
  waiting_.erase(0, sent);
  Flush(out);
}

absl::Status Channel::Receive(std::string_view bytes, std::string& plain, std::string& out) {
  ERR_clear_error();
  BIO_write(in_, bytes.data(), static_cast<int>(std::min<size_t>(bytes.size(), INT_MAX)));
  std::array<char, 16 * 1024> buffer;
  int size = 0;
  while ((size = SSL_read(session_.get(), buffer.data(), buffer.size())) > 0) plain.append(buffer.data(), size);
  const int why = SSL_get_error(session_.get(), size);
  const unsigned long error = ERR_peek_last_error();
  if (why != SSL_ERROR_WANT_READ) {
    Flush(out);
    char text[256];
    ERR_error_string_n(error, text, sizeof(text));
    ERR_clear_error();
    if (IsAboutIdentity(error) || SSL_get_verify_result(session_.get()) != X509_V_OK)
      return absl::PermissionDeniedError("the other side has another secret, or none");
    return absl::InvalidArgumentError(error == 0 ? "the TLS connection has ended" : absl::StrCat("TLS: ", text));
  }
  Send("", out);
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<TlsChannel>> Open(bool is_server, std::string_view secret, bool peer_proves) {
  auto channel = std::make_unique<Channel>();
  if (absl::Status status = channel->Open(is_server, secret, peer_proves); !status.ok()) return status;
  return channel;
}

}  // namespace

absl::StatusOr<std::unique_ptr<TlsChannel>> TlsChannel::Server(std::string_view own_secret, bool peer_proves) {
  return Open(true, own_secret, peer_proves);
}

absl::StatusOr<std::unique_ptr<TlsChannel>> TlsChannel::Client(std::string_view secret) {
  return Open(false, secret, !secret.empty());
}

}  // namespace taskd
