#include "common/job_secret.h"

#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/kdf.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>

#include <array>
#include <cstdlib>
#include <memory>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace taskd {
namespace {

// OpenSSL is not taken down at exit(): gRPC's threads may be in the middle of a handshake, and would use what is freed
// and leak what they have. Before anything else of OpenSSL runs, or it has its handler registered already.
[[maybe_unused]] const int kLeftStanding = OPENSSL_init_crypto(OPENSSL_INIT_NO_ATEXIT, nullptr);

constexpr size_t kSecretBytes = 32;
constexpr size_t kKeyBytes = 32;  // of Ed25519
// Changes when a release derives keys differently, so that the two fail to match for certain and not by chance.
constexpr std::string_view kSalt = "taskd job authority 1";
constexpr std::string_view kTokenSalt = "taskd job token 1";
constexpr std::string_view kProofSalt = "taskd job proof 1";
constexpr std::string_view kStandInPrefix = "taskd-stand-in:";
// RFC 5280: a certificate without an end.
constexpr char kBegin[] = "19700101000000Z";
constexpr char kNoEnd[] = "99991231235959Z";

struct Free {
  void operator()(EVP_PKEY* key) const { EVP_PKEY_free(key); }
  void operator()(EVP_PKEY_CTX* context) const { EVP_PKEY_CTX_free(context); }
  void operator()(X509* certificate) const { X509_free(certificate); }
  void operator()(X509_EXTENSION* extension) const { X509_EXTENSION_free(extension); }
  void operator()(BIO* bio) const { BIO_free(bio); }
};
template <typename T>
using Owned = std::unique_ptr<T, Free>;

absl::Status Refused(const char* what) {
  const unsigned long error = ERR_get_error();
  ERR_clear_error();
  const char* reason = error == 0 ? nullptr : ERR_reason_error_string(error);
  return absl::InternalError(absl::StrCat("OpenSSL: ", what, ": ", reason == nullptr ? "no reason given" : reason));
}

using DerivedKey = std::array<unsigned char, kKeyBytes>;

// HKDF-SHA256 (RFC 5869). False: OpenSSL has no memory.
bool Derive(std::string_view secret, std::string_view salt, std::string_view label, DerivedKey* key) {
  Owned<EVP_PKEY_CTX> hkdf(EVP_PKEY_CTX_new_id(EVP_PKEY_HKDF, nullptr));
  size_t size = key->size();
  const auto bytes = [](std::string_view text) { return reinterpret_cast<const unsigned char*>(text.data()); };
  if (hkdf == nullptr || EVP_PKEY_derive_init(hkdf.get()) <= 0 ||
      EVP_PKEY_CTX_set_hkdf_md(hkdf.get(), EVP_sha256()) <= 0 ||
      EVP_PKEY_CTX_set1_hkdf_salt(hkdf.get(), bytes(salt), static_cast<int>(salt.size())) <= 0 ||
      EVP_PKEY_CTX_set1_hkdf_key(hkdf.get(), bytes(secret), static_cast<int>(secret.size())) <= 0 ||
      (!label.empty() && EVP_PKEY_CTX_add1_hkdf_info(hkdf.get(), bytes(label), static_cast<int>(label.size())) <= 0) ||
      EVP_PKEY_derive(hkdf.get(), key->data(), &size) <= 0) {
    ERR_clear_error();
    return false;
  }
  return size == key->size();
}

Owned<EVP_PKEY> AuthorityKey(std::string_view secret) {
  DerivedKey key;
  if (!Derive(secret, kSalt, "", &key)) return nullptr;
  return Owned<EVP_PKEY>(EVP_PKEY_new_raw_private_key(EVP_PKEY_ED25519, nullptr, key.data(), key.size()));
}

Owned<EVP_PKEY> FreshKey() {
  Owned<EVP_PKEY_CTX> context(EVP_PKEY_CTX_new_id(EVP_PKEY_ED25519, nullptr));
  EVP_PKEY* key = nullptr;
  if (context == nullptr || EVP_PKEY_keygen_init(context.get()) <= 0 || EVP_PKEY_keygen(context.get(), &key) <= 0) {
    return nullptr;
  }
  return Owned<EVP_PKEY>(key);
}

bool AddExtension(X509* certificate, int nid, const std::string& value) {
  Owned<X509_EXTENSION> extension(X509V3_EXT_conf_nid(nullptr, nullptr, nid, value.c_str()));
  return extension != nullptr && X509_add_ext(certificate, extension.get(), -1) == 1;
}

// `name`: of the subject; the issuer is always the authority.
Owned<X509> MakeCertificate(const char* name, EVP_PKEY* subject, EVP_PKEY* authority, bool is_authority) {
  constexpr char kAuthorityName[] = "taskd job";
  Owned<X509> certificate(X509_new());
  uint64_t serial = 0;
  auto add_name = [](X509_NAME* to, const char* text) {
    return X509_NAME_add_entry_by_txt(to, "CN", MBSTRING_UTF8, reinterpret_cast<const unsigned char*>(text), -1, -1, 0);
  };
  if (certificate == nullptr || X509_set_version(certificate.get(), X509_VERSION_3) != 1 ||
      RAND_bytes(reinterpret_cast<unsigned char*>(&serial), sizeof(serial)) != 1 ||
      ASN1_INTEGER_set_uint64(X509_get_serialNumber(certificate.get()), serial >> 1) != 1 ||
      ASN1_TIME_set_string_X509(X509_getm_notBefore(certificate.get()), kBegin) != 1 ||
      ASN1_TIME_set_string_X509(X509_getm_notAfter(certificate.get()), kNoEnd) != 1 ||
      add_name(X509_get_subject_name(certificate.get()), is_authority ? kAuthorityName : name) != 1 ||
      add_name(X509_get_issuer_name(certificate.get()), kAuthorityName) != 1 ||
      X509_set_pubkey(certificate.get(), subject) != 1) {
    return nullptr;
  }
  const bool extended = is_authority
                            ? AddExtension(certificate.get(), NID_basic_constraints, "critical,CA:TRUE") &&
                                  AddExtension(certificate.get(), NID_key_usage, "critical,keyCertSign")
                            : AddExtension(certificate.get(), NID_basic_constraints, "critical,CA:FALSE") &&
                                  AddExtension(certificate.get(), NID_key_usage, "critical,digitalSignature") &&
                                  AddExtension(certificate.get(), NID_subject_alt_name, absl::StrCat("DNS:", name));
  // Ed25519 hashes by itself.
  if (!extended || X509_sign(certificate.get(), authority, nullptr) == 0) return nullptr;
  return certificate;
}

std::string Text(BIO* bio) {
  char* data = nullptr;
  const long size = BIO_get_mem_data(bio, &data);
  return size > 0 ? std::string(data, static_cast<size_t>(size)) : "";
}

std::string CertificatePem(X509* certificate) {
  Owned<BIO> bio(BIO_new(BIO_s_mem()));
  return bio != nullptr && PEM_write_bio_X509(bio.get(), certificate) == 1 ? Text(bio.get()) : "";
}

std::string KeyPem(EVP_PKEY* key) {
  Owned<BIO> bio(BIO_new(BIO_s_mem()));
  return bio != nullptr && PEM_write_bio_PrivateKey(bio.get(), key, nullptr, nullptr, 0, nullptr, nullptr) == 1
             ? Text(bio.get())
             : "";
}

Owned<X509> ReadCertificate(std::string_view pem) {
  Owned<BIO> bio(BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())));
  Owned<X509> certificate(bio == nullptr ? nullptr : PEM_read_bio_X509(bio.get(), nullptr, nullptr, nullptr));
  ERR_clear_error();
  return certificate;
}

}  // namespace

std::string NewChallenge() {
  std::string bytes(kSecretBytes, '\0');
  // A guessable one is worse than none.
  if (RAND_bytes(reinterpret_cast<unsigned char*>(bytes.data()), static_cast<int>(bytes.size())) != 1) std::abort();
  return bytes;
}

std::string NewSecret() { return absl::BytesToHexString(NewChallenge()); }

std::string SecretProof(std::string_view secret, std::string_view challenge) {
  DerivedKey key;
  return Derive(secret, kProofSalt, challenge, &key) ? std::string(key.begin(), key.end()) : "";
}

bool IsSecretProof(std::string_view proof, std::string_view secret, std::string_view challenge) {
  const std::string expected = SecretProof(secret, challenge);
  return proof.size() == kKeyBytes && expected.size() == kKeyBytes &&
         CRYPTO_memcmp(proof.data(), expected.data(), kKeyBytes) == 0;
}

absl::StatusOr<JobCertificates> IssueCertificates(std::string_view secret) {
  Owned<EVP_PKEY> authority = AuthorityKey(secret);
  if (authority == nullptr) return Refused("the job's key");
  Owned<EVP_PKEY> key = FreshKey();
  if (key == nullptr) return Refused("a new key");
  Owned<X509> root = MakeCertificate(nullptr, authority.get(), authority.get(), true);
  Owned<X509> own = MakeCertificate(kJobHostName, key.get(), authority.get(), false);
  if (root == nullptr || own == nullptr) return Refused("a certificate");
  JobCertificates result{CertificatePem(root.get()), CertificatePem(own.get()), KeyPem(key.get())};
  if (result.authority.empty() || result.certificate.empty() || result.key.empty()) return Refused("PEM");
  return result;
}

std::string ViewToken(std::string_view secret) {
  DerivedKey key;
  if (secret.empty() || IsStandIn(secret) || !Derive(secret, kTokenSalt, "view", &key)) return "";
  return absl::BytesToHexString({reinterpret_cast<const char*>(key.data()), key.size()});
}

bool IsSignedBy(std::string_view certificate, std::string_view authority) {
  Owned<X509> root = ReadCertificate(authority);
  Owned<X509> leaf = ReadCertificate(certificate);
  const bool is_signed =
      root != nullptr && leaf != nullptr && X509_verify(leaf.get(), X509_get0_pubkey(root.get())) == 1;
  ERR_clear_error();
  return is_signed;
}

bool IsForName(std::string_view certificate, const std::string& name) {
  Owned<X509> leaf = ReadCertificate(certificate);
  constexpr unsigned kExactly = X509_CHECK_FLAG_NO_WILDCARDS | X509_CHECK_FLAG_NEVER_CHECK_SUBJECT;
  const bool is_for = leaf != nullptr && X509_check_host(leaf.get(), name.data(), name.size(), kExactly, nullptr) == 1;
  ERR_clear_error();
  return is_for;
}

std::string StandInSecret(std::string_view shared_text) {
  return std::string(kStandInPrefix) + std::string(shared_text);
}

bool IsStandIn(std::string_view secret) { return secret.starts_with(kStandInPrefix); }

}  // namespace taskd
