// What a part of a job proves itself with, for test clients that are not TaskD's: the secret on stdin, JSON of PEM
// texts on stdout.
#include <iostream>
#include <iterator>
#include <string>

#include "common/job_secret.h"
#include "nlohmann/json.hpp"

int main() {
  const std::string secret((std::istreambuf_iterator<char>(std::cin)), std::istreambuf_iterator<char>());
  absl::StatusOr<taskd::JobCertificates> issued = taskd::IssueCertificates(secret);
  if (!issued.ok()) {
    std::cerr << issued.status() << std::endl;
    return 1;
  }
  std::cout << nlohmann::json{{"authority", issued->authority},
                              {"certificate", issued->certificate},
                              {"key", issued->key},
                              {"name", taskd::kJobHostName}}
            << std::endl;
  return 0;
}
