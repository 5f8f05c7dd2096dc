#include "agent/modes/route_step.h"

#include <unistd.h>

#include <climits>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "common/files.h"

namespace taskd::modes {
namespace {

std::optional<int> ReadNumber(const std::string& path) {
  int number = 0;
  return absl::SimpleAtoi(FirstLineOfSystemFile(path), &number) ? std::optional(number) : std::nullopt;
}

// Of the last NAME in argv: what the mode has appended stands behind what the user wrote.
void ReplaceValue(const std::string& name, const std::string& before, const std::string& after,
                  std::vector<std::string>* argv) {
  for (size_t i = argv->size(); i-- > 1;) {
    if ((*argv)[i - 1] != name) continue;
    (*argv)[i] = absl::StrReplaceAll((*argv)[i], {{before, after}});
    return;
  }
}

}  // namespace

std::string RouteSelf(const std::string& given, const Environment& environment) {
  if (!given.empty()) return given;
  for (const char* name : {"MA_CURRENT_IP", "MA_CURRENT_HOST_IP", "NAME"}) {
    if (std::string value = ValueOf(environment, name); !value.empty()) return value;
  }
  char name[HOST_NAME_MAX + 1] = {};
  return gethostname(name, sizeof(name) - 1) == 0 ? name : "";
}

absl::Status StartRouteStep(const RouteStepOptions& options, const ModePlan& plan, const Environment& environment,
                            process::ChildProcesses* children, std::function<void(absl::Status)> done) {
  std::vector<std::string> argv = {options.program,  "route",
                                   "--rank-table",   options.rank_table,
                                   "--topology",     options.topology,
                                   "--out",          options.folder,
                                   "--self",         options.self,
                                   "--wait-s",       absl::StrCat(options.wait_s),
                                   "--max-input-mb", absl::StrCat(options.max_input_mb)};
  if (!options.dial.empty()) {
    argv.insert(argv.end(), {"--agree", "--manager", options.dial, "--nodes", std::to_string(plan.nodes.size()),
                             "--index", std::to_string(plan.index)});
  }
  absl::StatusOr<pid_t> pid = children->Start(
      argv, environment,
      [done = std::move(done)](int code) {
        // It has printed the reason on stderr.
        done(code == 0 ? absl::OkStatus()
                       : absl::UnavailableError(absl::StrCat("taskd route has ended with code ", code)));
      },
      STDERR_FILENO);
  return pid.status();
}

absl::Status ApplyRoute(const std::string& folder, const std::function<std::string(const std::string&)>& address,
                        ModePlan* plan) {
  const std::optional<int> rank = ReadNumber(absl::StrCat(folder, "/RANK_AFTER_ACC"));
  const std::optional<int> master = ReadNumber(absl::StrCat(folder, "/MASTER_INDEX"));
  const int nodes = static_cast<int>(plan->nodes.size());
  if (!rank || !master || *rank < 0 || *rank >= nodes || *master < 0 || *master >= nodes) {
    return absl::FailedPreconditionError(absl::StrCat("--route: the rank table's nodes are not this job's: new rank ",
                                                      rank.value_or(-1), " and master index ", master.value_or(-1),
                                                      " of ", nodes, " nodes"));
  }
  const std::string old_master = address(plan->nodes.front().name);
  const std::string new_master = address(plan->nodes[static_cast<size_t>(*master)].name);
  for (ModeProcess& process : plan->processes) {
    process.environment["RANK_AFTER_ACC"] = std::to_string(*rank);
    process.environment["MA_MASTER_INDEX"] = std::to_string(*master);
    if (plan->mode == Mode::kTorch) {
      process.environment["RANK"] = std::to_string(*rank);
      if (*master != 0) process.environment["MASTER_ADDR"] = new_master;
    }
    if (plan->mode == Mode::kPytorchGpu && nodes > 1) {
      ReplaceValue("--rank", std::to_string(plan->index), std::to_string(*rank), &process.argv);
      if (*master != 0) ReplaceValue("--init_method", old_master, new_master, &process.argv);
    }
  }
  return absl::OkStatus();
}

}  // namespace taskd::modes
