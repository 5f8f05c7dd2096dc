// What `taskd manager` is told, and what the manager makes of it.
#pragma once

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "policy/options.h"

namespace taskd::manager {

struct ManagerOptions {
  std::string job;          // namespace/name; empty: any job name is this job's
  std::string default_job;  // what people see without it; empty: default/<task id, else MINDX_TASK_ID, else HOST-PID>
  bool is_named = false;    // by --job, --default-job, --task-id or MINDX_TASK_ID; filled in
  std::string task_id;      // what ClusterD and SubscribeDataTraceSwitch call the job
  std::string ledger_task;  // the task as the ledger knows it: task_id, else MINDX_TASK_ID; filled in
  std::optional<std::set<std::string>> node_names;  // the scheduler's names of the job's nodes; filled in
  int nodes = 0;                                    // 0: not known
  int procs_per_node = 0;                           // 0: not known
  std::string listen;                               // HOST:PORT; empty: POD_IP:9601, 127.0.0.1:9601 without POD_IP
  std::string http = "127.0.0.1:9603";
  bool http_is_default = true;  // then another port is used if this one is taken: another job's manager has it
  std::string
      http_host;  // names under which browsers reach it, separated by commas; this machine's own need not be there
  std::string state_dir;  // empty: <runtime folder>/<task id>/manager where there is a task id, else nothing is kept
  std::string ledger;     // folder that the attempts of the job share; empty: the ledger is in state_dir
  std::string switch_file = "/user/cluster-info/datatrace-config/profilingSwitch";
  std::string marks;            // kinds that are recorded from the start, as ParseKinds() takes them; empty: none
  std::string clusterd;         // HOST:PORT; empty: MINDX_SERVER_IP:8899 where that is set, else no ClusterD
  bool report_fault = false;    // tells ClusterD of nodes that slow the job down
  policy::OptionTexts on_slow;  // --on-slow and the options beside it
  policy::Options policy;       // made of them; filled in
  std::string tls_dir;
  std::string tls_name;
  std::string token;             // the secret that the operator gave (TASKD_TOKEN)
  std::string secret;            // of the job, where `taskd run` has made one; else the token, a stand-in or a new one
  bool allow_plaintext = false;  // ClusterD's service in plain text for whoever reaches the port
  std::vector<std::string> not_supported;  // what was asked for and will not happen (common/unsupported.h)
  bool exit_on_stdin_eof = false;          // for a parent that must not leave a manager behind
};

// Fills in what was left empty (listen, state_dir, clusterd; environment variables are read here) and checks
// everything. INVALID_ARGUMENT names the flag, the value and the rule.
absl::StatusOr<ManagerOptions> ResolveManagerOptions(ManagerOptions options);

}  // namespace taskd::manager
