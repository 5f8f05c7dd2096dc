#include "agent/commands/run.h"

#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <iostream>
#include <memory>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "agent/commands/command_line.h"
#include "agent/commands/run_mode.h"
#include "agent/modes/plans/mode_options.h"
#include "agent/process/exit_code.h"
#include "agent/process/run_line.h"
#include "agent/process/spawn.h"
#include "agent/run/job_services.h"
#include "agent/run/launcher.h"
#include "agent/run/option_table.h"
#include "agent/run/options.h"
#include "agent/run/options_help.h"
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
namespace {

int WrongUsage(const absl::Status& status) {
  process::PrintRunLine(std::string(status.message()));
  run::WriteTerminationLog(run::TerminationMessage(std::string(status.message()), {}));
  return process::kWrongUsage;
}

// Each rank's Python would say the same, after the manager and the proxies have started.
// PYTHON_EXEC may run it elsewhere, as in a container.
absl::Status FindScript(const run::RunOptions& options, const Environment& environment) {
  if (options.no_python) return process::FindProgram(options.program, environment).status();
  if (options.module || !ValueOf(environment, "PYTHON_EXEC").empty()) return absl::OkStatus();
  if (options.program == "-") return absl::OkStatus();  // stdin
  if (access(options.program.c_str(), F_OK) == 0 || (errno != ENOENT && errno != ENOTDIR)) return absl::OkStatus();
  const std::string problem = std::strerror(errno);
  std::error_code error;
  const std::string folder = std::filesystem::current_path(error).string();
  const bool is_absolute = absl::StartsWith(options.program, "/");
  return absl::InvalidArgumentError(
      absl::StrCat("SCRIPT '", options.program, "': ", problem, is_absolute ? "" : absl::StrCat(" in ", folder)));
}

// Each rank would fail by it, after the manager and the proxies have started.
absl::Status MakeLogFolder(const run::RunOptions& options) {
  if (options.log_dir.empty() || options.log_dir == "/dev/null") return absl::OkStatus();
  std::error_code error;
  std::filesystem::create_directories(options.log_dir, error);
  std::string probe = absl::StrCat(options.log_dir, "/.taskd-XXXXXX");
  if (!error && (mkdtemp(probe.data()) == nullptr || rmdir(probe.c_str()) != 0)) {
    error.assign(errno, std::generic_category());
  }
  if (!error) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("--log-dir '", options.log_dir, "': ", error.message(), ": ranks cannot write their logs there"));
}

}  // namespace

int LaunchRanks(run::RunOptions options, Environment environment) {
  if (const absl::Status found = FindScript(options, environment); !found.ok()) return WrongUsage(found);
  if (const absl::Status made = MakeLogFolder(options); !made.ok()) return WrongUsage(made);
  // For the manager and the proxies, and for the ranks.
  for (const auto& [variable, value] :
       {std::pair("TASKD_JOB", &options.job), std::pair("TASKD_TASK_ID", &options.task_id)}) {
    if (ValueOf(environment, variable).empty() && !value->empty()) environment[variable] = *value;
  }
  const policy::OptionTexts& on_slow = options.on_slow;
  for (const auto& [variable, value] :
       {std::pair("TASKD_ON_SLOW", &on_slow.on_slow), std::pair("TASKD_ON_SLOW_WHEN", &on_slow.on_slow_when),
        std::pair("TASKD_REMAINING", &on_slow.remaining), std::pair("TASKD_EVICTIONS", &on_slow.evictions),
        std::pair("TASKD_ORDER_TO", &on_slow.order_to)}) {
    if (!value->empty()) environment[variable] = *value;
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

std::vector<OwnHelp> RunHelps() {
  return {{run::kRunHelp, &run::kRunOptionTable}, {modes::kModeHelp, &modes::kModeOptionTable}};
}

int RunRunCommand(const std::vector<std::string>& arguments) {
  RaiseDescriptorLimit();
  Environment environment = OwnEnvironment();
  if (const std::string job = ValueOf(environment, "TASKD_JOB"); !job.empty())
    environment["TASKD_JOB"] = FullJobName(job);
  if (modes::AsksForMode(arguments)) return RunModeCommand(arguments, environment);
  std::string help;
  absl::StatusOr<run::RunOptions> options = run::ParseRunOptions(arguments, environment, &help);
  if (!help.empty()) {
    std::cout << help << std::flush;
    return 0;
  }
  if (!options.ok()) return WrongUsage(options.status());
  if (options->dry_run) {
    for (const std::string& warning : options->warnings) process::PrintRunLine(warning);
    std::cout << run::DryRunText(*options) << std::flush;
    return 0;
  }
  return LaunchRanks(*std::move(options), environment);
}

}  // namespace taskd::commands
