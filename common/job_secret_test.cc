#include "common/job_secret.h"

#include <openssl/pem.h>
#include <openssl/ssl.h>

#include <memory>
#include <set>

#include "absl/strings/escaping.h"
#include "gtest/gtest.h"

namespace taskd {
namespace {

JobCertificates Issue(std::string_view secret) {
  absl::StatusOr<JobCertificates> issued = IssueCertificates(secret);
  EXPECT_TRUE(issued.ok()) << issued.status();
  return issued.value_or(JobCertificates{});
}

using Context = std::unique_ptr<SSL_CTX, decltype(&SSL_CTX_free)>;
using Session = std::unique_ptr<SSL, decltype(&SSL_free)>;

X509* Read(const std::string& pem) {
  BIO* bio = BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size()));
  X509* certificate = PEM_read_bio_X509(bio, nullptr, nullptr, nullptr);
  BIO_free(bio);
  return certificate;
}

Context MakeContext(const JobCertificates& own, const std::string& trusted) {
  Context context(SSL_CTX_new(TLS_method()), SSL_CTX_free);
  X509* certificate = Read(own.certificate);
  BIO* bio = BIO_new_mem_buf(own.key.data(), static_cast<int>(own.key.size()));
  EVP_PKEY* key = PEM_read_bio_PrivateKey(bio, nullptr, nullptr, nullptr);
  EXPECT_EQ(SSL_CTX_use_certificate(context.get(), certificate), 1);
  EXPECT_EQ(SSL_CTX_use_PrivateKey(context.get(), key), 1);
  X509* root = Read(trusted);
  EXPECT_EQ(X509_STORE_add_cert(SSL_CTX_get_cert_store(context.get()), root), 1);
  SSL_CTX_set_verify(context.get(), SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
  X509_free(certificate);
  X509_free(root);
  EVP_PKEY_free(key);
  BIO_free(bio);
  return context;
}

// Both sides with full verification by OpenSSL, over a pipe in memory. The protocol's version, "" if either refused.
std::string Handshake(const JobCertificates& server_side, const JobCertificates& client_side) {
  Context server_context = MakeContext(server_side, server_side.authority);
  Context client_context = MakeContext(client_side, client_side.authority);
  Session server(SSL_new(server_context.get()), SSL_free);
  Session client(SSL_new(client_context.get()), SSL_free);
  SSL_set1_host(client.get(), kJobHostName);
  BIO* server_end = nullptr;
  BIO* client_end = nullptr;
  BIO_new_bio_pair(&server_end, 0, &client_end, 0);
  SSL_set_bio(server.get(), server_end, server_end);
  SSL_set_bio(client.get(), client_end, client_end);
  SSL_set_accept_state(server.get());
  SSL_set_connect_state(client.get());
  for (int i = 0; i < 20; ++i) {
    for (SSL* side : {client.get(), server.get()}) {
      const int result = SSL_do_handshake(side);
      if (result != 1 && SSL_get_error(side, result) != SSL_ERROR_WANT_READ) return "";
    }
    if (SSL_is_init_finished(client.get()) && SSL_is_init_finished(server.get())) return SSL_get_version(client.get());
  }
  return "";
}

TEST(JobSecretTest, WhoHasTheSecretIsKnownToWhoHasIt) {
  const JobCertificates one = Issue("of the job");
  const JobCertificates other = Issue("of the job");
  EXPECT_NE(one.key, other.key) << "each process has a key of its own";
  EXPECT_TRUE(IsSignedBy(one.certificate, other.authority));
  EXPECT_TRUE(IsSignedBy(other.certificate, one.authority));
  EXPECT_EQ(Handshake(one, other), "TLSv1.3");
}

TEST(JobSecretTest, WhoHasAnotherOneIsNot) {
  const JobCertificates one = Issue("of the job");
  for (const char* secret : {"", "of the jo", "of the job ", "OF THE JOB"}) {
    const JobCertificates other = Issue(secret);
    EXPECT_FALSE(IsSignedBy(other.certificate, one.authority)) << secret;
    EXPECT_FALSE(IsSignedBy(one.certificate, other.authority)) << secret;
    EXPECT_EQ(Handshake(one, other), "") << secret;
    EXPECT_EQ(Handshake(other, one), "") << secret;
  }
}

TEST(JobSecretTest, ACertificateOfTheJobIssuesNoOthers) {
  // A stranger who signs with a key of his own and shows the job's authority beside it.
  const JobCertificates ours = Issue("of the job");
  JobCertificates forged = Issue("another");
  forged.authority = ours.authority;
  EXPECT_FALSE(IsSignedBy(forged.certificate, ours.authority));
  EXPECT_EQ(Handshake(ours, forged), "");
}

TEST(JobSecretTest, AnythingMayBeGivenForACertificate) {
  const JobCertificates ours = Issue("of the job");
  for (const std::string& text :
       {std::string(), std::string("x"), ours.key, ours.certificate.substr(0, 100), std::string(100'000, '-')}) {
    EXPECT_FALSE(IsSignedBy(text, ours.authority));
    EXPECT_FALSE(IsSignedBy(ours.certificate, text));
  }
}

TEST(JobSecretTest, SecretsAreRandom) {
  std::set<std::string> secrets;
  for (int i = 0; i < 100; ++i) secrets.insert(NewSecret());
  EXPECT_EQ(secrets.size(), 100u);
  for (const std::string& secret : secrets) {
    EXPECT_EQ(secret.size(), 64u);
    EXPECT_EQ(secret.find_first_not_of("0123456789abcdef"), std::string::npos);
    EXPECT_FALSE(IsStandIn(secret));
  }
}

TEST(JobSecretTest, StandInsAreToldApart) {
  EXPECT_TRUE(IsStandIn(StandInSecret("task-1")));
  EXPECT_NE(StandInSecret("task-1"), StandInSecret("task-2"));
  EXPECT_EQ(Handshake(Issue(StandInSecret("task-1")), Issue(StandInSecret("task-2"))), "");
}

// RFC 5869 by another hand: Python's hmac and hashlib.
TEST(JobSecretTest, TheViewingTokenIsMadeOfTheSecret) {
  EXPECT_EQ(ViewToken("the secret"), "3e98278791a12dd7b7f5a7c10c86b79b6a171a9f77ca9a4d038540fae87ab5c5");
  EXPECT_NE(ViewToken("the secret "), ViewToken("the secret"));
  for (const std::string& secret : {std::string(), StandInSecret("job")}) {
    EXPECT_EQ(ViewToken(secret), "") << "anybody could make it";
  }
}

TEST(JobSecretTest, AProofIsGoodForItsChallengeAndSecretAlone) {
  const std::string challenge = NewChallenge();
  EXPECT_EQ(challenge.size(), 32u);
  EXPECT_NE(challenge, NewChallenge());
  const std::string proof = SecretProof("secret", challenge);
  EXPECT_TRUE(IsSecretProof(proof, "secret", challenge));
  EXPECT_FALSE(IsSecretProof(proof, "another", challenge));
  EXPECT_FALSE(IsSecretProof(proof, "secret", NewChallenge()));
  for (const std::string& guess : {std::string(), proof + "x", proof.substr(1), std::string(32, '\0')}) {
    EXPECT_FALSE(IsSecretProof(guess, "secret", challenge));
  }
  EXPECT_NE(ViewToken("secret"), absl::BytesToHexString(SecretProof("secret", "view"))) << "each has a key of its own";
}

}  // namespace
}  // namespace taskd
