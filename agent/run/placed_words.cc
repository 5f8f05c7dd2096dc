#include "agent/run/placed_words.h"

#include <algorithm>
#include <initializer_list>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "agent/process/guard.h"
#include "agent/run/option_table.h"
#include "common/environment.h"

namespace taskd::run {
namespace {

class Placer {
 public:
  // `has_shutdown_timeout`: by torchrun's own variable, which is no option's.
  Placer(OptionWords* words, RunOptions* options, bool has_shutdown_timeout)
      : words_(*words), options_(*options), has_shutdown_timeout_(has_shutdown_timeout) {}

  absl::Status Take(const engine::Placement& placement) {
    options_.warnings.insert(options_.warnings.end(), placement.warnings.begin(), placement.warnings.end());
    options_.job = placement.job;
    options_.task_id = placement.task_id;
    if (placement.where.empty()) {
      AddShutdownTimeout(placement);
      return absl::OkStatus();
    }
    if (absl::Status status = CheckNodes(placement); !status.ok()) return status;
    if (absl::Status status = CheckNode(placement); !status.ok()) return status;
    const GivenOption* port = Given("master-port");
    options_.master_ports = port == nullptr ? placement.master_ports : 1;
    options_.master_is_node_0 = placement.master_is_node_0 && Given("master-addr") == nullptr;
    for (const engine::Default& one : placement.defaults) Add(one);
    const GivenOption* rank = Given("node-rank");
    options_.placed_by = placement.where;
    options_.node_rank_by = rank == nullptr ? "" : rank->label;
    return absl::OkStatus();
  }

  // For a launcher with a rendezvous of its own.
  absl::Status TakeName(const engine::Placement& placement) {
    options_.job = placement.job;
    options_.task_id = placement.task_id;
    AddShutdownTimeout(placement);
    if (words_.Flag("standalone")) return absl::OkStatus();
    return placement.nodes_needed ? CheckNodes(placement) : CheckAlone(placement);
  }

  bool HasRendezvous() const {
    for (const char* option : {"rdzv-backend", "rdzv-endpoint", "rdzv-id", "rdzv-conf"}) {
      if (Given(option) != nullptr) return true;
    }
    return words_.Flag("standalone");
  }

  // Every node by itself, as its user wants it.
  bool WantsOneNode() const {
    const GivenOption* nodes = Given("nnodes");
    return nodes != nullptr && (nodes->value == "1" || nodes->value == "1:1");
  }

 private:
  const GivenOption* Given(std::string_view option) const {
    const GivenOption* given = words_.Find(option);
    return given != nullptr && !given->value.empty() ? given : nullptr;
  }

  void AddShutdownTimeout(const engine::Placement& placement) {
    if (const engine::Default* timeout = placement.Find("shutdown-timeout"); timeout != nullptr) Add(*timeout);
  }

  void Add(const engine::Default& one) {
    if (one.option == "shutdown-timeout" && has_shutdown_timeout_) return;
    if (Given(one.option) == nullptr) words_.Set(one.option, {one.source, one.value, false});
  }

  absl::Status CheckAlone(const engine::Placement& placement) const {
    if (placement.nodes <= 1 || Given("nnodes") != nullptr) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat("--nnodes is not given, and ", placement.where, " has ", placement.nodes, " nodes (",
                     placement.nodes_source, "): each would train a world of its own; --nnodes ", placement.nodes,
                     " with --rdzv-backend c10d and --rdzv-endpoint for one world, no --rdzv option to let taskd take ",
                     "both from there, or --nnodes 1 for worlds of one node"));
  }

  absl::Status CheckNodes(const engine::Placement& placement) {
    const GivenOption* given = Given("nnodes");
    if (given == nullptr) {
      if (!placement.nodes_needed || placement.nodes > 0) return absl::OkStatus();
      return absl::InvalidArgumentError(absl::StrCat(
          "--nnodes is not given, and ", placement.where,
          " does not tell it: each node would train a world of its own; give --nnodes N, or --standalone"));
    }
    if (placement.nodes == 0) return absl::OkStatus();
    const std::vector<std::string> parts = absl::StrSplit(given->value, ':');
    int least = 0;
    int most = 0;
    if (parts.size() > 2 || !absl::SimpleAtoi(parts.front(), &least) || !absl::SimpleAtoi(parts.back(), &most)) {
      return absl::OkStatus();  // its own check says what is wrong
    }
    const std::string has = absl::StrCat(placement.where, " has ", placement.nodes,
                                         placement.nodes == 1 ? " node (" : " nodes (", placement.nodes_source, ")");
    if (least == most) return most == placement.nodes ? absl::OkStatus() : WrongOption(*given, has);
    if (placement.nodes < least || placement.nodes > most) return WrongOption(*given, has);
    // No more can come than the scheduler has: nobody is waited for in vain.
    words_.Set("nnodes", {given->label, absl::StrCat(least, ":", placement.nodes), given->on_command_line});
    return absl::OkStatus();
  }

  absl::Status CheckNode(const engine::Placement& placement) const {
    const engine::Default* rank = placement.Find("node-rank");
    if (const GivenOption* given = Given("node-rank");
        given != nullptr && rank != nullptr && given->value != rank->value) {
      return WrongOption(*given,
                         absl::StrCat("this is node ", rank->value, " of ", placement.where, " (", rank->source, ")"));
    }
    const auto host = std::find(placement.hosts.begin(), placement.hosts.end(), Value("master-addr"));
    if (host == placement.hosts.end() || host == placement.hosts.begin()) return absl::OkStatus();
    return WrongOption(*Given("master-addr"),
                       absl::StrCat("node 0 of ", placement.where, " is ", placement.hosts.front()));
  }

  std::string Value(std::string_view option) const {
    const GivenOption* given = Given(option);
    return given == nullptr ? "" : given->value;
  }

  OptionWords& words_;
  RunOptions& options_;
  const bool has_shutdown_timeout_;
};

// A rank's launcher has no place but its rank's. One that a rank has started by srun on several nodes is of another step,
// with the rank's variables on all of them.
absl::Status CheckInner(const Environment& environment, const absl::StatusOr<engine::Placement>& placement) {
  const std::string outer = ValueOf(environment, "TASKD_TASK_ID");
  const std::string job = absl::StrCat(ValueOf(environment, "SLURM_JOB_ID"), ".");
  if (!placement.ok() || placement->nodes < 2 || !absl::StartsWith(outer, job) || outer == placement->task_id) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "TASKD_TASK_ID '", outer, "': ", placement->where,
      " was started by a rank of that launcher and has its variables: each of ", placement->nodes,
      " nodes would train a world of its own; srun --export=PATH,HOME taskd run for one world, or --standalone"));
}

}  // namespace

absl::Status PlaceWords(const std::map<std::string, std::string>& environment, const engine::EngineMachine& machine,
                        OptionWords* words, RunOptions* options) {
  const absl::StatusOr<engine::Placement> placement = engine::FindPlacement(environment, machine);
  Placer placer(words, options, !ValueOf(environment, "TORCH_ELASTIC_SHUTDOWN_TIMEOUT").empty());
  const bool own = placer.HasRendezvous();
  if (!ValueOf(environment, "TORCHELASTIC_RUN_ID").empty() || !ValueOf(environment, process::kCookieVariable).empty()) {
    return own || placer.WantsOneNode() ? absl::OkStatus() : CheckInner(environment, placement);
  }
  if (!placement.ok()) return own || placer.WantsOneNode() ? absl::OkStatus() : placement.status();
  const bool one_of_several = placer.WantsOneNode() && placement->nodes != 1;
  return own || one_of_several ? placer.TakeName(*placement) : placer.Take(*placement);
}

}  // namespace taskd::run
