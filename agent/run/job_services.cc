#include "agent/run/job_services.h"

#include <sys/types.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "agent/engine/task.h"
#include "agent/process/daemons.h"
#include "agent/run/supervision.h"
#include "agent/run/worker_env.h"
#include "common/address.h"
#include "common/log.h"

namespace taskd::run {
namespace {

constexpr size_t kMaxNameBytes = 100;
constexpr double kOtherLaunchersMarginS = 10;

// As the name of a job may be.
std::string PlainName(std::string id) {
  id.resize(std::min(id.size(), kMaxNameBytes));
  for (char& c : id) {
    if (c == '/' || c < ' ' || c > '~') c = '_';
  }
  return id;
}

process::DaemonOptions DaemonsOf(const RunOptions& options, const Environment& environment) {
  process::DaemonOptions result;
  if (options.min_nodes == options.max_nodes) result.nodes = options.max_nodes;
  result.procs_per_node = options.procs_per_node;
  result.environment = environment;
  // A random one says nothing to anybody.
  if (!options.standalone && options.rdzv_id != "none") result.default_job = "default/" + PlainName(options.rdzv_id);
  result.label = std::filesystem::path(options.program).stem().string();
  result.forgets = !options.task_id.empty() && ValueOf(environment, "TASKD_TASK_ID") == options.task_id;
  if (options.task) {
    const TaskPlace& task = *options.task;
    result.nodes = task.even ? task.nodes : 0;
    result.procs_per_node = task.local_world_size;
    // Of this job on this node, and short: it becomes part of a socket's path.
    result.shared = absl::StrCat(
        "t", absl::Hex(engine::StableHash(absl::StrCat(options.rdzv_id, "\n", options.local_addr)), absl::kZeroPad16));
    result.starts_proxy = task.local_rank == 0;
    result.patience_s = static_cast<int>(options.shutdown_timeout_s + kOtherLaunchersMarginS);
  }
  return result;
}

SupervisionClient::Options ClientOf(const RunOptions& options, const Environment& environment) {
  SupervisionClient::Options result;
  result.security = {.tls_dir = ValueOf(environment, "TASKD_TLS_DIR"),
                     .secret = ValueOf(environment, "TASKD_TOKEN"),
                     .tls_name = ValueOf(environment, "TASKD_TLS_NAME")};
  result.hang_factor = options.hang_factor == 0 ? -1 : options.hang_factor;
  return result;
}

RunSupervision::Options SupervisionOf(const RunOptions& options, const Environment& environment,
                                      const std::string& daemons_folder) {
  RunSupervision::Options result;
  result.environment = environment;
  result.ras = options.ras;
  result.hang_action = options.hang_action;
  result.file_folder = options.log_dir;
  if (!daemons_folder.empty()) result.stack_folder = daemons_folder + "/stacks";
  return result;
}

class JobServices : public LauncherObserver {
 public:
  JobServices(const RunOptions& options, const Environment& environment);

  void OnSecret(const std::string& secret) override;
  void OnHosting(const LauncherControl& control) override;
  std::string ChooseMarkFolder() override { return daemons_.ChooseMarkFolder(); }
  std::string StartManager() override;
  void BeforeStart(const Assignment& assignment) override;
  std::map<std::string, std::string> RankEnvironment(const Assignment& assignment) override;
  std::optional<std::string> CollectStacks(const std::map<int, pid_t>& pids) override {
    return supervision_.Collect(pids);
  }
  std::optional<std::string> Look(const LookMessage& message, const std::map<int, pid_t>& pids) override {
    return supervision_.Look(message, pids);
  }
  std::optional<std::chrono::milliseconds> OnOtherExit(pid_t pid, int wait_status) override {
    return daemons_.OnExit(pid, wait_status);
  }
  void StartAgain(pid_t pid) override { daemons_.StartAgain(pid); }
  std::vector<pid_t> SparePids() override { return daemons_.pids(); }
  void OnEnding() override { daemons_.ExpectEnd(); }
  void OnDeadline(int64_t deadline_ns) override {
    daemons_.EndBy(std::chrono::steady_clock::time_point(std::chrono::nanoseconds(deadline_ns)));
  }
  bool EndProxy() override { return daemons_.EndProxy(); }
  void OnEnd() override { supervision_.SetControl({}); }
  void OnEvent(const LauncherEvent& event) override { supervision_.OnEvent(event); }
  void OnWaiting(const std::string& waits_for) override { supervision_.OnWaiting(waits_for); }
  void OnStacks(int id, const std::string& text) override { supervision_.OnStacks(id, text); }
  void OnEvidence(int hang, const std::string& text) override { supervision_.OnEvidence(hang, text); }

 private:
  void StartSupervision(const std::string& manager);

  const RunOptions options_;
  const std::string endpoint_;  // where the nodes meet, HOST:PORT
  const bool manager_named_;
  std::string manager_;  // named, or started here
  SupervisionClient::Options client_;
  process::Daemons daemons_;
  bool proxy_started_ = false;
  RunSupervision supervision_;  // last: what it still has to report is for the manager
};

JobServices::JobServices(const RunOptions& options, const Environment& environment)
    : options_(options),
      endpoint_(options.rdzv_endpoint),
      manager_named_(!options.manager.empty()),
      manager_(options.manager),
      client_(ClientOf(options, environment)),
      daemons_(DaemonsOf(options, environment)),
      supervision_(SupervisionOf(options, environment, daemons_.folder())) {}

void JobServices::OnSecret(const std::string& secret) {
  // A manager given by the user has a secret of its own: TASKD_TOKEN, or the one in its job file.
  if (manager_named_ && client_.security.secret.empty()) return;
  daemons_.SetSecret(secret);
  client_.security.secret = secret;
}

// Where the job's nodes meet, they reach its manager, too.
std::string JobServices::StartManager() {
  absl::StatusOr<HostPort> endpoint = ParseHostPort("--rdzv-endpoint", endpoint_);
  manager_ = endpoint.ok() ? daemons_.StartManager(endpoint->host) : "";
  // At once: whom the job waits for is asked when it does not start.
  if (!manager_.empty()) StartSupervision(manager_);
  return manager_;
}

void JobServices::OnHosting(const LauncherControl& control) {
  supervision_.SetControl(control);
  if (!manager_.empty()) StartSupervision(manager_);
}

void JobServices::BeforeStart(const Assignment& assignment) {
  const NodePlace place = PlaceOnNode(options_, assignment);
  Assignment supervised = assignment;
  supervised.group_rank = place.node;
  supervised.rank_base -= place.first_local_rank;
  supervision_.SetAssignment(supervised);
  if (!std::exchange(proxy_started_, true)) {
    daemons_.StartProxy(place.node, assignment.manager, assignment.mark_folder);
  }
  if (assignment.group_rank != 0 || assignment.manager.empty() || supervision_.has_client()) return;
  StartSupervision(assignment.manager);
}

void JobServices::StartSupervision(const std::string& manager) {
  client_.manager = manager;
  absl::StatusOr<std::unique_ptr<SupervisionClient>> client =
      SupervisionClient::Start(client_, [this](const v1::HangNotice& notice) { supervision_.OnNotice(notice); });
  if (client.ok()) {
    supervision_.SetClient(*std::move(client));
  } else {
    spdlog::warn("the manager will not hear of the ranks: {}", client.status().message());
  }
}

std::map<std::string, std::string> JobServices::RankEnvironment(const Assignment& assignment) {
  std::map<std::string, std::string> environment = daemons_.RankEnvironment(assignment.manager);
  if (!supervision_.stack_folder().empty()) environment["TASKD_STACK_DIR"] = supervision_.stack_folder();
  return environment;
}

}  // namespace

std::unique_ptr<LauncherObserver> MakeJobServices(const RunOptions& options, const Environment& environment) {
  return std::make_unique<JobServices>(options, environment);
}

}  // namespace taskd::run
