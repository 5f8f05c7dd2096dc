// Ray's own part of a node in mode ray: `ray start` before CMD, `ray stop` at the end, and what runs in between.
#pragma once

#include <sys/types.h>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "agent/modes/reach.h"
#include "agent/process/child_processes.h"
#include "common/environment.h"
#include "common/event_loop.h"

namespace taskd::modes {

// On the loop's thread.
class RayNode {
 public:
  struct Options {
    std::vector<std::string> start;  // `ray start ...`
    Environment environment;         // of that and of `ray stop`
    std::optional<HostPort> head;    // where Ray's head answers; empty: this node is it
  };

  // Both outlive this.
  RayNode(EventLoop* loop, process::ChildProcesses* children, Options options);
  ~RayNode();
  RayNode(const RayNode&) = delete;
  RayNode& operator=(const RayNode&) = delete;

  // Node 0's `ray start` comes first; the others' need its port.
  bool is_head() const { return !options_.head; }
  void WaitForHead(std::function<void()> done);
  std::string Missing() const;  // why WaitForHead() lasts
  void StopWaiting() { head_.reset(); }

  // `done` gets what `ray start` ended with.
  absl::Status Start(std::function<void(int code)> done);
  // `ray start` has succeeded: what it left running is watched from now on.
  void Started();
  bool started() const { return started_; }
  // "Ray's raylet has ended by itself"; empty: that was no process of Ray's.
  std::string WhyEnded(pid_t pid) const;

  // `ray stop`; `done` when it has ended or was killed after 8 s. False: it cannot be started, `done` is not called.
  bool Stop(std::function<void()> done);

 private:
  void CancelTimer();

  EventLoop* const loop_;
  process::ChildProcesses* const children_;
  const Options options_;
  std::unique_ptr<PortWait> head_;
  bool started_ = false;
  std::map<pid_t, std::string> processes_;  // names of those that have to live as long as the node
  std::optional<EventLoop::TimerId> stop_timer_;
};

}  // namespace taskd::modes
