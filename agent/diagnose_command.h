// `taskd diagnose`: who is slow, since when, why, and what it costs; from a manager or from mark files.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "proto/channel.h"

namespace taskd {

struct DiagnoseOptions {
  std::string from;     // folder of mark files; empty: ask the manager
  std::string manager;  // HOST:PORT; empty: the only job of this user here, or `job`
  std::string job;      // of a manager: refuses any other job's; of files: the report's name [the folder's]
  bool json = false;    // one object a line
  bool watch = false;   // of a manager: each new report, until SIGINT or SIGTERM ends the process
  Security security;
};

// Prints to stdout. INVALID_ARGUMENT: wrong usage, or a folder without marks; any other error: the manager did not
// answer.
absl::Status RunDiagnose(const DiagnoseOptions& options);

}  // namespace taskd
