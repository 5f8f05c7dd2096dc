#include "agent/modes/start_steps.h"

#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "agent/modes/node_files.h"
#include "agent/modes/node_setup.h"
#include "agent/modes/route_step.h"
#include "agent/process/exit_code.h"
#include "common/log.h"

namespace taskd::modes {
namespace {

constexpr int64_t kRankTablePollNs = 1'000'000'000;

}  // namespace

const StartSteps::Step StartSteps::kSteps[] = {
    {"the rank table is there", &StartSteps::WaitForRankTable},
    {"names resolve", &StartSteps::WaitForNames},
    {"the job's manager is reached", &StartSteps::Meet},
    {"Ray runs", &StartSteps::StartRay},
    {"the other nodes are there", &StartSteps::WaitForOthers},
    {"processes can be started there", &StartSteps::WaitForRemoteStart},
    {"the route is planned", &StartSteps::PlanRoute},
    {"the command runs", &StartSteps::StartCommand},
};

StartSteps::StartSteps(NodeParts* parts, NodeEnd* end, std::function<absl::Status()> meet)
    : parts_(parts), end_(end), meet_(std::move(meet)) {}

void StartSteps::Begin(bool has_plan) {
  has_plan_ = has_plan;
  Next();
}

void StartSteps::Next() {
  const Step& step = kSteps[next_++];
  spdlog::debug("next: {}", step.name);
  (this->*step.begin)();
}

void StartSteps::Stop() {
  waits_for_others_ = false;
  names_.reset();
  if (parts_->ray) parts_->ray->StopWaiting();
  if (rank_table_timer_) parts_->loop.Cancel(*rank_table_timer_);
  rank_table_timer_.reset();
}

// ---- The plan

bool StartSteps::TakePlan(absl::StatusOr<ModePlan> plan) {
  if (!plan.ok()) {
    end_->EndWith(process::kWrongUsage, std::string(plan.status().message()));
    return false;
  }
  parts_->plan = *std::move(plan);
  return true;
}

void StartSteps::WaitForRankTable() {
  if (has_plan_) return Next();
  absl::StatusOr<ModePlan> plan = MakePlan(*parts_);
  if (absl::IsNotFound(plan.status()) || absl::IsFailedPrecondition(plan.status())) {
    rank_table_missing_ = std::string(plan.status().message());
    if (!parts_->patience.waits()) parts_->patience.Begin([this] { return rank_table_missing_; });
    rank_table_timer_ = parts_->loop.RunAfter(kRankTablePollNs, [this] { WaitForRankTable(); });
    return;
  }
  parts_->patience.End();
  if (TakePlan(std::move(plan))) Next();
}

void StartSteps::WaitForNames() {
  if (parts_->plan.unresolved.empty()) return Next();
  const std::set<std::string> names(parts_->plan.unresolved.begin(), parts_->plan.unresolved.end());
  parts_->patience.Begin([this] { return names_->missing(); });
  names_ = std::make_unique<NameWait>(&parts_->loop, std::vector<std::string>(names.begin(), names.end()),
                                      [this](std::map<std::string, std::string> found) { OnNames(std::move(found)); });
}

void StartSteps::OnNames(std::map<std::string, std::string> found) {
  parts_->patience.End();
  const std::unique_ptr<NameWait> held = std::move(names_);  // it is what calls this
  parts_->addresses = std::move(found);
  if (TakePlan(MakePlan(*parts_))) Next();
}

// ---- The other nodes

// The daemons of this node, and the way to the other nodes.
void StartSteps::Meet() {
  const ModePlan& plan = parts_->plan;
  for (const std::string& warning : plan.warnings) spdlog::warn("{}", warning);
  spdlog::info("mode {} (platform {}): node {} of {}, {}", ModeName(plan.mode), PlatformName(plan.platform), plan.index,
               plan.nodes.size(), plan.role);
  absl::Status status = meet_();
  if (!status.ok()) return end_->EndWith(1, std::string(status.message()));
  Next();
}

void StartSteps::StartRay() {
  if (parts_->plan.mode != Mode::kRay) return Next();
  MakeRay(parts_);
  if (!parts_->ray->is_head()) parts_->patience.Begin([this] { return parts_->ray->Missing(); });
  parts_->ray->WaitForHead([this] { OnRayHead(); });
}

void StartSteps::OnRayHead() {
  parts_->patience.End();
  absl::Status status = parts_->ray->Start([this](int code) { OnRayStarted(code); });
  if (!status.ok()) end_->NodeEnded(1, std::string(status.message()));
}

// CMD needs Ray on all nodes.
void StartSteps::OnRayStarted(int code) {
  if (!end_->starting()) return;
  if (code != 0) return end_->NodeEnded(code, absl::StrCat("'ray start' has ended with code ", code));
  parts_->ray->Started();
  parts_->member->Ready();
  if (parts_->plan.processes.size() == 1) {  // serves until the job ends
    end_->CommandRuns(0);
  } else {
    Next();
  }
}

void StartSteps::WaitForOthers() {
  if (parts_->member->MayStart()) return Next();
  waits_for_others_ = true;
  parts_->patience.Begin([this] { return parts_->member->Missing(); });
}

void StartSteps::OnJobState() {
  if (!waits_for_others_ || !parts_->member->MayStart()) return;
  waits_for_others_ = false;
  parts_->patience.End();
  Next();
}

void StartSteps::WaitForRemoteStart() {
  if (!parts_->mpi) return Next();
  parts_->patience.Begin([this] { return parts_->mpi->Missing(); });
  parts_->mpi->WaitForOthers([this] {
    parts_->patience.End();
    Next();
  });
}

// ---- The route

void StartSteps::PlanRoute() {
  const ModeOptions& given = parts_->run.options;
  if (!given.route || parts_->mpi) return Next();
  if (parts_->daemons->folder().empty()) {
    return end_->NodeEnded(1, "no folder of this user's own for the route's files");
  }
  RouteStepOptions options;
  options.program = parts_->run.program;
  options.folder = absl::StrCat(parts_->daemons->folder(), "/route");
  options.dial = parts_->dial;
  options.self = RouteSelf(given.self, parts_->run.environment);
  options.rank_table = given.rank_table;
  options.topology = given.topology;
  options.wait_s = given.wait_s;
  options.max_input_mb = given.max_input_mb;
  absl::Status status =
      StartRouteStep(options, parts_->plan, parts_->CommandEnvironment({}), parts_->children.get(),
                     [this, folder = options.folder](const absl::Status& planned) { OnRoute(planned, folder); });
  if (!status.ok()) end_->NodeEnded(1, std::string(status.message()));
}

void StartSteps::OnRoute(absl::Status planned, const std::string& folder) {
  if (end_->ended()) return;
  if (planned.ok()) planned = TakeRoute(folder);
  if (!planned.ok()) return end_->NodeEnded(1, std::string(planned.message()));
  Next();
}

absl::Status StartSteps::TakeRoute(const std::string& folder) {
  ModePlan& plan = parts_->plan;
  if (plan.mode == Mode::kAscend) {
    // The same processes with the ranks of the table as it is now.
    parts_->run.environment["RANK_TABLE_FILE"] = absl::StrCat(folder, "/jobstart_routeplan.json");
    absl::StatusOr<ModePlan> again = MakePlan(*parts_);
    if (!again.ok()) return again.status();
    plan.processes = std::move(again->processes);
  }
  return ApplyRoute(
      folder,
      [this](const std::string& name) {
        auto found = parts_->addresses.find(name);
        return found == parts_->addresses.end() ? name : found->second;
      },
      &plan);
}

// ---- The command

void StartSteps::StartCommand() {
  const ModePlan& plan = parts_->plan;
  for (const PlannedFile& file : plan.files) {
    absl::Status status = WriteWholeFile(file.path, file.content);
    if (!status.ok()) return end_->NodeEnded(1, std::string(status.message()));
  }
  std::vector<process::WorkerSpec> workers;
  for (size_t i = plan.mode == Mode::kRay ? 1 : 0; i < plan.processes.size(); ++i) {
    process::WorkerSpec& worker = workers.emplace_back();
    worker.local_rank = worker.rank = static_cast<int>(workers.size()) - 1;
    worker.argv = plan.processes[i].argv;
    worker.environment = parts_->CommandEnvironment(plan.processes[i].environment);
  }
  end_->CommandRuns(workers.size());
  if (parts_->mpi) parts_->mpi->CommandStarts();
  // Also without a process of its own: then the group ends what mpirun leaves behind here.
  absl::Status status = parts_->group->Start(workers);
  if (!status.ok()) end_->NodeEnded(1, std::string(status.message()));
}

}  // namespace taskd::modes
