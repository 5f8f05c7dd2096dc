#include "agent/commands/run.h"

#include <unistd.h>

#include <iostream>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "agent/commands/run_mode.h"
#include "agent/modes/plans/mode_options.h"
#include "agent/process/daemons.h"
#include "agent/run/launcher.h"
#include "agent/run/options.h"
#include "agent/run/supervision.h"
#include "common/address.h"
#include "common/descriptors.h"
#include "common/environment.h"
#include "common/log.h"
#include "common/printable.h"
#include "proto/channel.h"

namespace taskd {
namespace {

constexpr int kWrongUsage = 2;

DaemonOptions DaemonsOf(const RunOptions& options, const Environment& environment) {
  DaemonOptions result;
  if (options.min_nodes == options.max_nodes) result.nodes = options.max_nodes;
  result.procs_per_node = options.procs_per_node;
  result.environment = environment;
  return result;
}

// Where the job's nodes meet, they reach its manager, too.
std::string StartManager(Daemons& daemons, const RunOptions& options) {
  absl::StatusOr<HostPort> endpoint = ParseHostPort("--rdzv-endpoint", options.rdzv_endpoint);
  return endpoint.ok() ? daemons.StartManager(endpoint->host) : "";
}

}  // namespace

int RunRunCommand(const std::vector<std::string>& arguments) {
  RaiseDescriptorLimit();
  const Environment environment = OwnEnvironment();
  if (AsksForMode(arguments)) return RunModeCommand(arguments, environment);
  std::string help;
  absl::StatusOr<RunOptions> options = ParseRunOptions(arguments, environment, &help);
  if (!help.empty()) {
    std::cout << help << std::flush;
    return 0;
  }
  if (!options.ok()) {
    std::cerr << "taskd run: " << Printable(std::string(options.status().message()), kShownLineBytes) << std::endl;
    return kWrongUsage;
  }
  InitLog("run");
  InitGrpcLog();
  LauncherHooks hooks;
  std::optional<Daemons> daemons;
  std::optional<RunSupervision> supervision;
  if (options->manager != "off") {
    daemons.emplace(DaemonsOf(*options, environment));
    hooks.on_secret = [&, named = !options->manager.empty()](const std::string& secret) {
      // A manager that was named has a secret of its own: TASKD_TOKEN, or what its job file says.
      if (named && ValueOf(environment, "TASKD_TOKEN").empty()) return;
      daemons->SetSecret(secret);
      supervision->SetSecret(secret);
    };
    hooks.start_manager = [&daemons, options = *options] { return StartManager(*daemons, options); };
    hooks.before_first_start = [&](const Assignment& assignment) {
      daemons->StartProxy(assignment.group_rank, assignment.manager);
    };
    hooks.rank_environment = [&](const Assignment& assignment) { return daemons->RankEnvironment(assignment.manager); };
    hooks.spare_pids = [&] { return daemons->pids(); };
    hooks.on_other_exit = [&](pid_t pid, int wait_status) { daemons->OnExit(pid, wait_status); };
    RunSupervision::Options with;
    with.security = {ValueOf(environment, "TASKD_TLS_DIR"), ValueOf(environment, "TASKD_TOKEN")};
    with.hang_factor = options->hang_factor;
    with.hang_action = options->hang_action;
    with.file_folder = options->log_dir;
    if (!daemons->folder().empty()) with.stack_folder = daemons->folder() + "/stacks";
    supervision.emplace(with).AddTo(&hooks);
    hooks.control = [&](const LauncherControl& control) {
      supervision->SetControl({control.collect_stacks, control.restart, control.stop});
    };
  }
  return RunLauncher(*std::move(options), std::move(environment), std::move(hooks));
}

}  // namespace taskd
