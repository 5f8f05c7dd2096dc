// What `taskd run` brings along for a job: on every node the proxy and stacks of the ranks, where the root store is the
// manager and the supervision of the job. Ranks do not depend on any of it.
#pragma once

#include <sys/types.h>

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "agent/process/daemons.h"
#include "agent/run/launcher_observer.h"
#include "agent/run/options.h"
#include "agent/run/supervision.h"
#include "common/environment.h"
#include "proto/channel.h"

namespace taskd {

// Must outlive RunLauncher(); ends afterwards what it has started.
class JobServices : public LauncherObserver {
 public:
  // `environment`: the launcher's own.
  JobServices(const RunOptions& options, const Environment& environment);

  void OnSecret(const std::string& secret) override;
  std::string StartManager() override;
  void OnHosting(const LauncherControl& control) override { supervision_.SetControl(control); }
  void BeforeStart(const Assignment& assignment) override;
  std::map<std::string, std::string> RankEnvironment(const Assignment& assignment) override;
  std::optional<std::string> CollectStacks(const std::map<int, pid_t>& pids) override {
    return supervision_.Collect(pids);
  }
  void OnOtherExit(pid_t pid, int wait_status) override { daemons_.OnExit(pid, wait_status); }
  std::vector<pid_t> SparePids() override { return daemons_.pids(); }
  void OnEnd() override { supervision_.SetControl({}); }
  void OnEvent(const LauncherEvent& event) override { supervision_.OnEvent(event); }
  void OnStacks(int id, const std::string& text) override { supervision_.OnStacks(id, text); }

 private:
  void StartSupervision(const std::string& manager);

  const std::string endpoint_;  // where the nodes meet, HOST:PORT
  const bool manager_named_;
  SupervisionClient::Options client_;
  Daemons daemons_;
  bool proxy_started_ = false;
  RunSupervision supervision_;  // last: what it still has to report is for the manager
};

}  // namespace taskd
