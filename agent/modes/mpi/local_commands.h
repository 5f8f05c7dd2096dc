// Commands that another node's mpirun asks for through the manager (`taskd rsh`): run here as children of `taskd run`.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>

#include "agent/process/child_processes.h"
#include "common/event_loop.h"
#include "common/unique_fd.h"
#include "taskd/v1/job_link.pb.h"

namespace taskd::modes {

// On the loop's thread.
class LocalCommands {
 public:
  // `send`: goes to the manager. `environment`: of the commands.
  LocalCommands(EventLoop* loop, process::ChildProcesses* children, std::map<std::string, std::string> environment,
                std::function<void(v1::NodeReport)> send);
  ~LocalCommands();
  LocalCommands(const LocalCommands&) = delete;
  LocalCommands& operator=(const LocalCommands&) = delete;

  void On(const v1::RemoteCommand& command);
  // SIGTERM to those that run; `done` when none does any more. False: none runs, `done` is not called.
  bool End(std::function<void()> done);

 private:
  struct Command {
    pid_t pid = 0;
    UniqueFd in, out, err;
    std::string input;  // not yet taken
    bool input_ends = false;
    int code = -1;  // -1: runs
  };

  void Start(uint64_t id, const std::string& text);
  void Write(uint64_t id);
  void Read(uint64_t id, bool is_out);
  void EndIfDone(uint64_t id);
  bool AnyRuns() const;
  void Watch(int fd, uint32_t events, EventLoop::FdCallback callback);
  void Unwatch(UniqueFd& fd);
  v1::NodeReport Report(uint64_t id) const;

  EventLoop* const loop_;
  process::ChildProcesses* const children_;
  const std::map<std::string, std::string> environment_;
  const std::function<void(v1::NodeReport)> send_;
  std::map<uint64_t, Command> commands_;
  std::set<int> watched_;  // descriptors that the loop looks at
  std::function<void()> ended_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace taskd::modes
