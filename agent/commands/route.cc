#include "agent/commands/route.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <functional>
#include <iostream>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/hash/hash.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "agent/commands/job_flags.h"
#include "agent/ranktable/rank_table.h"
#include "agent/ranktable/rank_table_file.h"
#include "agent/ranktable/reorder.h"
#include "agent/route/plan.h"
#include "agent/route/plan_report.h"
#include "agent/route/route_agreement_client.h"
#include "agent/route/topology_formats/formats.h"
#include "common/file_set.h"
#include "common/input_budget.h"
#include "common/printable.h"

namespace taskd::commands {
namespace {

struct RouteOptions {
  std::string rank_table;
  std::string topology;
  std::string format = "auto";
  std::string out;
  bool has_self = false;
  std::string self;  // counts if has_self: a name that is empty is unknown
  std::string unknown = "last";
  double wait_s = 300;
  int max_input_mb = kDefaultInputMb;  // of each of the two files
  bool json = false;
  bool rank_mapping = false;
  std::string hostfile;  // empty: none; so the next
  std::string rankfile;
  bool has_agree = false;
  route::AgreeOptions agree;
};

size_t MaxBytes(const RouteOptions& options) { return static_cast<size_t>(options.max_input_mb) << 20; }

using Clock = std::chrono::steady_clock;
using route::RouteNode;
using route::RoutePlan;

constexpr std::chrono::seconds kPoll(1);
constexpr double kMaxWaitS = 1e9;
// Looks at a broken file that stays as it is, before it is no longer taken for one that is being written.
constexpr int kBrokenLooks = 3;

// Exit 1: the input is at fault, not how we were called.
absl::Status Failed(const absl::Status& status) { return absl::FailedPreconditionError(status.message()); }

absl::Status At(const std::string& path, const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat(path, ": ", status.message()));
}

// One deadline for all waits of the command.
class Waiting {
 public:
  explicit Waiting(double wait_s)
      : deadline_(Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(wait_s))) {}
  ~Waiting() {
    if (shown_) std::cerr << "\r\033[K" << std::flush;
  }

  // False: the time is over.
  bool Pause(const std::string& path) {
    const Clock::duration left = deadline_ - Clock::now();
    if (left <= Clock::duration::zero()) return false;
    if (isatty(STDERR_FILENO) != 0) {
      std::cerr << "\rtaskd route: waiting for " << Printable(path) << ", "
                << std::chrono::duration_cast<std::chrono::seconds>(left).count() << " s left\033[K" << std::flush;
      shown_ = true;
    }
    std::this_thread::sleep_for(std::min<Clock::duration>(left, kPoll));
    return true;
  }

 private:
  const Clock::time_point deadline_;
  bool shown_ = false;
};

// NOT_FOUND: it is not there or not completed, as the skipped plan shows. Other errors: it is broken.
absl::StatusOr<route::Topology> WaitForTopology(const RouteOptions& options, route::TopologyFormat format,
                                                const std::vector<std::string>& job_names, Waiting& waiting) {
  size_t last_look = 0;
  int same_looks = 0;
  while (true) {
    absl::StatusOr<std::string> text = ranktable::ReadRankTableFile(options.topology, MaxBytes(options));
    absl::Status missing = text.status();
    if (text.ok()) {
      absl::StatusOr<route::Topology> topology = route::ReadTopology(*text, format, MaxBytes(options), job_names);
      if (topology.ok()) return topology;
      missing = At(options.topology, topology.status());
      const size_t look = absl::HashOf(*text);
      same_looks = look == last_look ? same_looks + 1 : 1;
      last_look = look;
    }
    if (absl::IsResourceExhausted(missing)) return absl::InvalidArgumentError(missing.message());
    const bool may_come = absl::IsNotFound(missing) || absl::IsUnavailable(missing);
    if (!may_come && (!text.ok() || same_looks == kBrokenLooks)) return Failed(missing);
    if (waiting.Pause(options.topology)) continue;
    return may_come ? absl::NotFoundError(missing.message()) : Failed(missing);
  }
}

std::vector<RouteNode> NodesOf(const ranktable::RankTable& table) {
  std::vector<RouteNode> nodes;
  nodes.reserve(table.servers.size());
  for (const ranktable::RankTableServer& server : table.servers) {
    RouteNode& node = nodes.emplace_back();
    node.server_id = server.server_id;
    node.pod_name = server.pod_name;
    node.host_ip = server.host_ip;
    node.container_ip = server.container_ip;
    node.device_ranks.reserve(server.device_count);
    for (const ranktable::RankTableDevice& device : table.DevicesOf(server)) {
      node.device_ranks.push_back(static_cast<int>(device.rank_id));
    }
  }
  return nodes;
}

std::vector<std::string> NamesOf(const std::vector<RouteNode>& nodes) {
  std::vector<std::string> names;
  for (const RouteNode& node : nodes) {
    for (const std::string* name : {&node.server_id, &node.pod_name, &node.host_ip, &node.container_ip}) {
      if (!name->empty()) names.push_back(*name);
    }
  }
  return names;
}

std::string InFolder(const std::string& folder, const char* name) {
  return absl::StrCat(folder, folder.ends_with('/') ? "" : "/", name);
}

// What cannot end well ends before the wait. The folder itself is made when there is something to put into it.
absl::Status CheckFolder(const std::string& folder) {
  const auto refuse = [&](const char* why) {
    return absl::FailedPreconditionError(absl::StrCat("--out ", folder, " cannot be written: ", why));
  };
  struct stat facts;
  std::string writable = folder;
  if (::stat(folder.c_str(), &facts) != 0) {
    if (errno != ENOENT) return refuse(std::strerror(errno));
    while (writable.size() > 1 && writable.ends_with('/')) writable.pop_back();
    const size_t slash = writable.rfind('/');
    writable = slash == std::string::npos ? "." : writable.substr(0, slash + 1);
    if (::stat(writable.c_str(), &facts) != 0) return refuse(std::strerror(errno));
  }
  if (!S_ISDIR(facts.st_mode)) return refuse(std::strerror(ENOTDIR));
  if (::access(writable.c_str(), W_OK | X_OK) != 0) return refuse(std::strerror(errno));
  return absl::OkStatus();
}

absl::Status RemoveStale(const std::string& folder) {
  for (const char* name : {"RANK_AFTER_ACC", "MASTER_INDEX"}) {
    const std::string path = InFolder(folder, name);
    if (::unlink(path.c_str()) != 0 && errno != ENOENT && errno != ENOTDIR) {
      return absl::FailedPreconditionError(
          absl::StrCat(path, ", left by an earlier run, cannot be removed: ", std::strerror(errno)));
    }
  }
  return absl::OkStatus();
}

// SIGINT, SIGTERM and SIGHUP do not end the process. By its handlers: a signal is any thread's.
class IgnoreEndingSignals {
 public:
  IgnoreEndingSignals() {
    for (size_t i = 0; i < std::size(kEnding); ++i) handlers_[i] = std::signal(kEnding[i], SIG_IGN);
  }
  ~IgnoreEndingSignals() {
    for (size_t i = 0; i < std::size(kEnding); ++i) std::signal(kEnding[i], handlers_[i]);
  }
  IgnoreEndingSignals(const IgnoreEndingSignals&) = delete;
  IgnoreEndingSignals& operator=(const IgnoreEndingSignals&) = delete;

 private:
  static constexpr int kEnding[] = {SIGINT, SIGTERM, SIGHUP};
  void (*handlers_[std::size(kEnding)])(int) = {};
};

absl::Status WriteFiles(const RouteOptions& options, const ranktable::RankTable& table,
                        const std::vector<RouteNode>& nodes, const RoutePlan& plan, std::optional<size_t> self) {
  const std::vector<uint32_t> order(plan.by_new_rank.begin(), plan.by_new_rank.end());
  absl::StatusOr<std::string> text = ranktable::ReorderRankTable(table, order);
  if (!text.ok()) return text.status();
  if (::mkdir(options.out.c_str(), 0777) != 0 && errno != EEXIST) {
    return absl::UnavailableError(absl::StrCat("--out ", options.out, " cannot be made: ", std::strerror(errno)));
  }
  const IgnoreEndingSignals whole;  // all of the files or none
  FileSet files;
  absl::Status status = files.Add(InFolder(options.out, "jobstart_routeplan.json"), *text);
  *text = {};
  const auto add = [&](const std::string& path, const std::string& content) {
    if (status.ok()) status = files.Add(path, content);
  };
  if (!options.hostfile.empty()) add(options.hostfile, route::Hostfile(nodes, plan));
  if (!options.rankfile.empty()) add(options.rankfile, route::Rankfile(nodes, plan));
  if (self) {
    add(InFolder(options.out, "MASTER_INDEX"), route::MasterIndex(plan));
    // What start scripts wait for comes last.
    add(InFolder(options.out, "RANK_AFTER_ACC"), route::RankAfterAcc(plan, static_cast<int32_t>(*self)));
  }
  if (status.ok()) status = files.Commit();
  return status;
}

struct Inputs {
  route::TopologyFormat format = route::TopologyFormat::kAuto;
  route::UnknownNodes unknown = route::UnknownNodes::kLast;
  std::unique_ptr<route::RouteAgreement> agreement;  // null: none is wanted
};

absl::StatusOr<Inputs> CheckOptions(const RouteOptions& options) {
  Inputs inputs;
  for (const auto& [flag, value] : {std::pair("--rank-table", &options.rank_table),
                                    std::pair("--topology", &options.topology), std::pair("--out", &options.out)}) {
    if (value->empty()) return absl::InvalidArgumentError(absl::StrCat(flag, ": is empty; a path is needed"));
  }
  const std::optional<route::TopologyFormat> format = route::TopologyFormatFromName(options.format);
  if (!format) {
    return absl::InvalidArgumentError(
        absl::StrCat("--format ", options.format, ": is none of ", std::string(route::kTopologyFormatNames)));
  }
  inputs.format = *format;
  if (options.unknown != "last" && options.unknown != "fail") {
    return absl::InvalidArgumentError(absl::StrCat("--unknown ", options.unknown, ": is neither last nor fail"));
  }
  inputs.unknown = options.unknown == "fail" ? route::UnknownNodes::kFail : route::UnknownNodes::kLast;
  if (!(options.wait_s >= 0 && options.wait_s <= kMaxWaitS)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--wait-s ", options.wait_s, ": is not a number of seconds from 0 to ", kMaxWaitS));
  }
  if (options.has_agree) {
    absl::StatusOr<std::unique_ptr<route::RouteAgreement>> agreement = route::RouteAgreement::Create(options.agree);
    if (!agreement.ok()) return agreement.status();
    inputs.agreement = *std::move(agreement);
  }
  return inputs;
}

// What a plan is reported with.
struct Planned {
  RoutePlan plan;
  std::optional<route::AlgorithmReport> algorithms;
};

absl::StatusOr<Planned> Plan(const RouteOptions& options, const Inputs& inputs, const std::vector<RouteNode>& nodes,
                             Waiting& waiting) {
  Planned planned;
  absl::StatusOr<route::Topology> topology = WaitForTopology(options, inputs.format, NamesOf(nodes), waiting);
  if (absl::IsNotFound(topology.status())) {
    planned.plan = route::SkippedPlan(
        nodes, absl::StrCat("no topology within ", options.wait_s, " s: ", topology.status().message()));
    return planned;
  }
  if (!topology.ok()) return topology.status();
  absl::StatusOr<RoutePlan> plan = route::PlanRoutes(nodes, *topology, inputs.unknown);
  if (!plan.ok()) return Failed(At(options.topology, plan.status()));
  planned.plan = *std::move(plan);
  if (planned.plan.outcome == RoutePlan::Outcome::kSkipped) return planned;
  absl::StatusOr<route::AlgorithmReport> algorithms = route::CompareAlgorithms(nodes, *topology, planned.plan);
  if (!algorithms.ok()) return Failed(algorithms.status());
  planned.algorithms = *algorithms;
  return planned;
}

// Every node of the job adopts the plan, or none does.
absl::Status Agree(route::RouteAgreement& agreement, const ranktable::RankTable& table,
                   const std::vector<RouteNode>& nodes, Planned& planned) {
  route::PlannedRoute mine;
  mine.table_digest = route::Sha256(*table.text);
  if (planned.plan.outcome == RoutePlan::Outcome::kSkipped) {
    mine.reason = planned.plan.reason;
  } else {
    mine.plan_digest = route::PlanDigest(nodes, planned.plan);
  }
  absl::StatusOr<route::RouteDecision> decision = agreement.Decide(mine);
  // Wrong usage has been refused before: what is left is a failure.
  if (!decision.ok()) return Failed(decision.status());
  if (!decision->adopt) planned = {route::SkippedPlan(nodes, decision->reason), std::nullopt};
  return absl::OkStatus();
}

absl::Status Route(const RouteOptions& options, Inputs inputs) {
  if (absl::Status status = RemoveStale(options.out); !status.ok()) return status;
  if (absl::Status status = CheckFolder(options.out); !status.ok()) return status;
  Waiting waiting(options.wait_s);
  absl::StatusOr<ranktable::RankTable> table = ranktable::WaitForRankTable(
      options.rank_table, ranktable::ChipRules::kAny, [&] { return waiting.Pause(options.rank_table); },
      MaxBytes(options));
  if (absl::IsResourceExhausted(table.status())) return absl::InvalidArgumentError(table.status().message());
  if (!table.ok()) return Failed(table.status());
  if (table->version == ranktable::RankTableVersion::kStandard || table->version == ranktable::RankTableVersion::k1_1) {
    return absl::FailedPreconditionError(absl::StrCat(options.rank_table, ": version is ",
                                                      std::string(ranktable::RankTableVersionName(table->version)),
                                                      "; routes are planned for 1.0, 1.2 and 2.0"));
  }
  std::optional<size_t> self;
  if (options.has_self) {
    absl::StatusOr<size_t> found = ranktable::ServerOf(*table, options.self);
    if (!found.ok()) return absl::InvalidArgumentError(absl::StrCat("--self: ", found.status().message()));
    self = *found;
  }
  const std::vector<RouteNode> nodes = NodesOf(*table);
  absl::StatusOr<Planned> planned = Plan(options, inputs, nodes, waiting);
  if (!planned.ok()) {
    // The others need not wait for a node that has come and cannot plan.
    if (inputs.agreement != nullptr) {
      (void)inputs.agreement->Decide({route::Sha256(*table->text), "", std::string(planned.status().message())});
    }
    return planned.status();
  }
  if (inputs.agreement != nullptr) {
    if (absl::Status status = Agree(*inputs.agreement, *table, nodes, *planned); !status.ok()) return status;
  }
  if (absl::Status status = WriteFiles(options, *table, nodes, planned->plan, self); !status.ok()) return status;
  if (inputs.agreement != nullptr && planned->plan.outcome != RoutePlan::Outcome::kSkipped) {
    inputs.agreement->Written();
  }
  const route::ReportParts parts = {.algorithms = planned->algorithms ? &*planned->algorithms : nullptr,
                                    .rank_mapping = options.rank_mapping};
  if (options.json) {
    std::cout << PrintableJson(route::PlanJson(nodes, planned->plan, parts)) << std::endl;
  } else {
    std::cout << route::PlanText(nodes, planned->plan, parts) << std::flush;
  }
  return absl::OkStatus();
}

// Prints the plan on stdout. Errors: INVALID_ARGUMENT: wrong usage, nothing was printed; all others: the plan failed,
// nothing was written, and with `json` the failure is on stdout. A signal that ends the process while it waits leaves
// nothing behind.
absl::Status RunRoute(const RouteOptions& options) {
  absl::StatusOr<Inputs> inputs = CheckOptions(options);
  if (!inputs.ok()) return inputs.status();
  absl::Status status = Route(options, *std::move(inputs));
  if (!status.ok() && !absl::IsInvalidArgument(status) && options.json) {
    std::cout << PrintableJson(route::FailedJson(std::string(status.message()))) << std::endl;
  }
  return status;
}

class RouteCommand : public Command {
 public:
  void AddFlags(Flags& flags) override {
    flags.Add("--rank-table", options_.rank_table, "the job's rank table, a .json file").Required();
    flags.Add("--topology", options_.topology, "the file that tells which switch each node is below").Required();
    flags
        .Add("--format", options_.format,
             "of the topology: auto, tor-list, tor-node-cm, slurm, ibnetdiscover, hypernode, csv or ranktable2")
        .ShowDefault();
    flags.Add("--out", options_.out, "folder for jobstart_routeplan.json, RANK_AFTER_ACC and MASTER_INDEX").Required();
    self_ = flags.Add("--self", options_.self,
                      "this node: server_id, pod_name, host_ip or container_ip; for RANK_AFTER_ACC and MASTER_INDEX");
    flags
        .Add("--unknown", options_.unknown,
             "nodes of the job that the topology lacks: last (order them last) or fail (keep the given order)")
        .ShowDefault();
    flags.Add("--wait-s", options_.wait_s, "seconds that the two files have to be there and completed").ShowDefault();
    flags
        .Add("--max-input-mb", options_.max_input_mb,
             "MiB that each of the two files may take, unpacked and with what is made of it")
        .Range(1, kMostInputMb)
        .ShowDefault();
    flags.Add("--json", options_.json, "print one JSON object");
    flags.Add("--rank-mapping", options_.rank_mapping, "with --json: add <new rank>-<pod index>,…");
    flags.Add("--hostfile", options_.hostfile, "write an MPI hostfile in the new order");
    flags.Add("--rankfile", options_.rankfile, "write Open MPI's rankfile for the new order");
    AddAgreement(flags);
  }

  absl::StatusOr<bool> Run() override {
    options_.has_self = self_->given();
    if (options_.has_agree) {
      for (const auto& [name, flag] : needed_) {
        if (!flag.given()) return absl::InvalidArgumentError(absl::StrCat(name, ": is missing; --agree needs it"));
      }
      options_.agree.security.secret = TokenOfEnvironment();
    }
    if (absl::Status status = RunRoute(options_); !status.ok()) return status;
    return true;
  }

 private:
  void AddAgreement(Flags& flags) {
    route::AgreeOptions& agree = options_.agree;
    flags.Add("--agree", options_.has_agree, "all nodes adopt the same plan, or none does; all of them call this");
    needed_ = {
        {"--manager", flags.Add("--manager", agree.manager, "HOST:PORT of the job's manager, for --agree")},
        {"--nodes", flags.Add("--nodes", agree.nodes, "number of nodes, for --agree")},
        {"--index", flags.Add("--index", agree.index, "which of them this one is, from 0, for --agree")},
    };
    flags.Add("--job", agree.job, "NAMESPACE/NAME, for --agree; the manager refuses any other job's").JobName();
    flags.Add("--agree-timeout", agree.timeout_s, "seconds that the nodes have to agree").Positive().ShowDefault();
    AddTlsFlags(flags, agree.security);
  }

  RouteOptions options_;
  std::optional<Flag> self_;
  std::vector<std::pair<const char*, Flag>> needed_;  // by --agree
};

}  // namespace

std::unique_ptr<Command> MakeRouteCommand() { return std::make_unique<RouteCommand>(); }

}  // namespace taskd::commands
