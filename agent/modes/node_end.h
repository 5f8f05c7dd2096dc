// How a node of a mode ends: with its own command, with the job, with a signal, or because a wait took too long.
//
//   kStarting ──CommandRuns()──► kRunning ──┐
//       └──────────────EndWith()────────────┴──► kEnding ──nothing runs any more──► kDone ──► the loop stops
//
// A node whose part is over (NodeEnded) reports it to the manager and waits for the end of the whole job.
#pragma once

#include <signal.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "agent/modes/node_parts.h"
#include "agent/process/signals.h"
#include "agent/process/worker_exit.h"

namespace taskd::modes {

// On the loop's thread.
class NodeEnd {
 public:
  // `stop_starting`: no further step towards CMD is to be made.
  NodeEnd(NodeParts* parts, std::function<void()> stop_starting);

  // The number of CMD's processes on this node; 0: it serves until the job ends.
  void CommandRuns(size_t processes);
  // This node's part is over, or the job is: no step is to be made any more.
  bool ended() const { return own_code_.has_value() || ending(); }
  bool ending() const { return phase_ == Phase::kEnding || phase_ == Phase::kDone; }
  bool starting() const { return phase_ == Phase::kStarting; }
  bool done() const { return phase_ == Phase::kDone; }
  int exit_code() const { return exit_code_; }

  // This node's part is over. The job's code may be another node's.
  void NodeEnded(int code, const std::string& reason);
  // The job is over: ends what still runs here, prints `line`, and exits with `code`.
  // `signal`: that this process was sent, and ends because of; 0: none.
  void EndWith(int code, std::string line, int signal = 0);

  // What happens to the node.
  void OnCommandExit(const process::WorkerExit& exit);
  void OnJobState();                       // of the manager's: who is there
  void OnRefused(const std::string& why);  // this node cannot be part of the job
  void OnWaitIsOver(const std::string& line);
  process::SignalWatch::IfAlone OnSignal(int signal);
  void OnStopped();  // WorkerGroup's

 private:
  enum class Phase : uint8_t { kStarting, kRunning, kEnding, kDone };

  void NoPatience(int signal);
  void StopAll();
  void EndIfAlone();
  void SetTimer(int64_t delay_ns, std::function<void()> callback);
  void CancelTimers();

  NodeParts* const parts_;
  const std::function<void()> stop_starting_;
  Phase phase_ = Phase::kStarting;
  size_t left_ = 0;              // processes of CMD that have not ended
  std::optional<int> own_code_;  // of this node's part, once that is over
  std::optional<EventLoop::TimerId> timer_;
  int exit_code_ = 1;
  std::string last_line_;
  bool signalled_ = false;      // a signal that ends has come to this process
  int first_signal_ = SIGTERM;  // to CMD; 0: it may have had it already
  bool stops_all_ = false;
};

}  // namespace taskd::modes
