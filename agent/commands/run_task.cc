#include "agent/commands/run_task.h"

#include <algorithm>
#include <iostream>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "agent/commands/run.h"
#include "agent/commands/run_mode.h"
#include "agent/engine/task.h"
#include "agent/modes/plans/mode_plan.h"
#include "agent/run/options.h"
#include "common/utf8.h"

namespace taskd::commands {
namespace {

bool Has(const Environment& environment, const std::string& name) { return !ValueOf(environment, name).empty(); }

// What the user says in variables wins over what was taken from the scheduler.
bool IsGiven(const Environment& environment, const std::string& name) {
  return Has(environment, "PET_" + name) || Has(environment, "TASKD_" + name);
}

void AddNodeTimeout(const modes::ModeOptions& mode, std::vector<std::string>& words) {
  if (mode.node_timeout_s != kNodeTimeoutS) words.push_back(absl::StrCat("--node-timeout=", mode.node_timeout_s));
}

// One launcher a task, all of which meet at task 0's: torchrun's options for that, so that its variables (PET_..., TASKD_...)
// mean what they mean elsewhere.
absl::StatusOr<run::RunOptions> LauncherOf(const engine::Task& task, const modes::ModeOptions& mode,
                                           Environment environment) {
  std::vector<std::string> words = {absl::StrCat("--nnodes=", task.world_size),
                                    absl::StrCat("--node-rank=", task.rank),
                                    "--nproc-per-node=1",
                                    "--rdzv-backend=static",
                                    absl::StrCat("--rdzv-id=", task.run_id),
                                    absl::StrCat("--master-addr=", task.master_addr),
                                    absl::StrCat("--master-port=", task.master_port)};
  if (!task.shutdown_timeout.empty() && !IsGiven(environment, "SHUTDOWN_TIMEOUT") &&
      !Has(environment, "TORCH_ELASTIC_SHUTDOWN_TIMEOUT")) {
    words.push_back("--shutdown-timeout=" + task.shutdown_timeout);
  }
  AddNodeTimeout(mode, words);
  if (!IsGiven(environment, "RDZV_CONF")) words.push_back(absl::StrCat("--rdzv-conf=join_timeout=", mode.wait_s));
  if (!mode.manager.empty()) words.push_back("--manager=" + mode.manager);
  words.push_back("--");
  words.insert(words.end(), mode.command.begin(), mode.command.end());
  for (const char* prefix : {"PET_", "TASKD_"}) {
    for (const char* name : {"STANDALONE", "RDZV_ENDPOINT"}) environment.erase(absl::StrCat(prefix, name));
  }
  environment["TORCHELASTIC_RUN_ID"] = task.run_id;  // this launcher's place is known: no scheduler is asked for it
  std::string help;
  absl::StatusOr<run::RunOptions> options = run::ParseRunOptions(words, environment, &help);
  if (!options.ok()) return options;
  run::TaskPlace place;
  place.local_rank = task.local_rank;
  place.local_world_size = task.local_world_size;
  place.nodes = static_cast<int>(task.tasks_per_node.size());
  place.even = std::all_of(task.tasks_per_node.begin(), task.tasks_per_node.end(),
                           [&](int tasks) { return tasks == task.local_world_size; }) &&
               task.node * task.local_world_size + task.local_rank == task.rank;
  options->task = place;
  options->placed_by = task.where;
  options->node_rank_by = task.rank_source;
  options->master_ports = task.master_ports;
  options->job = task.job;
  options->task_id = task.task_id;
  if (task.node >= 0 && !task.hosts.empty()) options->local_addr = task.hosts[static_cast<size_t>(task.node)];
  options->warnings.insert(options->warnings.end(), task.warnings.begin(), task.warnings.end());
  return options;
}

modes::ModePlan PlanOf(const engine::Task& task, const modes::ModeOptions& options, modes::Mode mode) {
  modes::ModePlan plan;
  plan.mode = mode;
  plan.platform = mode == modes::Mode::kSlurm ? modes::Platform::kSlurm : modes::Platform::kNone;
  plan.role = absl::StrCat("rank ", task.rank, " of ", task.world_size);
  plan.index = std::max(task.node, 0);
  for (size_t i = 0; i < task.tasks_per_node.size(); ++i) {
    plan.nodes.push_back({i < task.hosts.size() ? task.hosts[i] : task.master_addr, task.tasks_per_node[i], false});
  }
  plan.manager = options.manager;
  plan.start = modes::StartRule::kAfterAll;
  plan.warnings = task.warnings;
  modes::ModeProcess process;
  process.argv = options.command;
  process.environment = {{"RANK", absl::StrCat(task.rank)},
                         {"WORLD_SIZE", absl::StrCat(task.world_size)},
                         {"LOCAL_RANK", absl::StrCat(task.local_rank)},
                         {"LOCAL_WORLD_SIZE", absl::StrCat(task.local_world_size)},
                         {"MASTER_ADDR", task.master_addr},
                         {"MASTER_PORT", absl::StrCat(task.master_port)}};
  if (task.node >= 0) process.environment["GROUP_RANK"] = absl::StrCat(task.node);
  plan.processes.push_back(std::move(process));
  if (task.rank == 0) plan.binds.push_back({"MASTER_PORT", task.master_port});
  return plan;
}

// A script that sets it sets it for all tasks alike, maybe for another purpose.
void WarnOfOtherSize(const Environment& environment, engine::Task* task) {
  const std::string given = ValueOf(environment, "WORLD_SIZE");
  if (given.empty() || given == absl::StrCat(task->world_size)) return;
  task->warnings.push_back(absl::StrCat("WORLD_SIZE '", CutUtf8(given, 80), "' becomes ", task->world_size, ", as ",
                                        task->where, " has it"));
}

int Run(absl::StatusOr<engine::Task> task, const modes::ModeOptions& options, modes::Mode mode,
        const Environment& environment) {
  if (!task.ok()) return Refuse(task.status());
  if (options.route) {
    return Refuse(absl::InvalidArgumentError(
        "--route: the ranks have been placed already; it is for modes torch, pytorch-gpu and ascend"));
  }
  WarnOfOtherSize(environment, &*task);
  for (std::string& line : modes::IdleOptions(options, mode)) task->warnings.push_back(std::move(line));
  absl::StatusOr<run::RunOptions> launcher = LauncherOf(*task, options, environment);
  if (!launcher.ok()) return Refuse(launcher.status());
  if (options.dry_run) {
    const modes::ModePlan plan = PlanOf(*task, options, mode);
    std::cout << (options.json ? modes::ModePlanJson(plan) + "\n" : modes::ModePlanText(plan)) << std::flush;
    return 0;
  }
  return LaunchRanks(*std::move(launcher), environment);
}

}  // namespace

std::optional<int> RunTaskCommand(const modes::ModeOptions& options, const Environment& environment) {
  const engine::EngineMachine machine = engine::ThisMachine();
  if (options.mode == "slurm") {
    return Run(engine::TaskBySlurm(environment, machine), options, modes::Mode::kSlurm, environment);
  }
  if (options.mode != "auto" && options.mode != "mpi") return std::nullopt;
  if (engine::IsMpiRank(environment)) {
    return Run(engine::TaskByMpi(environment, machine), options, modes::Mode::kMpi, environment);
  }
  if (options.mode == "mpi" || modes::HasPlatform(options, environment)) return std::nullopt;
  if (engine::SlurmHasSeveralTasksOnANode(environment)) {
    return Run(engine::TaskBySlurm(environment, machine), options, modes::Mode::kSlurm, environment);
  }
  const absl::StatusOr<engine::Placement> placement = engine::PlaceBySlurm(environment, machine);
  if (!placement.ok()) return Refuse(placement.status());
  if (placement->where.empty()) return std::nullopt;
  // One launcher a node: what `taskd run` does there without a mode.
  if (options.json) {
    return Refuse(absl::InvalidArgumentError(
        absl::StrCat("--json: under ", placement->where,
                     " with one task a node --mode auto is taskd run's own launcher, which shows its "
                     "plan as text only")));
  }
  std::vector<std::string> words;
  if (options.dry_run) words.push_back("--dry-run");
  if (!options.manager.empty()) words.push_back("--manager=" + options.manager);
  AddNodeTimeout(options, words);
  words.push_back("--");
  words.insert(words.end(), options.command.begin(), options.command.end());
  return RunRunCommand(words);
}

}  // namespace taskd::commands
