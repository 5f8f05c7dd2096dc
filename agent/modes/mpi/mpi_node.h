// What MPI needs of a node besides its command: a way to start processes there (sshd, or `taskd rsh`), and the front of
// mpirun.
#pragma once

#include <sys/types.h>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "agent/modes/job_member.h"
#include "agent/modes/mpi/local_commands.h"
#include "agent/modes/mpi/mpirun_front.h"
#include "agent/modes/reach.h"

namespace taskd::modes {

// On the loop's thread.
class MpiNode {
 public:
  struct Options {
    std::string program;                             // this one
    std::string folder;                              // of this run's own; empty: none could be made
    bool taskd_rsh = false;                          // mpirun starts processes through the manager
    Environment environment;                         // of commands that other nodes ask for, and of sshd
    std::map<std::string, std::string> addresses;    // of the nodes' names
    std::function<void(const std::string&)> failed;  // sshd has ended
  };

  // All outlive this.
  MpiNode(EventLoop* loop, process::ChildProcesses* children, JobMember* member, const ModePlan* plan, Options options);

  // UNAVAILABLE, NOT_FOUND: what cannot be had on this node.
  absl::Status Start();
  // Node 0: until processes can be started on the other nodes. At once where nothing is to be looked at.
  void WaitForOthers(std::function<void()> done);
  std::string Missing() const;
  void StopWaiting();

  void AddTo(Environment* environment) const;
  void On(const v1::MpirunCall& call);
  void On(const v1::RemoteCommand& command) { local_commands_->On(command); }
  // Log lines of run_mpi.sh, and word to the other nodes.
  void CommandStarts() const;
  void CommandEnded(int code);
  // Others: why CMD ends with that code, after "has ended with code 7"; empty if it is its own.
  std::string Why(int code) const;
  // Before this node's processes: what other nodes' mpirun started here. False: nothing, `done` is not called.
  bool EndRemote(std::function<void()> done) { return local_commands_->End(std::move(done)); }
  // After this node's processes.
  void End();

 private:
  absl::Status StartSshd();
  std::vector<std::string> Agent() const;
  std::string AddressOf(const ModeNode& node) const;
  void ReachOthers(std::function<void()> done);
  bool is_model_arts() const { return !plan_->mpi.sshd_config.empty(); }

  EventLoop* const loop_;
  process::ChildProcesses* const children_;
  JobMember* const member_;
  const ModePlan* const plan_;
  const Options options_;
  std::unique_ptr<MpirunFront> front_;
  std::unique_ptr<LocalCommands> local_commands_;
  std::unique_ptr<PortWait> own_sshd_;
  std::unique_ptr<RemoteStartWait> reach_;
  pid_t sshd_ = 0;
  std::optional<EventLoop::TimerId> sshd_timer_;  // until its port is free
  std::optional<int> last_code_;                  // of node 0's mpirun
  bool ending_ = false;
};

}  // namespace taskd::modes
