#include "agent/mpi_node.h"

#include <signal.h>

#include <iostream>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "agent/modes/node_files.h"
#include "common/log.h"
#include "common/store/listen.h"
#include "common/unique_fd.h"

namespace taskd {
namespace {

// Stands for every call of mpirun that node 0's command has not made: the command has ended.
constexpr uint32_t kAllCalls = UINT32_MAX;

}  // namespace

MpiNode::MpiNode(EventLoop* loop, ChildProcesses* children, JobMember* member, const ModePlan* plan, Options options)
    : loop_(loop), children_(children), member_(member), plan_(plan), options_(std::move(options)) {
  remote_ = std::make_unique<RemoteCommands>(loop, children, options_.environment,
                                             [member](v1::NodeReport report) { member->Send(std::move(report)); });
}

absl::Status MpiNode::Start() {
  if (plan_->mpi_front) {
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
    spdlog::info("port {} is listened on already ({}): that sshd is used", port, HolderOfPort(port));
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
  auto value = [this](const char* name) {
    auto found = options_.environment.find(name);
    return found == options_.environment.end() ? std::string() : found->second;
  };
  std::vector<std::string> words = absl::StrSplit(value("OMPI_MCA_plm_rsh_agent"), ' ', absl::SkipEmpty());
  if (words.empty()) words = {"ssh"};
  if (absl::EndsWith(words.front(), "ssh")) {
    words.insert(words.end(), {"-o", "BatchMode=yes", "-o", "ConnectTimeout=10"});
    if (is_model_arts()) words.insert(words.end(), {"-p", std::to_string(plan_->mpi.ssh_port)});
  }
  for (absl::string_view word : absl::StrSplit(value("OMPI_MCA_plm_rsh_args"), ' ', absl::SkipEmpty())) {
    words.emplace_back(word);
  }
  return words;
}

void MpiNode::WaitForOthers(std::function<void()> done) {
  if (!plan_->mpi.checks_ssh || options_.taskd_rsh || plan_->nodes.size() == 1) return done();
  RemoteStartWait::Options wait;
  for (size_t i = 0; i < plan_->nodes.size(); ++i) {
    if (static_cast<int>(i) == plan_->index) continue;
    const std::string& name = plan_->nodes[i].name;
    auto found = options_.addresses.find(name);
    wait.hosts.push_back(found == options_.addresses.end() ? name : found->second);
    wait.names[wait.hosts.back()] = name;
    if (!is_model_arts()) continue;
    std::cout << "[run_mpi] hostname: " << name << "\n[run_mpi] resolved ip: " << wait.hosts.back() << std::endl;
  }
  wait.agent = Agent();
  // The user's own agent, or options of it, may know ways that are not this port.
  const bool plain = wait.agent.front() == "ssh" && !options_.environment.contains("OMPI_MCA_plm_rsh_args");
  wait.port = plain ? plan_->mpi.ssh_port : 0;
  wait.environment = options_.environment;
  if (is_model_arts()) {
    wait.port_answers = [](const std::string& host) {
      std::cout << "[run_mpi] the sshd of ip " << host << " is up" << std::endl;
    };
  }
  reach_ = std::make_unique<RemoteStartWait>(loop_, children_, std::move(wait), [this, done = std::move(done)] {
    const std::function<void()> go_on = done;  // held by what is destroyed next
    reach_.reset();
    go_on();
  });
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
    std::cout << "[run_mpi] the training log is in worker-0" << std::endl;
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
  reach_.reset();
  if (sshd_ != 0) children_->Signal(sshd_, SIGTERM);
}

}  // namespace taskd
