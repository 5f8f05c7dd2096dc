// `taskd route`: plans the order of a job's nodes from its rank table and a topology, and writes it down. modes-routing
// §4.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "agent/route/route_agreement_client.h"

namespace taskd {

struct RouteOptions {
  std::string rank_table;
  std::string topology;
  std::string format = "auto";
  std::string out;
  bool has_self = false;
  std::string self;  // counts if has_self: a name that is empty is unknown
  std::string unknown = "last";
  double wait_s = 300;
  bool json = false;
  bool rank_mapping = false;
  std::string hostfile;  // empty: none; so the next
  std::string rankfile;
  // Parallel groups, 0: not given. Any of them: the order is planned for these groups, not for one ring.
  int tp = 0;
  int pp = 0;
  int ep = 0;
  int dp = 0;
  bool has_agree = false;
  AgreeOptions agree;
};

// Prints the plan on stdout. Errors: INVALID_ARGUMENT: wrong usage, nothing was printed; all others: the plan failed,
// nothing was written, and with `json` the failure is on stdout. A signal that ends the process while it waits leaves
// nothing behind.
absl::Status RunRoute(const RouteOptions& options);

}  // namespace taskd
