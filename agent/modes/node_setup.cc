#include "agent/modes/node_setup.h"

#include <arpa/inet.h>
#include <signal.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "agent/modes/node_files.h"
#include "agent/process/process_tree.h"
#include "agent/process/signals.h"
#include "common/address.h"
#include "common/job_file.h"
#include "common/job_secret.h"
#include "common/listen.h"

namespace taskd::modes {
namespace {

constexpr int64_t kGraceNs = 10'000'000'000;  // between SIGTERM and SIGKILL

bool IsAddress(const std::string& host) {
  in6_addr any;
  return inet_pton(AF_INET, host.c_str(), &any) == 1 || inet_pton(AF_INET6, host.c_str(), &any) == 1;
}

// The nodes meet nowhere before they meet at the manager, so none can hand a secret to the others: where the operator
// gave none, what they all know of the job stands in for it. One node has a secret of its own.
void ChooseSecret(const ModePlan& plan, proto::Security* security) {
  if (!security->tls_dir.empty() || !security->secret.empty()) return;
  security->fallback = plan.nodes.size() > 1 ? StandInSecret(PlanText(plan)) : NewSecret();
}

// A manager that was started separately, earlier, has a secret of its own, kept in its job file.
std::string SecretOfManager(const std::string& dial, const proto::Security& security) {
  if (!security.secret.empty()) return security.secret;
  absl::StatusOr<HostPort> address = ParseHostPort("--manager", dial);
  const std::optional<JobFile> job = address.ok() ? JobAt(*address) : std::nullopt;
  return job ? job->secret : security.fallback;
}

// Decides how this node reaches the manager where nodes meet, and starts it if it belongs here and is not there.
absl::Status ReachManager(NodeParts* parts) {
  const ModePlan& plan = parts->plan;
  absl::StatusOr<HostPort> reached = ParseHostPort("--manager", plan.manager);
  if (!reached.ok()) return reached.status();
  parts->dial = plan.manager;
  if (plan.index != 0) return absl::OkStatus();
  // The node's own name may not resolve here.
  const HostPort here = {IsLoopback(*reached) ? reached->host : "127.0.0.1", reached->port};
  const bool is_here = reached->host == plan.nodes.front().name || IsThisNode(reached->host);
  if (!is_here || process::Daemons::Answers(here) || process::Daemons::Answers(*reached)) return absl::OkStatus();
  parts->hosts_manager = parts->daemons->StartManagerAt(*reached);
  if (!parts->hosts_manager) return absl::UnavailableError(absl::StrCat("no manager at ", plan.manager));
  parts->dial = FormatHostPort(here);
  return absl::OkStatus();
}

// Names and addresses by which other nodes may call this one.
std::vector<std::string> NamesOf(const NodeParts& parts) {
  std::vector<std::string> result = OwnNamesAndAddresses();
  const ModePlan& plan = parts.plan;
  if (plan.index >= static_cast<int>(plan.nodes.size())) return result;  // an evaluator
  const std::string& name = plan.nodes[static_cast<size_t>(plan.index)].name;
  result.push_back(name);
  auto found = parts.addresses.find(name);
  if (found != parts.addresses.end()) result.push_back(found->second);
  return result;
}

}  // namespace

absl::StatusOr<ModePlan> MakePlan(const NodeParts& parts) {
  ModeMachine machine = parts.run.machine;
  machine.ipv4 = [&parts](const std::string& host) {
    if (IsAddress(host)) return host;
    auto found = parts.addresses.find(host);
    return found == parts.addresses.end() ? std::string() : found->second;
  };
  return PlanMode(parts.run.options, parts.run.environment, machine);
}

absl::Status CheckPorts(const ModePlan& plan) {
  for (const ClaimedPort& claimed : plan.binds) {
    absl::StatusOr<UniqueFd> socket = ListenTcp({"", claimed.port}, true);
    if (!absl::IsAlreadyExists(socket.status()) || !IsListenedOn(claimed.port)) continue;
    const std::string holder = HolderOfPort(claimed.port);
    return absl::InvalidArgumentError(
        absl::StrCat(claimed.variable, " '", claimed.port, "': the port is listened on already",
                     holder.empty() ? "" : absl::StrCat(" by ", holder), "; this node's command has to listen there"));
  }
  return absl::OkStatus();
}

absl::Status PrepareProcesses(NodeParts* parts, process::SignalWatch::OnSignal on_signal,
                              process::WorkerGroup::Callbacks callbacks) {
  absl::StatusOr<std::unique_ptr<process::SignalWatch>> signals = process::SignalWatch::Create(
      &parts->loop, process::NotIgnored({SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2}), std::move(on_signal));
  if (!signals.ok()) return signals.status();
  parts->signals = *std::move(signals);
  parts->cookie = process::NewCookie();
  absl::StatusOr<std::unique_ptr<process::Guard>> guard = process::Guard::Start(parts->cookie);
  if (!guard.ok()) return guard.status();
  parts->guard = *std::move(guard);
  parts->signals->CompareWith(*parts->guard);
  parts->group = process::WorkerGroup::Create(&parts->loop, kGraceNs, std::move(callbacks));
  parts->group->Spare(parts->guard->pid());
  parts->children = std::make_unique<process::ChildProcesses>(parts->group.get());
  return absl::OkStatus();
}

absl::Status StartDaemons(NodeParts* parts) {
  proto::Security& security = parts->run.security;
  ChooseSecret(parts->plan, &security);
  process::DaemonOptions options;
  options.nodes = static_cast<int>(parts->plan.nodes.size());
  options.procs_per_node = std::max(1, parts->plan.nodes.front().cards);
  options.environment = parts->run.environment;
  parts->daemons = std::make_unique<process::Daemons>(std::move(options));
  process::Daemons& daemons = *parts->daemons;
  daemons.SetSecret(security.secret.empty() ? security.fallback : security.secret);
  std::string manager;
  if (parts->plan.manager.empty()) {
    manager = daemons.StartManager("127.0.0.1");
  } else {
    if (absl::Status status = ReachManager(parts); !status.ok()) return status;
    manager = parts->dial;
    if (!parts->hosts_manager) daemons.SetSecret(SecretOfManager(parts->dial, security));
  }
  daemons.StartProxy(parts->plan.index, manager, daemons.ChooseMarkFolder());
  for (auto& [name, value] : daemons.RankEnvironment(manager)) parts->run.environment[name] = value;
  for (pid_t pid : daemons.pids()) parts->group->Spare(pid);
  return absl::OkStatus();
}

absl::Status StartMpi(NodeParts* parts, std::function<void(const std::string& why)> failed) {
  MpiNode::Options options;
  options.program = parts->run.program;
  options.folder = parts->daemons->folder();
  options.taskd_rsh = parts->UsesTaskdRsh();
  options.environment = parts->CommandEnvironment({});
  options.addresses = parts->addresses;
  options.failed = std::move(failed);
  parts->mpi = std::make_unique<MpiNode>(&parts->loop, parts->children.get(), parts->member.get(), &parts->plan,
                                         std::move(options));
  return parts->mpi->Start();
}

void MakeRay(NodeParts* parts) {
  const ModeProcess& process = parts->plan.processes.front();
  RayNode::Options options;
  options.start = process.argv;
  options.environment = parts->CommandEnvironment(process.environment);
  if (parts->plan.index != 0) {
    options.head = HostPort{ValueOf(process.environment, "HEAD_ADDR"), parts->plan.head_port};
  }
  parts->ray = std::make_unique<RayNode>(&parts->loop, parts->children.get(), std::move(options));
}

absl::Status JoinJob(const NodeParts& parts) {
  JobMember::Options options;
  options.dial = parts.dial;
  options.security = parts.run.security;
  options.run_id = parts.cookie;
  options.hosts_manager = parts.hosts_manager;
  options.node_timeout_s = parts.run.options.node_timeout_s;
  options.remote_start = parts.mpi != nullptr && parts.UsesTaskdRsh();
  options.addresses = NamesOf(parts);
  return parts.member->Join(options);
}

}  // namespace taskd::modes
