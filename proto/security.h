// What protects TaskD's connections; channel.h makes them.
#pragma once

#include <string>

namespace taskd::proto {

// What protects a connection: the first that is there. None: no part of any job will answer.
struct Security {
  std::string tls_dir;  // ca.crt, tls.crt, tls.key of the operator's PKI
  std::string secret;   // of the job
  // A client's: what it takes for the secret where no manager of this user has left one for the address it dials
  // (common/job_file.h). Empty: a stand-in made of MINDX_TASK_ID, where that is set.
  std::string fallback = {};
  // With tls_dir: the DNS name that the other side's certificate must have. Empty: a client wants the host of the address
  // that it dials there, a server takes every certificate of ca.crt.
  std::string tls_name = {};
};

}  // namespace taskd::proto
