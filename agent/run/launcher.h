// `taskd run` on one node: joins the job, runs the node's ranks as the rendezvous says, and ends with the job's code.
#pragma once

#include <sys/types.h>

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "agent/run/options.h"
#include "agent/run/rendezvous.h"

namespace taskd {

// What the launcher that hosts the root store can be asked for, from any thread, until LauncherHooks::at_end was
// called.
struct LauncherControl {
  std::function<void(int id)> collect_stacks;              // of all nodes; LauncherHooks::on_stacks answers
  std::function<void(const std::string& reason)> restart;  // costs a restart; without one left the job ends with code 1
  std::function<void(const std::string& reason)> stop;     // the job ends with code 1
};

// What other parts of TaskD add to a job. Each may be empty. None may take longer than 2 s: the launcher answers the
// root's pings on the same thread. On the launcher's thread if nothing else is said.
struct LauncherHooks {
  // Once, before any other but `on_other_exit` and `spare_pids`: what the parts of this job prove to each other. The
  // operator's TASKD_TOKEN, or one that the launcher made that hosts the root store. Not to be logged.
  std::function<void(const std::string& secret)> on_secret;
  // On the launcher that hosts the root store, before anybody joins: starts the job's manager; its HOST:PORT, which
  // goes into every Assignment. Not called if options.manager says something.
  std::function<std::string()> start_manager;
  // There too, before anybody joins.
  std::function<void(const LauncherControl&)> control;
  // Once on every node, before its ranks are started for the first time: starts the node's proxy.
  std::function<void(const Assignment&)> before_first_start;
  // Added to the environment of each rank.
  std::function<std::map<std::string, std::string>(const Assignment&)> rank_environment;
  // Processes that the hooks above have started; asked after each. They are not ended with the ranks.
  std::function<std::vector<pid_t>()> spare_pids;
  // One of them, or anything else that this process started and that is no rank, has ended.
  std::function<void(pid_t pid, int wait_status)> on_other_exit;
  // At the root, on its thread: {"event":"started|exited|restarting|ended","round":..,"rank":..,"node":..,"pid":..,
  // "code":..,"signal":..,"reason":..,"time_ns":..}, each where it applies.
  std::function<void(const std::string& json)> on_event;
  // Stacks of the ranks (local rank -> pid), for a person to read. `on_stacks`: at the root, on its thread, one node's.
  std::function<std::string(const std::map<int, pid_t>&)> collect_stacks;
  std::function<void(int id, const std::string& text)> on_stacks;
  // No rank runs any more; ends what the hooks have started.
  std::function<void()> at_end;
};

// Once a process, before its first thread: blocks signals and forks the guard. `environment`: the launcher's own, which
// the ranks inherit. The result is the exit code of the program; everything that people have to know went to stderr.
int RunLauncher(RunOptions options, std::map<std::string, std::string> environment, LauncherHooks hooks);

}  // namespace taskd
