// Waiting for other nodes: until their names resolve, a port of theirs answers, ssh to them works.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "agent/process/child_processes.h"
#include "agent/process/resolver.h"
#include "common/event_loop.h"
#include "common/unique_fd.h"

namespace taskd::modes {

// All on the loop's thread; destroying one ends the wait. None has a time limit of its own: the caller has one, and
// reports missing(), a line for people, when it expires.

// Until all names have an address. The result: the first IPv4 of each; the name itself where there is only IPv6.
class NameWait {
 public:
  using Done = std::function<void(std::map<std::string, std::string> addresses)>;
  NameWait(EventLoop* loop, std::vector<std::string> names, Done done);
  ~NameWait();
  NameWait(const NameWait&) = delete;
  NameWait& operator=(const NameWait&) = delete;

  std::string missing() const;  // "b, c do not resolve (Name or service not known)"

 private:
  void Next();

  EventLoop* const loop_;
  const Done done_;
  std::deque<std::string> open_;
  std::map<std::string, std::string> found_;
  std::string last_error_;
  size_t failed_in_a_row_ = 0;
  process::Resolver resolver_;
  std::vector<EventLoop::TimerId> timers_;
};

// Until a TCP connection to HOST:PORT can be made.
class PortWait {
 public:
  PortWait(EventLoop* loop, HostPort address, std::function<void()> done);
  ~PortWait();
  PortWait(const PortWait&) = delete;
  PortWait& operator=(const PortWait&) = delete;

  const std::string& last_error() const { return last_error_; }

 private:
  void Resolve();
  void Connect(process::SocketAddress address);
  void Connected(int error);
  void Retry(std::string why);
  void Close();

  EventLoop* const loop_;
  const HostPort address_;
  const std::function<void()> done_;
  std::string last_error_ = "no answer yet";
  process::Resolver resolver_;
  UniqueFd fd_;
  std::optional<EventLoop::TimerId> timer_;  // of the attempt under way, or until the next
};

// Until `AGENT... HOST true` succeeds for every host, after the port answers. At most 16 at a time.
class RemoteStartWait {
 public:
  struct Options {
    std::vector<std::string> hosts;            // as passed to the agent
    std::map<std::string, std::string> names;  // of hosts, for people; a host without one is shown as it is
    int port = 22;                             // 0: only the agent knows how to get there
    std::vector<std::string> agent;            // "ssh", "-p", "36666", ...
    std::map<std::string, std::string> environment;
    std::function<void(const std::string& host)> port_answers;  // may be empty
  };
  RemoteStartWait(EventLoop* loop, process::ChildProcesses* children, Options options, std::function<void()> done);
  ~RemoteStartWait();
  RemoteStartWait(const RemoteStartWait&) = delete;
  RemoteStartWait& operator=(const RemoteStartWait&) = delete;

  // "no way to start processes on b (10.0.0.2, tcp port 22: Connection refused), c (10.0.0.3, ssh: ...)"
  std::string missing() const;

 private:
  enum class Stage { kTcp, kSsh };
  struct Host {
    Stage stage = Stage::kTcp;
    std::string error = "no answer yet";
    std::unique_ptr<PortWait> port;
    pid_t pid = 0;
    UniqueFd words;  // the agent's stderr
  };

  void Fill();
  void TryAgent(const std::string& host);
  void AgentEnded(const std::string& host, int code);

  EventLoop* const loop_;
  process::ChildProcesses* const children_;
  const Options options_;
  const std::function<void()> done_;
  std::deque<std::string> queue_;
  std::map<std::string, Host> under_way_;
  std::vector<EventLoop::TimerId> timers_;
  // Ends of the agent come after this object, too.
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace taskd::modes
