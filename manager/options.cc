#include "manager/options.h"

#include <limits.h>
#include <unistd.h>

#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "common/address.h"
#include "common/environment.h"
#include "common/hostlist.h"
#include "common/job_secret.h"
#include "common/log.h"
#include "common/printable.h"
#include "common/switch.h"
#include "common/task_name.h"
#include "common/utf8.h"
#include "manager/switch/core.h"
#include "manager/switch/state_db.h"
#include "proto/channel.h"

namespace taskd::manager {
namespace {

constexpr int kGrpcPort = 9601;
constexpr int kClusterdPort = 8899;
constexpr size_t kMaxTaskIdBytes = 200;

std::string Environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// The task id becomes a folder's name.
absl::Status CheckTaskId(const std::string& task_id) {
  if (task_id.empty()) return absl::OkStatus();
  if (task_id.size() <= kMaxTaskIdBytes && IsUtf8(task_id) && task_id[0] != '.' &&
      task_id.find('/') == std::string::npos && task_id.find('\0') == std::string::npos) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat("--task-id: '", CutUtf8(task_id, 64),
                                                 "' is not a plain name: UTF-8, no slash, no dot in front, at most ",
                                                 kMaxTaskIdBytes, " bytes"));
}

// What a job is called that nobody has named.
std::string NameOf(const std::string& task_id) {
  char host[HOST_NAME_MAX + 1] = {};
  if (!task_id.empty()) {
    std::string name = absl::StrCat("default/", task_id);
    return CheckJobName(name).ok() ? name : absl::StrCat("default/", PlainFileName(task_id));
  }
  return absl::StrCat("default/", gethostname(host, sizeof(host) - 1) == 0 ? ValidUtf8(host) : "localhost", "-",
                      getpid());
}

absl::Status CheckRange(const char* flag, int value, int most) {
  if (value >= 0 && value <= most) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(flag, ": ", value, " is not 0 to ", most));
}

// On this machine the job file hands a new secret to the job's other parts. On others they need to know it; where the
// operator gave none, the platform's id of the job is all that they share.
std::string SecretOf(const ManagerOptions& options) {
  if (!options.token.empty()) return options.token;
  absl::StatusOr<HostPort> listen = ParseHostPort("--listen", options.listen);
  const bool reached_from_outside = listen.ok() && !IsLoopback(*listen);
  return reached_from_outside && !options.task_id.empty() ? StandInSecret(options.task_id) : NewSecret();
}

// Of all nodes that Slurm gave the job, those of its heterogeneous components too. A list that cannot be read has no
// names: then none of them leaves the job.
std::optional<std::set<std::string>> NodeNamesOf(const taskd::Environment& environment) {
  constexpr char kList[] = "SLURM_JOB_NODELIST";
  std::optional<std::set<std::string>> names;
  for (auto it = environment.lower_bound(kList); it != environment.end() && it->first.starts_with(kList); ++it) {
    std::vector<std::string> hosts;
    if (absl::Status read = ExpandHostlist(it->second, kMaxNodes, hosts); !read.ok()) {
      spdlog::warn("{} '{}': {}", it->first, Printable(it->second), read.message());
      hosts.clear();
    }
    if (!names) names.emplace();
    names->insert(hosts.begin(), hosts.end());
  }
  return names;
}

}  // namespace

absl::StatusOr<ManagerOptions> ResolveManagerOptions(ManagerOptions options) {
  if (options.listen.empty()) {
    std::string ip = Environment("POD_IP");
    options.listen = FormatHostPort({ip.empty() ? "127.0.0.1" : ip, kGrpcPort});
  }
  if (options.clusterd.empty()) {
    std::string ip = Environment("MINDX_SERVER_IP");
    if (!ip.empty()) options.clusterd = FormatHostPort({ip, kClusterdPort});
  }
  if (!options.job.empty()) {
    absl::Status job = CheckJobName(options.job);
    if (!job.ok()) return absl::InvalidArgumentError(absl::StrCat("--job: ", job.message()));
  }
  if (!options.default_job.empty()) {
    absl::Status job = CheckJobName(options.default_job);
    if (!job.ok()) return absl::InvalidArgumentError(absl::StrCat("--default-job: ", job.message()));
  }
  for (const absl::Status& status : {CheckTaskId(options.task_id), CheckRange("--nodes", options.nodes, kMaxNodes),
                                     CheckRange("--procs-per-node", options.procs_per_node, kMaxRanksPerNode)}) {
    if (!status.ok()) return status;
  }
  // The platform's id names the job, and nothing else: several managers may run under one.
  options.ledger_task = options.task_id.empty() ? Environment("MINDX_TASK_ID") : options.task_id;
  options.is_named = !options.job.empty() || !options.default_job.empty() || !options.ledger_task.empty();
  if (options.default_job.empty()) options.default_job = NameOf(options.ledger_task);
  if (int64_t{options.nodes} * options.procs_per_node > kMaxExpectedRanks) {
    return absl::InvalidArgumentError(absl::StrCat("--nodes: ", options.nodes, " nodes of ", options.procs_per_node,
                                                   " processes are more than ", kMaxExpectedRanks, " ranks"));
  }
  for (auto [flag, value] : {std::pair("--http", &options.http), std::pair("--clusterd", &options.clusterd)}) {
    if (value->empty()) continue;
    absl::StatusOr<HostPort> address = ParseHostPort(flag, *value);
    if (!address.ok()) return address.status();
  }
  if (!options.marks.empty() && !ParseKinds(options.marks).ok()) {
    return absl::InvalidArgumentError(absl::StrCat("--marks: '", options.marks, "' is not ", kSwitchKindsRule));
  }
  if (options.report_fault && options.clusterd.empty()) {
    return absl::InvalidArgumentError("--report-fault: there is no ClusterD to report to; give --clusterd HOST:PORT");
  }
  absl::StatusOr<policy::Options> policy = policy::ReadOptions(options.on_slow);
  if (!policy.ok()) return policy.status();
  options.policy = *std::move(policy);
  if (absl::Status there = CheckOrderTo(options.policy.order_to, OwnEnvironment(), !options.clusterd.empty());
      !there.ok())
    return there;
  absl::Status listen = proto::CheckListenAllowed(
      options.listen, {options.tls_dir, options.token.empty() ? options.secret : options.token},
      options.allow_plaintext);
  if (!listen.ok()) return listen;
  if (!options.tls_dir.empty()) {
    options.secret.clear();
  } else if (!options.token.empty() || options.secret.empty()) {
    options.secret = SecretOf(options);
  }
  // Whoever knows the job's id could have any node of the cluster marked.
  if (IsStandIn(options.secret)) {
    options.report_fault = false;
    if (options.policy.on_slow == policy::OnSlow::kOrder) options.policy.on_slow = policy::OnSlow::kRehearse;
    options.policy.order_to.clear();
  }
  options.node_names = NodeNamesOf(OwnEnvironment());
  if (options.state_dir.empty() && !options.task_id.empty()) {
    absl::StatusOr<std::string> folder = DefaultStateDir(options.task_id);
    if (!folder.ok()) return folder.status();
    options.state_dir = *folder;
  }
  return options;
}

}  // namespace taskd::manager
