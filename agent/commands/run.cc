#include "agent/commands/run.h"

#include <iostream>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/commands/run_mode.h"
#include "agent/modes/plans/mode_options.h"
#include "agent/process/exit_code.h"
#include "agent/process/run_line.h"
#include "agent/run/job_services.h"
#include "agent/run/launcher.h"
#include "agent/run/options.h"
#include "agent/run/termination_log.h"
#include "common/descriptors.h"
#include "common/environment.h"
#include "common/log.h"
#include "common/log_file.h"
#include "common/own_process.h"
#include "common/printable.h"
#include "common/unsupported.h"
#include "proto/channel.h"

namespace taskd::commands {

int LaunchRanks(run::RunOptions options, Environment environment) {
  // For the manager and the proxies, and for the ranks.
  for (const auto& [variable, value] :
       {std::pair("TASKD_JOB", &options.job), std::pair("TASKD_TASK_ID", &options.task_id)}) {
    if (ValueOf(environment, variable).empty() && !value->empty()) environment[variable] = *value;
  }
  if (!options.ledger.empty()) environment["TASKD_LEDGER"] = options.ledger;
  if (!options.marks.empty()) environment["TASKD_MARKS"] = options.marks;
  CloseProcess();
  InitLog("run");
  TakeLogVariables(environment, absl::StrCat("agent-", options.node_rank, ".log"));
  proto::InitGrpcLog();
  if (options.manager == "off") {
    const std::vector<std::string> not_supported = UnsupportedRequests(environment);  // else the manager says it
    if (!not_supported.empty()) spdlog::warn("{}", UnsupportedLine(not_supported));
    run::LauncherObserver nobody;
    return run::RunLauncher(std::move(options), environment, nobody);
  }
  const std::unique_ptr<run::LauncherObserver> services = run::MakeJobServices(options, environment);
  return run::RunLauncher(std::move(options), environment, *services);
}

int RunRunCommand(const std::vector<std::string>& arguments) {
  RaiseDescriptorLimit();
  const Environment environment = OwnEnvironment();
  if (modes::AsksForMode(arguments)) return RunModeCommand(arguments, environment);
  std::string help;
  absl::StatusOr<run::RunOptions> options = run::ParseRunOptions(arguments, environment, &help);
  if (!help.empty()) {
    std::cout << help << std::flush;
    return 0;
  }
  if (!options.ok()) {
    process::PrintRunLine(std::string(options.status().message()));
    run::WriteTerminationLog(run::TerminationMessage(std::string(options.status().message()), {}));
    return process::kWrongUsage;
  }
  if (options->dry_run) {
    for (const std::string& warning : options->warnings) process::PrintRunLine(warning);
    std::cout << run::DryRunText(*options) << std::flush;
    return 0;
  }
  return LaunchRanks(*std::move(options), environment);
}

}  // namespace taskd::commands
