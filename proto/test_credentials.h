// For tests whose server is gRPC's own, without a GrpcListener: what parts of a job with this secret believe.
#pragma once

#include <memory>
#include <string>

#include "common/job_secret.h"
#include "grpcpp/security/server_credentials.h"

namespace taskd::proto {

inline std::shared_ptr<grpc::ServerCredentials> TestCredentials(const std::string& secret) {
  const JobCertificates pem = IssueCertificates(secret).value();
  grpc::SslServerCredentialsOptions options(GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  options.pem_root_certs = pem.authority;
  options.pem_key_cert_pairs.push_back({pem.key, pem.certificate});
  return grpc::SslServerCredentials(options);
}

}  // namespace taskd::proto
