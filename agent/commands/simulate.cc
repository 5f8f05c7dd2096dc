#include "agent/commands/simulate.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "agent/commands/job_flags.h"
#include "agent/simulate/faults.h"
#include "agent/simulate/job.h"
#include "agent/simulate/mark_writer.h"
#include "agent/simulate/simulate_feed.h"
#include "agent/simulate/simulator.h"
#include "common/address.h"
#include "proto/channel.h"

namespace taskd::commands {
namespace {

struct SimulateOptions {
  int ranks = 0;  // 0: as the layout gives, or 16
  int tp = 1, pp = 1, cp = 1, ep = 1;
  int dp = 0;  // 0: what is left of the ranks
  int ranks_per_node = 8;
  int microbatches = 8;
  int steps = 0;  // 0: 120
  uint64_t seed = 1;
  double step_ms = 500;
  std::vector<std::string> faults;   // KIND[:TARGET[,TARGET]][:SEVERITY][@FIRST[-LAST]]
  std::string shape = "persistent";  // of all faults: persistent, transient, intermittent[:DUTY], ramp[:STEPS]
  bool no_communication = false;
  bool host_only = false;

  std::string out;      // folder of mark files
  std::string manager;  // HOST:PORT; either this or `out`
  double rate = 0;      // steps a second towards a manager; 0: as fast as it takes them
  int nodes_per_connection = 64;
  int distinct_steps = 0;  // 0: all
  proto::Security security;
};

using Clock = std::chrono::steady_clock;
using simulate::Fault;
using simulate::FaultKind;
using simulate::FaultShape;
using simulate::Job;

constexpr auto kProgressInterval = std::chrono::milliseconds(200);
constexpr int kDefaultSteps = 120;
constexpr int kDefaultRanks = 16;

bool IsJobs(FaultKind kind) { return kind == FaultKind::kFabric || kind == FaultKind::kConfig; }

absl::StatusOr<FaultKind> ParseKind(const std::string& fault, absl::string_view name) {
  std::string known;
  for (int i = 0; i <= static_cast<int>(FaultKind::kConfig); ++i) {
    const FaultKind kind = static_cast<FaultKind>(i);
    if (name == simulate::Name(kind)) return kind;
    absl::StrAppend(&known, i == 0 ? "" : ", ", simulate::Name(kind));
  }
  return absl::InvalidArgumentError(absl::StrCat("--fault ", fault, ": '", name, "' is none of ", known));
}

absl::Status SetShape(const std::string& shape, Fault& fault) {
  const std::vector<std::string> parts = absl::StrSplit(shape, absl::MaxSplits(':', 1));
  const bool has_value = parts.size() > 1;
  bool good = true;
  if (parts[0] == "persistent" && !has_value) {
    fault.shape = FaultShape::kPersistent;
  } else if (parts[0] == "transient" && !has_value) {
    fault.shape = FaultShape::kTransient;
    if (fault.last_step < 0) fault.last_step = fault.first_step + 19;
  } else if (parts[0] == "intermittent") {
    fault.shape = FaultShape::kIntermittent;
    fault.duty = 0.3;
    good = !has_value || (absl::SimpleAtod(parts[1], &fault.duty) && fault.duty > 0 && fault.duty <= 1);
  } else if (parts[0] == "ramp") {
    fault.shape = FaultShape::kRamp;
    good = !has_value || (absl::SimpleAtoi(parts[1], &fault.ramp_steps) && fault.ramp_steps > 0);
  } else {
    good = false;
  }
  if (good) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("--shape ", shape, ": is not persistent, transient, intermittent[:DUTY] (0 to 1) or ramp[:STEPS]"));
}

// The layout that the flags describe.
absl::StatusOr<simulate::Layout> MakeLayout(const SimulateOptions& options) {
  const int64_t model = int64_t{options.tp} * options.cp * options.pp;
  for (const auto& [flag, value] : {std::pair("--tp", options.tp), std::pair("--cp", options.cp),
                                    std::pair("--pp", options.pp), std::pair("--ep", options.ep)}) {
    if (value < 1) return absl::InvalidArgumentError(absl::StrCat(flag, " ", value, ": must be at least 1"));
  }
  if (options.ranks < 0)
    return absl::InvalidArgumentError(absl::StrCat("--ranks ", options.ranks, ": must be at least 1"));
  if (options.dp < 0) return absl::InvalidArgumentError(absl::StrCat("--dp ", options.dp, ": must be at least 1"));
  const int64_t ranks = options.ranks > 0 ? options.ranks
                        : options.dp > 0  ? model * options.dp
                                          : std::max<int64_t>(model, kDefaultRanks);
  const int64_t dp = options.dp > 0 ? options.dp : std::max<int64_t>(1, ranks / model);
  if (model * dp != ranks) {
    return absl::InvalidArgumentError(absl::StrCat("--ranks ", ranks, ": is not tp ", options.tp, " x cp ", options.cp,
                                                   " x pp ", options.pp, " x dp ", dp, " = ", model * dp));
  }
  simulate::Layout layout;
  layout.tp = options.tp;
  layout.cp = options.cp;
  layout.pp = options.pp;
  layout.ep = options.ep;
  layout.dp = static_cast<int>(dp);
  layout.ranks_per_node = options.ranks_per_node;
  layout.microbatches = options.microbatches;
  layout.layers = 2;
  return layout;
}

class Progress {
 public:
  explicit Progress(int steps) : steps_(steps), shown_(isatty(STDERR_FILENO) != 0) {}
  ~Progress() {
    if (shown_) std::cerr << "\r\033[K" << std::flush;
  }
  void Show(int step) {
    if (!shown_ || Clock::now() < next_) return;
    next_ = Clock::now() + kProgressInterval;
    std::cerr << absl::StrFormat("\rstep %d of %d", step + 1, steps_) << std::flush;
  }

 private:
  const int steps_;
  const bool shown_;
  Clock::time_point next_{};
};

void PrintFaults(const simulate::Simulator& simulator) {
  for (const simulate::Label& label : simulator.labels()) {
    std::cout << absl::StrFormat("fault: %s, %s %s, steps %d to %d, %.1f %% longer steps\n", simulate::Name(label.kind),
                                 label.scope, absl::StrJoin(label.ids, ","), label.first_step, label.last_step,
                                 100 * label.effect);
  }
  std::cout << std::flush;
}

absl::Status WriteFiles(const std::string& out, simulate::Simulator& simulator) {
  simulate::MarkWriter writer(out);
  int steps = 0;
  {
    Progress progress(simulator.job().steps);
    while (simulator.Next()) {
      absl::Status status = writer.WriteStep(simulator);
      if (!status.ok()) return status;
      ++steps;
      progress.Show(simulator.step());
    }
  }
  absl::Status status = writer.Finish(simulator);
  if (!status.ok()) return status;
  std::cout << absl::StrFormat("wrote %d steps of %d ranks to %s: %d records\n", steps, simulator.ranks(), out,
                               writer.records());
  PrintFaults(simulator);
  return absl::OkStatus();
}

absl::Status Feed(const SimulateOptions& options, simulate::Simulator& simulator) {
  absl::StatusOr<std::unique_ptr<simulate::SimulatedProxies>> proxies = simulate::SimulatedProxies::Connect(
      options.manager, options.security, simulator, options.nodes_per_connection, options.distinct_steps > 0);
  if (!proxies.ok()) return proxies.status();
  const Clock::time_point begin = Clock::now();
  Clock::time_point next = begin;
  int steps = 0;
  {
    Progress progress(simulator.job().steps);
    while (true) {
      const bool is_new = options.distinct_steps == 0 || steps < options.distinct_steps;
      if (is_new ? !simulator.Next() : steps >= simulator.job().steps) break;
      if (options.rate > 0) {
        std::this_thread::sleep_until(next);
        const auto period =
            std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(1 / options.rate));
        next = std::max(next + period, Clock::now());  // a step that took longer is not made up for
      }
      absl::Status status = is_new ? (*proxies)->SendStep(simulator) : (*proxies)->SendAgain();
      if (!status.ok()) return status;
      progress.Show(is_new ? simulator.step() : steps);
      ++steps;
    }
  }
  absl::Status status = (*proxies)->Finish();
  if (!status.ok()) return status;
  const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  std::cout << absl::StrFormat("sent %d steps of %d ranks on %d nodes to %s: %d folds in %.1f s\n", steps,
                               simulator.ranks(), (*proxies)->nodes(), options.manager, (*proxies)->folds(), seconds);
  PrintFaults(simulator);
  return absl::OkStatus();
}

// "compute:7:1.3@50", "pp_link:3,11:2@40-80", "host:n1:1.5", "fabric:2". Targets are ranks or node ranks by the kind.
// INVALID_ARGUMENT: what, value, rule.
absl::StatusOr<Fault> ParseFault(const std::string& text) {
  auto wrong = [&](const std::string& what) {
    return absl::InvalidArgumentError(
        absl::StrCat("--fault ", text, ": ", what, "; KIND[:TARGET[,TARGET]][:SEVERITY][@FIRST[-LAST]]"));
  };
  Fault fault;
  fault.first_step = 30;
  std::vector<std::string> parts = absl::StrSplit(text, absl::MaxSplits('@', 1));
  if (parts.size() > 1) {
    std::vector<std::string> steps = absl::StrSplit(parts[1], absl::MaxSplits('-', 1));
    if (!absl::SimpleAtoi(steps[0], &fault.first_step) ||
        (steps.size() > 1 && (!absl::SimpleAtoi(steps[1], &fault.last_step) || fault.last_step < fault.first_step))) {
      return wrong(absl::StrCat("'", parts[1], "' is no range of steps"));
    }
  }
  std::vector<std::string> fields = absl::StrSplit(parts[0], ':');
  absl::StatusOr<FaultKind> kind = ParseKind(text, fields[0]);
  if (!kind.ok()) return kind.status();
  fault.kind = *kind;
  if (fault.kind == FaultKind::kConfig && parts.size() < 2) fault.first_step = 0;
  size_t next = 1;
  if (!IsJobs(fault.kind)) {
    if (fields.size() < 2 || fields[1].empty()) return wrong("it needs a target");
    for (absl::string_view id : absl::StrSplit(fields[1], ',')) {
      int target = 0;
      const bool of_nodes = fault.kind == FaultKind::kHost || fault.kind == FaultKind::kNodeNic ||
                            fault.kind == FaultKind::kIntraNodeLink;
      absl::string_view number = of_nodes && !id.empty() && id[0] == 'n' ? id.substr(1) : id;
      if (!absl::SimpleAtoi(number, &target)) {
        return wrong(absl::StrCat("'", id, "' is no ", of_nodes ? "node rank" : "rank"));
      }
      fault.targets.push_back(target);
    }
    next = 2;
  }
  if (next < fields.size() && (!absl::SimpleAtod(fields[next], &fault.severity) || !(fault.severity > 0))) {
    return wrong(absl::StrCat("'", fields[next], "' is no factor"));
  }
  if (next + 1 < fields.size()) return wrong(absl::StrCat("'", fields[next + 1], "' is one field too many"));
  return fault;
}

// INVALID_ARGUMENT: the numbers do not fit each other.
absl::StatusOr<Job> MakeJob(const SimulateOptions& options) {
  absl::StatusOr<simulate::Layout> layout = MakeLayout(options);
  if (!layout.ok()) return layout.status();
  Job job;
  job.layout = *layout;
  job.seed = options.seed;
  job.step_ms = options.step_ms;
  job.steps = options.steps != 0 ? options.steps : kDefaultSteps;
  for (const std::string& text : options.faults) {
    absl::StatusOr<Fault> fault = ParseFault(text);
    if (!fault.ok()) return fault.status();
    absl::Status status = SetShape(options.shape, *fault);
    if (!status.ok()) return status;
    if (fault->first_step >= job.steps) {
      return absl::InvalidArgumentError(
          absl::StrCat("--fault ", text, ": begins at step ", fault->first_step, " of a job of ", job.steps, " steps"));
    }
    simulate::PrepareJob(job, fault->kind);
    job.faults.push_back(*std::move(fault));
  }
  Fault none;
  absl::Status status = SetShape(options.shape, none);
  if (!status.ok()) return status;
  if (options.no_communication) job.marks.communication = false;
  if (options.host_only) job.marks.device = false;
  return job;
}

// Prints a summary to stdout, progress to stderr when it is a terminal. INVALID_ARGUMENT: wrong usage, nothing was
// written or sent.
absl::Status RunSimulate(const SimulateOptions& options) {
  if (options.out.empty() == options.manager.empty()) {
    return absl::InvalidArgumentError(options.out.empty() ? "--out DIR or --manager HOST:PORT: one of them is needed"
                                                          : "--out and --manager: only one of them can be served");
  }
  if (options.rate < 0 || (options.rate > 0 && options.manager.empty())) {
    return absl::InvalidArgumentError(
        absl::StrCat("--rate ", options.rate, ": is for --manager only, in steps a second above 0"));
  }
  constexpr int kLeastDistinct = 3;  // of the first one not all is known, and each ends with the next one
  if (options.distinct_steps != 0 && (options.distinct_steps < kLeastDistinct || options.manager.empty())) {
    return absl::InvalidArgumentError(absl::StrCat("--distinct-steps ", options.distinct_steps,
                                                   ": is for --manager only, ", kLeastDistinct, " or more"));
  }
  if (!options.manager.empty()) {
    absl::StatusOr<HostPort> address = ParseHostPort("--manager", options.manager);
    if (!address.ok()) return address.status();
  }
  absl::StatusOr<Job> job = MakeJob(options);
  if (!job.ok()) return job.status();
  absl::StatusOr<std::unique_ptr<simulate::Simulator>> simulator = simulate::Simulator::Create(*job);
  if (!simulator.ok()) return simulator.status();
  if (!options.manager.empty()) return Feed(options, **simulator);
  absl::Status status = simulate::CheckOutput(options.out);
  if (!status.ok()) return status;
  return WriteFiles(options.out, **simulator);
}

class SimulateCommand : public Command {
 public:
  void AddFlags(Flags& flags) override {
    flags.Add("--ranks", options_.ranks, "ranks of the job [tp x cp x pp x dp, or 16]");
    flags.Add("--tp", options_.tp, "tensor parallel ranks").ShowDefault();
    flags.Add("--pp", options_.pp, "pipeline stages").ShowDefault();
    flags.Add("--dp", options_.dp, "data parallel replicas [what is left of the ranks]");
    flags.Add("--cp", options_.cp, "context parallel ranks").ShowDefault();
    flags.Add("--ep", options_.ep, "expert parallel ranks, of the replicas").ShowDefault();
    flags.Add("--ranks-per-node", options_.ranks_per_node, "ranks of a node").ShowDefault();
    flags.Add("--microbatches", options_.microbatches, "of a step and replica").ShowDefault();
    flags.Add("--steps", options_.steps, "steps [120]").Positive();
    flags.Add("--seed", options_.seed, "of all random numbers").ShowDefault();
    flags.Add("--step-ms", options_.step_ms, "length of a healthy step, about").ShowDefault();
    // Not split at commas: those part the targets of one fault.
    flags
        .Add("--fault", options_.faults,
             "KIND[:TARGET[,TARGET]][:SEVERITY][@FIRST[-LAST]], as compute:7:1.3@50, pp_link:3,11:2@40-80, "
             "host:n1:2; repeatable")
        .OneValueEach();
    flags.Add("--shape", options_.shape, "of the faults: persistent, transient, intermittent[:DUTY], ramp[:STEPS]")
        .ShowDefault();
    flags.Add("--no-communication", options_.no_communication, "no marks of communication");
    flags.Add("--host-only", options_.host_only, "marks of the host only, as without MSPTI");
    flags.Add("--out", options_.out, "folder that the mark files go to");
    manager_ = flags.Add("--manager", options_.manager, "HOST:PORT of a manager to feed instead");
    flags.Add("--rate", options_.rate, "steps a second towards the manager [as fast as it takes them]");
    flags.Add("--nodes-per-connection", options_.nodes_per_connection, "nodes that share one; real ones have their own")
        .Positive()
        .ShowDefault();
    flags.Add("--distinct-steps", options_.distinct_steps,
              "steps towards the manager that are simulated; the others are these again, at little cost [all]");
    AddTlsFlags(flags, options_.security);
  }

  absl::StatusOr<bool> Run() override {
    // TASKD_MANAGER may be set for other commands.
    if (!manager_->on_command_line() && !options_.out.empty()) options_.manager.clear();
    options_.security.secret = TokenOfEnvironment();
    if (absl::Status status = RunSimulate(options_); !status.ok()) return status;
    return true;
  }

 private:
  SimulateOptions options_;
  std::optional<Flag> manager_;
};

}  // namespace

std::unique_ptr<Command> MakeSimulateCommand() { return std::make_unique<SimulateCommand>(); }

}  // namespace taskd::commands
