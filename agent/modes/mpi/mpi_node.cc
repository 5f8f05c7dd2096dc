#include "agent/modes/mpi/mpi_node.h"

#include <signal.h>
#include <sys/wait.h>

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "agent/modes/node_files.h"
#include "common/listen.h"
#include "common/log.h"
#include "common/printable.h"
#include "common/unique_fd.h"

namespace taskd::modes {
namespace {

// Stands for every call of mpirun that node 0's command has not made: the command has ended.
constexpr uint32_t kAllCalls = UINT32_MAX;

constexpr int64_t kPortRetryNs = 500'000'000;

void AnnounceSshd(const std::string& address) {
  WriteToStdout(absl::StrCat("[run_mpi] the sshd of ip ", address, " is up\n"));
}

}  // namespace

MpiNode::MpiNode(EventLoop* loop, process::ChildProcesses* children, JobMember* member, const ModePlan* plan,
                 Options options)
    : loop_(loop), children_(children), member_(member), plan_(plan), options_(std::move(options)) {
  local_commands_ = std::make_unique<LocalCommands>(
      loop, children, options_.environment, [member](v1::NodeReport report) { member->Send(std::move(report)); });
}

absl::Status MpiNode::Start() {
  if (plan_->mpi_front) {
    if (options_.folder.empty()) {
      return absl::FailedPreconditionError("no folder of this user's own for the mpirun in front of PATH");
    }
    absl::StatusOr<std::unique_ptr<MpirunFront>> front =
        MpirunFront::Create(loop_, absl::StrCat(options_.folder, "/mpi"), options_.program, plan_->index == 0,
                            [this](uint32_t number, bool ended, int code) { member_->Mpirun(number, ended, code); });
    if (!front.ok()) return front.status();
    front_ = *std::move(front);
  }
  return is_model_arts() && !options_.taskd_rsh && plan_->nodes.size() > 1 ? StartSshd() : absl::OkStatus();
}

absl::Status MpiNode::StartSshd() {
  const int port = plan_->mpi.ssh_port;
  absl::StatusOr<UniqueFd> free = ListenTcp({"", port}, true);
  if (absl::IsAlreadyExists(free.status())) {
    if (IsListenedOn(port)) {
      spdlog::info("port {} is listened on already ({}): that sshd is used", port, HolderOfPort(port));
      return absl::OkStatus();
    }
    // Ports as high as this are also given to connections.
    if (!sshd_timer_) spdlog::warn("port {} is one end of a connection: sshd starts when it is free", port);
    sshd_timer_ = loop_->RunAfter(kPortRetryNs, [this] {
      absl::Status status = StartSshd();
      if (!status.ok()) options_.failed(std::string(status.message()));
    });
    return absl::OkStatus();
  }
  if (free.ok()) free->reset();
  absl::StatusOr<std::string> config = FillInSshdConfig(plan_->mpi.sshd_config, port);
  if (!config.ok()) return config.status();
  absl::StatusOr<std::string> sshd = FindSshd(options_.environment);
  if (!sshd.ok()) return sshd.status();
  absl::StatusOr<pid_t> pid = children_->Start({*sshd, "-D", "-f", *config}, options_.environment, [this](int code) {
    sshd_ = 0;
    if (ending_) return;
    options_.failed(absl::StrCat("sshd has ended with code ", code, " (", plan_->mpi.sshd_config, ", port ",
                                 plan_->mpi.ssh_port, ")"));
  });
  if (!pid.ok()) return pid.status();
  sshd_ = *pid;
  return absl::OkStatus();
}

// The words that mpirun puts before HOST and the command.
std::vector<std::string> MpiNode::Agent() const {
  std::vector<std::string> words =
      absl::StrSplit(ValueOf(options_.environment, "OMPI_MCA_plm_rsh_agent"), ' ', absl::SkipEmpty());
  if (words.empty()) words = {"ssh"};
  if (absl::EndsWith(words.front(), "ssh")) {
    words.insert(words.end(), {"-o", "BatchMode=yes", "-o", "ConnectTimeout=10"});
    if (is_model_arts()) words.insert(words.end(), {"-p", std::to_string(plan_->mpi.ssh_port)});
  }
  for (absl::string_view word :
       absl::StrSplit(ValueOf(options_.environment, "OMPI_MCA_plm_rsh_args"), ' ', absl::SkipEmpty())) {
    words.emplace_back(word);
  }
  return words;
}

std::string MpiNode::AddressOf(const ModeNode& node) const {
  auto found = options_.addresses.find(node.name);
  return found == options_.addresses.end() ? node.name : found->second;
}

void MpiNode::WaitForOthers(std::function<void()> done) {
  if (!plan_->mpi.checks_ssh || options_.taskd_rsh || plan_->nodes.size() == 1) return done();
  if (!is_model_arts()) return ReachOthers(std::move(done));
  for (const ModeNode& node : plan_->nodes) {
    WriteToStdout(
        absl::StrCat("[run_mpi] hostname: ", Printable(node.name), "\n[run_mpi] resolved ip: ", AddressOf(node), "\n"));
  }
  const std::string address = AddressOf(plan_->nodes[static_cast<size_t>(plan_->index)]);
  own_sshd_ = std::make_unique<PortWait>(loop_, HostPort{address, plan_->mpi.ssh_port},
                                         [this, address, done = std::move(done)] {
                                           AnnounceSshd(address);
                                           std::function<void()> go_on = done;  // held by what is destroyed next
                                           own_sshd_.reset();
                                           ReachOthers(std::move(go_on));
                                         });
}

void MpiNode::ReachOthers(std::function<void()> done) {
  RemoteStartWait::Options wait;
  for (const ModeNode& node : plan_->nodes) {
    const std::string address = AddressOf(node);
    if (&node - plan_->nodes.data() == plan_->index) continue;
    wait.hosts.push_back(address);
    wait.names[address] = node.name;
  }
  wait.agent = Agent();
  // The user's own agent, or options of it, may know ways that are not this port.
  const bool plain = wait.agent.front() == "ssh" && !options_.environment.contains("OMPI_MCA_plm_rsh_args");
  wait.port = plain ? plan_->mpi.ssh_port : 0;
  wait.environment = options_.environment;
  if (is_model_arts()) wait.port_answers = AnnounceSshd;
  reach_ = std::make_unique<RemoteStartWait>(loop_, children_, std::move(wait), [this, done = std::move(done)] {
    const std::function<void()> go_on = done;  // held by what is destroyed next
    reach_.reset();
    go_on();
  });
}

std::string MpiNode::Missing() const {
  if (own_sshd_) {
    return absl::StrCat("this node's own sshd does not answer at port ", plan_->mpi.ssh_port, " (",
                        own_sshd_->last_error(), ")");
  }
  return reach_ == nullptr ? "" : reach_->missing();
}

void MpiNode::StopWaiting() {
  own_sshd_.reset();
  reach_.reset();
}

void MpiNode::AddTo(Environment* environment) const {
  if (front_) front_->AddTo(environment);
  if (options_.taskd_rsh) (*environment)["OMPI_MCA_plm_rsh_agent"] = absl::StrCat(options_.program, " rsh");
}

void MpiNode::On(const v1::MpirunCall& call) {
  if (!front_ || plan_->index == 0 || !call.ended()) return;
  last_code_ = call.code();
  if (call.number() == kAllCalls) {
    front_->Release(call.code());
  } else {
    front_->Ended(call.number(), call.code());
  }
}

void MpiNode::CommandStarts() const {
  if (!is_model_arts()) return;
  if (plan_->index == 0) {
    AnnounceMpirun(*plan_);
  } else {
    WriteToStdout("[run_mpi] the training log is in worker-0\n");
  }
}

void MpiNode::CommandEnded(int code) {
  if (plan_->index != 0) return;
  if (is_model_arts()) AnnounceMpirunEnd(code);
  if (front_) member_->Mpirun(kAllCalls, true, code);
}

// Fronts end when mpirun does, so CMD of another node may well have ended before node 0's.
std::string MpiNode::Why(int code) const { return last_code_ == code ? ", as node 0's mpirun" : ""; }

void MpiNode::End() {
  ending_ = true;
  StopWaiting();
  if (sshd_timer_) loop_->Cancel(*sshd_timer_);
  // Gone when this returns: the next job's sshd needs the port. What its sessions leave behind is the group's.
  if (sshd_ == 0) return;
  children_->Signal(sshd_, SIGKILL);
  waitpid(sshd_, nullptr, 0);
  sshd_ = 0;
}

}  // namespace taskd::modes
