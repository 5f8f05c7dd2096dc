// What a launcher reports about its job to the rest of TaskD, and asks of it.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "agent/run/launcher_event.h"
#include "agent/run/rendezvous_messages.h"

namespace taskd::run {

// What the launcher that hosts the root store can be asked for, from any thread, until LauncherObserver::OnEnd() has
// returned.
struct LauncherControl {
  std::function<void(int id)> collect_stacks;              // of all nodes; LauncherObserver::OnStacks answers
  std::function<void(const LookMessage&)> look;            // on all nodes; LauncherObserver::OnEvidence answers
  std::function<void(const std::string& reason)> restart;  // costs a restart; without one left the job ends with code 1
  std::function<void(const std::string& reason)> stop;     // the job ends with code 1
};

// What is not overridden does nothing. Two threads call it: the launcher's, in the order of the methods below, and the
// root's. No call may take longer than 2 s: both threads answer pings, and a launcher that is silent is lost.
class LauncherObserver {
 public:
  virtual ~LauncherObserver() = default;

  // ---- On the launcher's thread

  // Once: what the parts of this job prove to each other. The operator's TASKD_TOKEN, or one that the launcher made that
  // hosts the root store. Not to be logged.
  virtual void OnSecret(const std::string& /*secret*/) {}
  // On the launcher that hosts the root store, before anybody joins.
  virtual void OnHosting(const LauncherControl& /*control*/) {}
  // There too: chooses where the job's marks go. Returns the folder's name, which goes into every Assignment.
  virtual std::string ChooseMarkFolder() { return ""; }
  // There too, when it has joined itself, unless the options name a manager or want none: starts the job's manager; its
  // HOST:PORT, which goes into every Assignment. Empty: the job has none.
  virtual std::string StartManager() { return ""; }
  // On every node, before the ranks of each round are started.
  virtual void BeforeStart(const Assignment& /*assignment*/) {}
  // Added to the environment of each rank of that round.
  virtual std::map<std::string, std::string> RankEnvironment(const Assignment& /*assignment*/) { return {}; }
  // Stacks of the node's ranks (local rank -> pid), for a person to read. Nothing: this node does not answer.
  virtual std::optional<std::string> CollectStacks(const std::map<int, pid_t>& /*pids*/) { return std::nullopt; }
  // What is new of the hang on this node (EncodeEvidence). Nothing: this node does not answer.
  virtual std::optional<std::string> Look(const LookMessage& /*message*/, const std::map<int, pid_t>& /*pids*/) {
    return std::nullopt;
  }
  // A process that this observer started, or anything else that is no rank, has ended. After how long StartAgain(pid) is
  // to be called; nothing: never.
  virtual std::optional<std::chrono::milliseconds> OnOtherExit(pid_t /*pid*/, int /*wait_status*/) {
    return std::nullopt;
  }
  virtual void StartAgain(pid_t /*pid*/) {}
  // Processes that this observer has started and that are not to be ended with the ranks. Asked after each of
  // StartManager(), BeforeStart() and StartAgain().
  virtual std::vector<pid_t> SparePids() { return {}; }
  // The job ends, or this node's part in it: daemons that end are not started again from now on.
  virtual void OnEnding() {}
  // The scheduler kills this process soon after `deadline_ns` (EventLoop::NowNs()): by then the destructor has returned.
  virtual void OnDeadline(int64_t /*deadline_ns*/) {}
  // No rank of this node runs any more: ends what serves them. True: it goes on ending; asked again after OnOtherExit().
  virtual bool EndProxy() { return false; }
  // The launcher has stopped serving.
  virtual void OnEnd() {}

  // ---- On the root's thread, from OnHosting() on until RunLauncher() returns

  // Of the whole job.
  virtual void OnEvent(const LauncherEvent& /*event*/) {}
  // Whom the nodes that are here wait for, "nodes 2, 5-7 (3 of 8 here)"; empty: for nobody any more.
  virtual void OnWaiting(const std::string& /*waits_for*/) {}
  // One node's answer to LauncherControl::collect_stacks. From the network: any text.
  virtual void OnStacks(int /*id*/, const std::string& /*text*/) {}
  // The same of LauncherControl::look.
  virtual void OnEvidence(int /*hang*/, const std::string& /*text*/) {}
};

}  // namespace taskd::run
