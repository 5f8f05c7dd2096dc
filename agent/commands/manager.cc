#include "agent/commands/manager.h"

#include <optional>

#include "absl/strings/str_cat.h"
#include "agent/commands/job_flags.h"
#include "common/environment.h"
#include "common/log_file.h"
#include "common/own_process.h"
#include "common/switch.h"
#include "common/unsupported.h"
#include "manager/manager.h"

namespace taskd::commands {
namespace {

class ManagerCommand : public Command {
 public:
  void AddFlags(Flags& flags) override {
    job_ = flags.Add("--job", options_.job, "NAMESPACE/NAME; without it any job name is this job's");
    flags.Add("--default-job", options_.default_job,
              "what the job is called without --job [the task id, else HOST-PID]");
    flags.Add("--task-id", options_.task_id, "the job's id at ClusterD");
    flags.Add("--nodes", options_.nodes, "number of nodes").Range(0, 65536);
    flags.Add("--procs-per-node", options_.procs_per_node, "training processes of a node").Range(0, 4096);
    flags.Add("--listen", options_.listen, "HOST:PORT of gRPC [POD_IP:9601, 127.0.0.1:9601 without POD_IP]");
    http_ = flags.Add("--http", options_.http, "HOST:PORT of /healthz and /metrics").ShowDefault();
    flags.Add("--http-host", options_.http_host,
              "names, separated by commas, under which a browser may ask for --http [this machine's]");
    flags.Add("--state-dir", options_.state_dir, "keeps the wanted state [<runtime folder>/<task id>/manager]");
    flags.Add("--ledger", options_.ledger,
              "keeps where the job's time went there, for all attempts of the job and task id [--state-dir]");
    flags.Add("--switch-file", options_.switch_file, "mounted profilingSwitch to follow").ShowDefault();
    flags.Add(
        "--marks", options_.marks,
        absl::StrCat("record these from the start: ", kSwitchKindsRule, ". A switch that --state-dir has kept wins"));
    flags.Add("--clusterd", options_.clusterd, "HOST:PORT of ClusterD [MINDX_SERVER_IP:8899]");
    flags.Add("--report-fault", options_.report_fault, "report nodes that slow the job down to ClusterD");
    flags.Add(
        "--on-slow", options_.on_slow.on_slow,
        "report; rehearse: decide by its price whether a slow node should be taken out, and do nothing; order: decide, "
        "and send an order to --order-to [report]");
    flags.Add(
        "--order-to", options_.on_slow.order_to,
        "receivers of orders, separated by commas: command:PATH, nvrx:DIR, clusterd, nvsentinel[:SOCKET][+execute]");
    flags.Add("--on-slow-when", options_.on_slow.on_slow_when,
              "verdicts that are worth a decision [cause=compute,memory,host,network,dataloader;confidence>=0.95;"
              "open>=50 steps;cost>=5%]");
    flags.Add("--remaining", options_.on_slow.remaining,
              "hours that the job still has to run [as long as it has run so far, at most 24]");
    flags.Add("--evictions", options_.on_slow.evictions, "N/H: at most N nodes in H hours [1/1, and 3 a job]");
    AddDaemonFlags(flags, options_);
  }

  absl::StatusOr<bool> Run() override {
    options_.http_is_default = !http_->given();
    if (!job_->on_command_line()) options_.job = FullJobName(options_.job);  // TASKD_JOB
    options_.token = TokenOfEnvironment();
    options_.secret = SecretOfEnvironment();
    options_.not_supported = UnsupportedRequests(OwnEnvironment());
    CloseProcess();
    TakeLogVariables(OwnEnvironment(), "manager.log");
    absl::Status status = manager::RunManager(options_);
    // The launcher says which port it takes in its place.
    if (absl::IsAlreadyExists(status) && ValueOf(OwnEnvironment(), "TASKD_STARTED_BY") == "run") return false;
    if (!status.ok()) return status;
    return true;
  }

 private:
  manager::ManagerOptions options_;
  std::optional<Flag> job_;
  std::optional<Flag> http_;
};

}  // namespace

std::unique_ptr<Command> MakeManagerCommand() { return std::make_unique<ManagerCommand>(); }

}  // namespace taskd::commands
