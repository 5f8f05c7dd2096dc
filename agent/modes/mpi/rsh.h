// `taskd rsh`: what mpirun calls in ssh's place (plm_rsh_agent). Runs a command on the node of a host, through the
// job's manager and that node's `taskd run`.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/security.h"

namespace taskd::modes {

extern const char kRshHelp[];

struct RshOptions {
  bool help = false;
  bool no_input = false;  // -n: the command's stdin is empty
  std::string host;       // without a user
  std::string command;    // the words joined with blanks, as ssh does
};

// `arguments` after `taskd rsh`. ssh's options are taken and, but for -n, ignored. INVALID_ARGUMENT: an option that ssh
// does not have, no host, no command.
absl::StatusOr<RshOptions> ParseRshOptions(const std::vector<std::string>& arguments);

// Reads TASKD_MANAGER, TASKD_TOKEN, TASKD_TLS_DIR and TASKD_TLS_NAME. Relays stdin, stdout and stderr, and returns the command's exit
// code; 255 after a line on stderr where it could not be run to its end, 2 for wrong usage. SIGTERM, SIGINT and SIGHUP
// end the command and return 255 without a line.
int RunRshCommand(const std::vector<std::string>& arguments);

}  // namespace taskd::modes
