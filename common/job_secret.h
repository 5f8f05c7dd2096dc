// The job's secret, and what each part of TaskD proves with it (docs/security-model.md).
//
// HKDF-SHA256 makes the secret into the Ed25519 key of the job's certificate authority. A process with the secret has
// that key, and issues a certificate to itself; one without it can do neither that nor, having seen certificates, learn
// the key. So mutual TLS shows each side that the other one has the secret, which itself is never sent.
//
// Certificates do not expire: a process that could use an old one could make a new one, and a node whose clock is wrong
// stays part of its job.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace taskd {

// PEM.
struct JobCertificates {
  std::string authority;    // what the peer's certificate must be signed by
  std::string certificate;  // this process's, for kJobHostName
  std::string key;          // of `certificate`; made anew by each call, never written anywhere
};

// The name in every certificate of a job: its parts are known by the secret, not by their addresses.
inline constexpr char kJobHostName[] = "job.taskd";

// 32 random bytes as 64 hexadecimal digits.
std::string NewSecret();

// INTERNAL: OpenSSL refuses, for want of memory or of Ed25519. Thread safe.
absl::StatusOr<JobCertificates> IssueCertificates(std::string_view secret);

// What stands for the secret over HTTP, which a token crosses as it is: made of the secret by HKDF-SHA256 with a label
// of its own, so that it lets people look and tells nothing of the secret. 64 hexadecimal digits. Empty, which no
// server takes: the secret is empty or a stand-in, whose token everybody could make.
std::string ViewToken(std::string_view secret);

// What shows, without TLS, that its sender has the secret: 32 bytes, good for this challenge alone. Empty, which is no
// proof: OpenSSL has no memory.
std::string SecretProof(std::string_view secret, std::string_view challenge);
bool IsSecretProof(std::string_view proof, std::string_view secret, std::string_view challenge);
std::string NewChallenge();  // 32 random bytes

// Whether `certificate` (PEM; anything may be given) is one that the authority (PEM) has signed.
bool IsSignedBy(std::string_view certificate, std::string_view authority);

// Whether `certificate` (PEM; anything may be given) has `name` among its DNS names: as it stands, without wildcards.
bool IsForName(std::string_view certificate, const std::string& name);

// The secret of a job that was given none, derived from a text that all its parts know, such as the platform's id of
// the job. It keeps jobs apart and keeps out those who do not know that text, and no more: anyone who can look up the
// id can join. It does not authorise remote commands.
std::string StandInSecret(std::string_view shared_text);
bool IsStandIn(std::string_view secret);

}  // namespace taskd
