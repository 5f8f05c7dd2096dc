// The manager and the proxy that a launcher, or a mode's node, starts beside the training. Ranks do not depend on them:
// what cannot be started is reported once, and training goes on without marks.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/address.h"
#include "common/job_file.h"
#include "common/unique_fd.h"

namespace taskd::process {

// The variables that let a rank's marks reach `library`, libtaskd.so: preloaded, as NVTX's tool and as NCCL's profiler.
// What the user's `environment` sets for them stays in force: another NVTX tool gets every call as well
// (TASKD_NVTX_CHAIN), another profiler of NCCL's stays the one. Empty for an empty `library`.
std::map<std::string, std::string> MarkVariables(const std::string& library,
                                                 const std::map<std::string, std::string>& environment);

// Whether a daemon ended as by SIGTERM or SIGINT. A scheduler sends these to every process of a job, in any order: such a
// daemon is started again only when it has been shown that the launcher goes on, kAfterStopSignal later.
bool EndedByStopSignal(int wait_status);
inline constexpr std::chrono::milliseconds kAfterStopSignal{1000};

// How long a daemon that has ended is left down: twice as long each time, as its reason may last. One that has lived for
// kSoundLife begins anew.
class RestartPause {
 public:
  static constexpr std::chrono::milliseconds kFirst{500};
  static constexpr std::chrono::milliseconds kLongest{60'000};
  static constexpr std::chrono::minutes kSoundLife{10};

  std::chrono::milliseconds After(std::chrono::nanoseconds lived);

 private:
  std::chrono::milliseconds next_ = kFirst;
};

struct DaemonOptions {
  int nodes = 0;  // of the job; 0: not known beforehand
  int procs_per_node = 0;
  std::map<std::string, std::string> environment;  // the launcher's own
  std::string
      default_job;  // what the job is called where TASKD_JOB does not say it, namespace/name; empty: the manager's own choice
  std::string label;     // for the folder of a job without any name: "train" of train.py; may be empty
  bool forgets = false;  // the manager's state goes with this launcher, whatever TASKD_TASK_ID says
  // Not empty: several launchers of this node share its proxy, and this names its folder; the same for them and for
  // nobody else.
  std::string shared;
  bool starts_proxy = true;  // of several launchers: this is the one that does, and ends it after the others
  int patience_s = 0;        // for the others' end
};

// Thread safety: one thread.
class Daemons {
 public:
  explicit Daemons(DaemonOptions options);
  ~Daemons() { End(); }
  Daemons(const Daemons&) = delete;
  Daemons& operator=(const Daemons&) = delete;

  // The job's secret, for both; before they are started. Empty, or with the operator's TLS: none.
  void SetSecret(const std::string& secret) { secret_ = secret; }
  // The job's manager on the first free port from 9601 on: on loopback where `host`, which the other nodes reach this
  // one by, is. HOST:PORT as they reach it; empty if it did not start within 1.5 s.
  std::string StartManager(const std::string& host);
  // Whether a process on this machine listens there.
  static bool Answers(const HostPort& address);
  // The job's manager at exactly this port: on all addresses unless the host is a loopback one. False if it did not
  // start within 1.5 s.
  bool StartManagerAt(const HostPort& reached);
  // Chooses where the job's marks go, and says so in a line. Returns the folder's name, for the proxies of all nodes.
  std::string ChooseMarkFolder();
  // `manager`: HOST:PORT; empty: none, and so no proxy. `mark_folder`: ChooseMarkFolder() of the job's first node. Of
  // several launchers the others join theirs.
  void StartProxy(int node_rank, const std::string& manager, const std::string& mark_folder);
  // After how long StartAgain(pid) is to be called. Nothing: it is none of these, was told to end, or refuses its options.
  std::optional<std::chrono::milliseconds> OnExit(pid_t pid, int wait_status);
  // The daemon that was `pid`. Nothing happens after ExpectEnd().
  void StartAgain(pid_t pid);

  std::map<std::string, std::string> RankEnvironment(const std::string& manager) const;
  std::vector<pid_t> pids() const;
  // This launcher's own, which no other user can replace (common/runtime_dir.h): run-<pid> in the runtime folder, else
  // a fresh one; empty if neither can be made. Goes at its end, or, in the runtime folder, with a later launcher's
  // start if this one is killed.
  // Of the launchers that share a proxy, the one that starts it has run-<shared>.
  const std::string& folder() const { return folder_; }

  // The job ends: what daemons lose from now on is not worth a line, theirs or ours.
  void ExpectEnd();
  // As late as End() may return: a scheduler kills this process soon after.
  void EndBy(std::chrono::steady_clock::time_point deadline) { deadline_ = deadline; }
  // Begins to end the proxy, which first writes what was recorded. False: none of this launcher's runs any more. One
  // that launchers share is ended when each of the others has asked for this, or is gone; until then ask again.
  bool EndProxy();
  // Waits for the other launchers that share the proxy. Ends both and waits, at most kEndPatience for each since it was
  // asked to, and until the deadline.
  void End();
  static constexpr std::chrono::seconds kEndPatience{6};

 private:
  struct Daemon {
    std::string name;
    std::vector<std::string> argv;
    std::map<std::string, std::string> environment;
    pid_t pid = 0;
    pid_t ended_pid = 0;  // of its last life, while it is down
    std::chrono::steady_clock::time_point started_at;
    RestartPause pause;
    UniqueFd stdin_end;  // of a socket; it ends when this is closed, also because this process was killed
    std::optional<std::chrono::steady_clock::time_point> asked_to_end;
  };

  // Whether this launcher is itself a rank's or a mode's command: the node's proxy is the outer launcher's.
  bool HasOuterProxy() const;
  // Holds the proxy of several launchers until this one's end.
  void JoinProxy();
  bool IsNeededByOthers() const;
  void AwaitOtherLaunchers() const;
  // The first port of `ports` from `listen.port` on; as the other nodes reach it. 0: none.
  int StartManagerFrom(HostPort listen, int ports);
  void PrepareManager(const HostPort& listen);
  // Waits until the manager answers or the wait times out. False: it has ended, or another process has the port.
  bool AwaitManager(const HostPort& listen, int* exit_code);
  bool Start(Daemon& daemon);
  static void AskToEnd(Daemon& daemon);
  void AwaitEnd(Daemon& daemon, std::chrono::steady_clock::time_point deadline);
  void SetSecretOf(Daemon& daemon) const;
  void LeaveJobFile(const std::string& manager);
  void TakeAnyPortIfTaken(const std::string& variable, const std::string& flag, int port,
                          std::vector<std::string>& argv) const;
  std::string Variable(const std::string& name) const;

  const DaemonOptions options_;
  std::string program_;  // this one
  std::string library_;  // libtaskd.so; empty: it was not found
  std::string folder_;   // the proxy's socket, the manager's state
  UniqueFd lock_;        // held as long as this process lives: the folder is in use
  UniqueFd port_;        // held while this launcher's manager is to have its port
  UniqueFd joined_;      // held while this launcher needs the proxy of another one
  std::string socket_;
  std::string secret_;
  std::vector<std::string> made_;  // MarkFolder::made
  std::string marks_line_;         // what is said once there is a proxy to write them
  bool ending_ = false;
  std::chrono::steady_clock::time_point deadline_ = std::chrono::steady_clock::time_point::max();
  std::unique_ptr<JobFileHandle> job_file_;  // where the manager is another node's
  Daemon manager_;
  Daemon proxy_;
};

}  // namespace taskd::process
