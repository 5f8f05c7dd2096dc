// The node daemon: entry point of `taskd proxy`.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "marks/mark_folder.h"

namespace taskd::proxy {

struct ProxyOptions {
  std::string manager = "127.0.0.1:9601";  // HOST:PORT; need not answer yet
  std::string listen = "127.0.0.1:9602";   // gRPC health of this proxy
  bool listen_is_default = true;  // then an address in use is a warning, not an error: another job's proxy has it
  std::string http;               // HOST:PORT of /metrics and /healthz; empty: none
  std::string http_host;          // names under which browsers reach it (common/http_access.h)
  std::string token;              // TASKD_TOKEN; with none /metrics is for this user, over loopback
  std::string socket;             // the ranks' UNIX socket; empty: DefaultSocketPath()
  int node_rank = 0;
  MarkFolderWishes mark_folder;
  int64_t disk_limit_mb = 5000;  // >= 0; 0: no limit
  int64_t rank_backlog_mb = 64;  // >= 0; marks whose files cannot be written, in memory
  int64_t node_backlog_mb = 512;
  std::string switch_file = "/user/cluster-info/datatrace-config/profilingSwitch";  // obeyed while no manager answers
  std::string tls_dir;
  std::string tls_name;
  std::string secret;  // of the job; empty: looked up (ManagerDial)
  bool allow_plaintext = false;
  bool exit_on_stdin_eof = false;  // for a parent that must not leave a proxy behind
};

// /tmp/taskd-<uid>/<MINDX_TASK_ID or default>/proxy.sock
std::string DefaultSocketPath();

// Runs until SIGTERM or SIGINT (which the caller must not handle), then writes everything recorded and returns OK.
// DEADLINE_EXCEEDED: storage did not answer for some seconds, and not everything is written. INVALID_ARGUMENT: the
// options are wrong and nothing was started. Any other error: it could not start.
absl::Status RunProxy(const ProxyOptions& options);

}  // namespace taskd::proxy
