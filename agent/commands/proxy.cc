#include "agent/commands/proxy.h"

#include <ctime>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "agent/commands/job_flags.h"
#include "common/environment.h"
#include "common/log_file.h"
#include "common/own_process.h"
#include "proxy/proxy.h"

namespace taskd::commands {
namespace {

class ProxyCommand : public Command {
 public:
  void AddFlags(Flags& flags) override {
    flags.Add("--manager", options_.manager, "HOST:PORT of the manager").ShowDefault();
    listen_ = flags.Add("--listen", options_.listen, "HOST:PORT of gRPC health").ShowDefault();
    flags.Add("--socket", options_.socket,
              "the ranks' socket [/tmp/taskd-<uid>/<MINDX_TASK_ID or default>/proxy.sock]");
    // Not the manager's variable: where both are started in one environment they would want one port.
    flags.Add("--http", options_.http, "HOST:PORT of /metrics, for Prometheus [none]")
        .FromEnvironment({"TASKD_PROXY_HTTP"});
    flags.Add("--http-host", options_.http_host,
              "names, separated by commas, under which a browser may ask for --http [this machine's]");
    // Where no flag gives it: our own variable, then those of the frameworks' launchers.
    flags.Add("--node-rank", options_.node_rank, "rank of this node [RANK, MS_NODE_RANK, 0]")
        .Range(0, 1 << 24)
        .FromEnvironment({"TASKD_NODE_RANK", "RANK", "MS_NODE_RANK"});
    profiling_dir_ = flags.Add("--profiling-dir", profiling_folder_,
                               "where the mark files go [/user/cluster-info/profiling where it can be written, else "
                               "taskd-<job>-<date>-<time> in $SLURM_SUBMIT_DIR or the working folder, else none are "
                               "written]");
    flags.Add("--disk-limit-mb", options_.disk_limit_mb, "limit of the mark files, 0 for none")
        .NonNegative()
        .ShowDefault();
    flags.Add("--backlog-mb", options_.rank_backlog_mb, "memory for a rank's marks while storage hangs")
        .Range(0, 1 << 20)
        .ShowDefault();
    flags.Add("--node-backlog-mb", options_.node_backlog_mb, "the same, for all ranks of the node")
        .Range(0, 1 << 20)
        .ShowDefault();
    flags.Add("--switch-file", options_.switch_file, "followed while no manager answers").ShowDefault();
    AddDaemonFlags(flags, options_);
  }

  absl::StatusOr<bool> Run() override {
    options_.listen_is_default = !listen_->given();
    if (profiling_dir_->given() && profiling_folder_.empty()) {
      return absl::InvalidArgumentError("--profiling-dir: is empty");
    }
    const Environment environment = OwnEnvironment();
    options_.mark_folder = WishesOfEnvironment(environment);
    options_.mark_folder.given = profiling_folder_;
    options_.token = TokenOfEnvironment();
    options_.secret = TokenOfEnvironment().empty() ? SecretOfEnvironment() : TokenOfEnvironment();
    CloseProcess();
    TakeLogVariables(environment, absl::StrCat("taskd-proxy-", options_.node_rank, "-", time(nullptr), ".log"));
    if (absl::Status status = proxy::RunProxy(options_); !status.ok()) return status;
    return true;
  }

 private:
  proxy::ProxyOptions options_;
  std::string profiling_folder_;
  std::optional<Flag> listen_;
  std::optional<Flag> profiling_dir_;
};

}  // namespace

std::unique_ptr<Command> MakeProxyCommand() { return std::make_unique<ProxyCommand>(); }

}  // namespace taskd::commands
