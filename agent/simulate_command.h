// `taskd simulate`: a synthetic job's marks, with faults whose place and cost are known, as mark files or fed to a
// manager as its proxies would.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "agent/simulate/job.h"
#include "proto/channel.h"

namespace taskd {

struct SimulateOptions {
  int ranks = 0;  // 0: as the layout gives, or 16
  int tp = 1, pp = 1, cp = 1, ep = 1;
  int dp = 0;  // 0: what is left of the ranks
  int ranks_per_node = 8;
  int microbatches = 8;
  int steps = 0;  // 0: 120
  uint64_t seed = 1;
  double step_ms = 500;
  std::vector<std::string> faults;   // KIND[:TARGET[,TARGET]][:SEVERITY][@FIRST[-LAST]]
  std::string shape = "persistent";  // of all faults: persistent, transient, intermittent[:DUTY], ramp[:STEPS]
  bool no_communication = false;
  bool host_only = false;

  std::string out;      // folder of mark files
  std::string manager;  // HOST:PORT; either this or `out`
  double rate = 0;      // steps a second towards a manager; 0: as fast as it takes them
  Security security;
};

// "compute:7:1.3@50", "pp_link:3,11:2@40-80", "host:n1:1.5", "fabric:2". Targets are ranks or node ranks by the kind.
// INVALID_ARGUMENT: what, value, rule.
absl::StatusOr<simulate::Fault> ParseFault(const std::string& text);

// INVALID_ARGUMENT: the numbers do not fit each other.
absl::StatusOr<simulate::Job> MakeJob(const SimulateOptions& options);

// Prints a summary to stdout, progress to stderr when it is a terminal. INVALID_ARGUMENT: wrong usage, nothing was
// written or sent.
absl::Status RunSimulate(const SimulateOptions& options);

}  // namespace taskd
