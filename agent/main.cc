// The program `taskd`: reads flags and environment, calls one library each.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "agent/diagnose_command.h"
#include "agent/modes/mpi/mpirun_front.h"
#include "agent/modes/mpi/rsh.h"
#include "agent/ranktable_command.h"
#include "agent/rdma_command.h"
#include "agent/route_command.h"
#include "agent/run_command.h"
#include "agent/simulate_command.h"
#include "agent/status_command.h"
#include "agent/store_command.h"
#include "agent/switch_command.h"
#include "agent/trace_command.h"
#include "common/log.h"
#include "common/printable.h"
#include "manager/manager.h"
#include "proto/channel.h"
#include "proxy/proxy.h"

namespace taskd {
namespace {

constexpr int kDone = 0;
constexpr int kFailed = 1;
constexpr int kWrongUsage = 2;

// "--node-rank" -> "TASKD_NODE_RANK"
std::string EnvironmentName(const std::string& flag) {
  std::string name = "TASKD_";
  for (char c : flag.substr(2)) name += c == '-' ? '_' : static_cast<char>(toupper(c));
  return name;
}

template <typename T>
CLI::Option* AddOption(CLI::App* app, const std::string& flag, T& value, const std::string& help) {
  return app->add_option(flag, value, help)->envname(EnvironmentName(flag));
}

CLI::Option* AddFlag(CLI::App* app, const std::string& flag, bool& value, const std::string& help) {
  return app->add_flag(flag, value, help)->envname(EnvironmentName(flag));
}

std::string Environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// Never a flag: command lines are visible to everybody.
std::string Token() { return Environment("TASKD_TOKEN"); }
// What `taskd run` hands to the daemons that it starts, where the operator gave no token.
std::string Secret() { return Environment("TASKD_SECRET"); }

int Fail(const std::string& command, const absl::Status& status) {
  // A list keeps its lines.
  std::vector<std::string> lines = absl::StrSplit(status.message(), "\n  ");
  for (std::string& line : lines) line = Printable(line, kShownLineBytes);
  std::cerr << command << ": " << absl::StrJoin(lines, "\n  ") << std::endl;
  return absl::IsInvalidArgument(status) ? kWrongUsage : kFailed;
}

struct Commands {
  ManagerOptions manager;
  ProxyOptions proxy;
  SwitchOptions change;
  StatusOptions status;
  DiagnoseOptions diagnose;
  TraceOptions trace;
  SimulateOptions simulate;
  StoreCommandOptions store;
  RankTableCommandOptions rank_table;
  RdmaCheckOptions rdma_check;
  RouteOptions route;
  std::string rdma_mode = "auto";
  CLI::Option* manager_http = nullptr;
  CLI::Option* proxy_listen = nullptr;
  CLI::App* manager_app = nullptr;
  CLI::App* proxy_app = nullptr;
  CLI::App* switch_app = nullptr;
  CLI::App* status_app = nullptr;
  CLI::App* diagnose_app = nullptr;
  CLI::App* trace_app = nullptr;
  CLI::App* simulate_app = nullptr;
  CLI::App* store_app = nullptr;
  CLI::App* rank_table_app = nullptr;
  CLI::App* rdma_app = nullptr;
  CLI::App* route_app = nullptr;
  CLI::App* rdma_env_app = nullptr;
};

void AddManager(CLI::App& app, Commands& commands) {
  CLI::App* sub = commands.manager_app = app.add_subcommand("manager", "the job's manager, in the foreground");
  ManagerOptions& options = commands.manager;
  AddOption(sub, "--job", options.job, "NAMESPACE/NAME; without it any job name is this job's");
  AddOption(sub, "--task-id", options.task_id, "the job's id at ClusterD");
  AddOption(sub, "--nodes", options.nodes, "number of nodes")->check(CLI::Range(0, 65536));
  AddOption(sub, "--procs-per-node", options.procs_per_node, "training processes of a node")
      ->check(CLI::Range(0, 4096));
  AddOption(sub, "--listen", options.listen, "HOST:PORT of gRPC [POD_IP:9601, 127.0.0.1:9601 without POD_IP]");
  commands.manager_http =
      AddOption(sub, "--http", options.http, "HOST:PORT of /healthz and /metrics")->capture_default_str();
  AddOption(sub, "--state-dir", options.state_dir, "keeps the wanted state [<runtime folder>/<task id>/manager]");
  AddOption(sub, "--switch-file", options.switch_file, "mounted profilingSwitch to follow")->capture_default_str();
  AddOption(sub, "--clusterd", options.clusterd, "HOST:PORT of ClusterD [MINDX_SERVER_IP:8899]");
  AddFlag(sub, "--report-fault", options.report_fault, "report nodes that slow the job down to ClusterD");
  AddOption(sub, "--tls-dir", options.tls_dir, "ca.crt, tls.crt, tls.key for mutual TLS");
  AddFlag(sub, "--allow-plaintext", options.allow_plaintext,
          "ClusterD's service in plain text, to whoever reaches --listen");
  AddFlag(sub, "--exit-on-stdin-eof", options.exit_on_stdin_eof, "end when stdin is closed");
}

void AddProxy(CLI::App& app, Commands& commands) {
  CLI::App* sub = commands.proxy_app = app.add_subcommand("proxy", "the node's proxy, in the foreground");
  ProxyOptions& options = commands.proxy;
  AddOption(sub, "--manager", options.manager, "HOST:PORT of the manager")->capture_default_str();
  commands.proxy_listen = AddOption(sub, "--listen", options.listen, "HOST:PORT of gRPC health")->capture_default_str();
  AddOption(sub, "--socket", options.socket,
            "the ranks' socket [/tmp/taskd-<uid>/<MINDX_TASK_ID or default>/proxy.sock]");
  sub->add_option("--node-rank", options.node_rank, "rank of this node [RANK, MS_NODE_RANK, 0]")
      ->check(CLI::Range(0, 1 << 24));
  AddOption(sub, "--profiling-dir", options.profiling_dir, "where the mark files go")->capture_default_str();
  AddOption(sub, "--disk-limit-mb", options.disk_limit_mb, "limit of the mark files, 0 for none")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  AddOption(sub, "--backlog-mb", options.rank_backlog_mb, "memory for a rank's marks while storage hangs")
      ->check(CLI::Range(0, 1 << 20))
      ->capture_default_str();
  AddOption(sub, "--node-backlog-mb", options.node_backlog_mb, "the same, for all ranks of the node")
      ->check(CLI::Range(0, 1 << 20))
      ->capture_default_str();
  AddOption(sub, "--switch-file", options.switch_file, "followed while no manager answers")->capture_default_str();
  AddOption(sub, "--tls-dir", options.tls_dir, "ca.crt, tls.crt, tls.key for mutual TLS");
  AddFlag(sub, "--allow-plaintext", options.allow_plaintext,
          "ClusterD's service in plain text, to whoever reaches --listen");
  AddFlag(sub, "--exit-on-stdin-eof", options.exit_on_stdin_eof, "end when stdin is closed");
}

void AddSwitch(CLI::App& app, Commands& commands) {
  CLI::App* sub = commands.switch_app =
      app.add_subcommand("switch", "switch marks on or off and print each rank's answer");
  SwitchOptions& options = commands.change;
  AddOption(sub, "--manager", options.manager,
            "HOST:PORT of the manager [the only job that this user runs on this machine]");
  AddOption(sub, "--job", options.job,
            "NAMESPACE/NAME; without --manager the job to find, a manager refuses any other one");
  sub->add_option("KIND=on|off", options.assignments, "step, fp, dataloader, save_checkpoint, communication or all");
  AddOption(sub, "--timeout", options.timeout_s, "seconds that the ranks have to answer")->capture_default_str();
  AddFlag(sub, "--json", options.json, "print one JSON object");
  AddOption(sub, "--tls-dir", options.security.tls_dir, "ca.crt, tls.crt, tls.key for mutual TLS");
}

void AddStatus(CLI::App& app, Commands& commands) {
  CLI::App* sub = commands.status_app =
      app.add_subcommand("status", "nodes, ranks, switch state, marks written and lost, overhead");
  StatusOptions& options = commands.status;
  AddOption(sub, "--manager", options.manager,
            "HOST:PORT of the manager [the only job that this user runs on this machine]");
  AddOption(sub, "--job", options.job,
            "NAMESPACE/NAME; without --manager the job to find, a manager with another one is refused");
  AddFlag(sub, "--json", options.json, "print one JSON object");
  AddFlag(sub, "--watch", options.watch, "again each second until interrupted");
  AddOption(sub, "--tls-dir", options.security.tls_dir, "ca.crt, tls.crt, tls.key for mutual TLS");
}

void AddDiagnose(CLI::App& app, Commands& commands) {
  CLI::App* sub = commands.diagnose_app =
      app.add_subcommand("diagnose", "who is slow, since when, why, and what it costs");
  DiagnoseOptions& options = commands.diagnose;
  AddOption(sub, "--from", options.from, "a task's folder of mark files, instead of a manager");
  AddOption(sub, "--manager", options.manager,
            "HOST:PORT of the manager [the only job that this user runs on this machine]");
  AddOption(sub, "--job", options.job,
            "NAMESPACE/NAME; without --manager the job to find, a manager refuses any other one");
  AddFlag(sub, "--json", options.json, "print one JSON object");
  AddFlag(sub, "--watch", options.watch, "each new report of the manager until interrupted");
  AddOption(sub, "--tls-dir", options.security.tls_dir, "ca.crt, tls.crt, tls.key for mutual TLS");
}

void AddTrace(CLI::App& app, Commands& commands) {
  CLI::App* sub = commands.trace_app =
      app.add_subcommand("trace", "marks as a timeline that Perfetto and chrome://tracing open");
  TraceOptions& options = commands.trace;
  AddOption(sub, "--from", options.from, "a task's folder of mark files");
  AddOption(sub, "--ranks", options.ranks, "only these, as 0-7,12");
  AddOption(sub, "--steps", options.steps, "only these, as 10-20");
  AddFlag(sub, "--suspects", options.suspects,
          "only accused ranks, peers, and who waits for them (16 ranks at most), from 5 steps before the onset to 10 "
          "after it; when nobody is accused, says so and writes no file");
  sub->add_option("-o,--output", options.output, "where it goes, - for stdout")->envname("TASKD_OUTPUT");
}

void AddSimulate(CLI::App& app, Commands& commands) {
  CLI::App* sub = commands.simulate_app =
      app.add_subcommand("simulate", "a synthetic job's marks with faults, as files or towards a manager");
  SimulateOptions& options = commands.simulate;
  AddOption(sub, "--ranks", options.ranks, "ranks of the job [tp x cp x pp x dp, or 16]");
  AddOption(sub, "--tp", options.tp, "tensor parallel ranks")->capture_default_str();
  AddOption(sub, "--pp", options.pp, "pipeline stages")->capture_default_str();
  AddOption(sub, "--dp", options.dp, "data parallel replicas [what is left of the ranks]");
  AddOption(sub, "--cp", options.cp, "context parallel ranks")->capture_default_str();
  AddOption(sub, "--ep", options.ep, "expert parallel ranks, of the replicas")->capture_default_str();
  AddOption(sub, "--ranks-per-node", options.ranks_per_node, "ranks of a node")->capture_default_str();
  AddOption(sub, "--microbatches", options.microbatches, "of a step and replica")->capture_default_str();
  AddOption(sub, "--steps", options.steps, "steps [120]")->check(CLI::PositiveNumber);
  AddOption(sub, "--seed", options.seed, "of all random numbers")->capture_default_str();
  AddOption(sub, "--step-ms", options.step_ms, "length of a healthy step, about")->capture_default_str();
  // Not split at commas: those part the targets of one fault.
  sub->add_option("--fault", options.faults,
                  "KIND[:TARGET[,TARGET]][:SEVERITY][@FIRST[-LAST]], as compute:7:1.3@50, pp_link:3,11:2@40-80, "
                  "host:n1:2; repeatable")
      ->envname("TASKD_FAULT")
      ->allow_extra_args(false);
  AddOption(sub, "--shape", options.shape, "of the faults: persistent, transient, intermittent[:DUTY], ramp[:STEPS]")
      ->capture_default_str();
  AddFlag(sub, "--no-communication", options.no_communication, "no marks of communication");
  AddFlag(sub, "--host-only", options.host_only, "marks of the host only, as without MSPTI");
  AddOption(sub, "--out", options.out, "folder that the mark files go to");
  AddOption(sub, "--manager", options.manager, "HOST:PORT of a manager to feed instead");
  AddOption(sub, "--rate", options.rate, "steps a second towards the manager [as fast as it takes them]");
  AddOption(sub, "--tls-dir", options.security.tls_dir, "ca.crt, tls.crt, tls.key for mutual TLS");
}

void AddStore(CLI::App& app, Commands& commands) {
  CLI::App* sub = commands.store_app =
      app.add_subcommand("store", "a TCPStore server for PyTorch's clients, or a tier of one, in the foreground");
  StoreCommandOptions& options = commands.store;
  AddOption(sub, "--listen", options.listen, "HOST:PORT; port 0 for a free one")->required();
  AddOption(sub, "--upstream", options.upstream, "HOST:PORT of a taskd store: be a tier of that one");
  AddOption(sub, "--dialect", options.dialect,
            "auto, 1.x, 2.1 or 2.x: what clients that do not tell their release are taken for")
      ->capture_default_str();
  AddOption(sub, "--memory-limit-mb", options.memory_limit_mb,
            "MiB of memory beyond which writes are refused [4096, or a quarter of the container's where that is less]")
      ->check(CLI::Range(1u, 1u << 24));
  AddOption(sub, "--stats-s", options.stats_s, "print a line of JSON on stderr every so many seconds")
      ->check(CLI::PositiveNumber);
}

void AddRankTable(CLI::App& app, Commands& commands) {
  CLI::App* group = commands.rank_table_app = app.add_subcommand("ranktable", "whether a rank table is valid");
  group->require_subcommand(1);
  CLI::App* sub = group->add_subcommand("check", "print the rules that a rank table breaks");
  RankTableCommandOptions& options = commands.rank_table;
  sub->add_option("FILE", options.file, "the rank table, a .json file")->required();
  AddOption(sub, "--chip", options.chip, "rules of a chip too: any, 910 or 950")->capture_default_str();
  AddFlag(sub, "--json", options.json, "print one JSON object");
}

void AddRdma(CLI::App& app, Commands& commands) {
  CLI::App* group = commands.rdma_app = app.add_subcommand("rdma", "NCCL over the RDMA network of whole machines");
  group->require_subcommand(1);
  CLI::App* env = commands.rdma_env_app =
      group->add_subcommand("env", "print NCCL's variables, if NODE_LIST and this machine's devices are made for them");
  AddOption(env, "--rdma", commands.rdma_mode, "auto, or on or off whatever the conditions say")->capture_default_str();
  CLI::App* check = group->add_subcommand("check", "what NCCL's log says about the way between nodes");
  check->add_option("LOG", commands.rdma_check.log, "a log with NCCL_DEBUG=INFO, - for stdin")->required();
  AddFlag(check, "--json", commands.rdma_check.json, "print one JSON object");
}

void AddRoute(CLI::App& app, Commands& commands) {
  CLI::App* sub = commands.route_app =
      app.add_subcommand("route", "plan the order of a job's nodes from its rank table and a topology");
  RouteOptions& options = commands.route;
  AddOption(sub, "--rank-table", options.rank_table, "the job's rank table, a .json file")->required();
  AddOption(sub, "--topology", options.topology, "the file that tells which switch each node is below")->required();
  AddOption(sub, "--format", options.format,
            "of the topology: auto, tor-list, tor-node-cm, slurm, ibnetdiscover, hypernode, csv or ranktable2")
      ->capture_default_str();
  AddOption(sub, "--out", options.out, "folder for jobstart_routeplan.json, RANK_AFTER_ACC and MASTER_INDEX")
      ->required();
  AddOption(sub, "--self", options.self,
            "this node: server_id, pod_name, host_ip or container_ip; for RANK_AFTER_ACC and MASTER_INDEX");
  AddOption(sub, "--unknown", options.unknown,
            "nodes of the job that the topology lacks: last (order them last) or fail (keep the given order)")
      ->capture_default_str();
  AddOption(sub, "--wait-s", options.wait_s, "seconds that the two files have to be there and completed")
      ->capture_default_str();
  AddFlag(sub, "--json", options.json, "print one JSON object");
  AddFlag(sub, "--rank-mapping", options.rank_mapping, "with --json: add <new rank>-<pod index>,…");
  AddOption(sub, "--hostfile", options.hostfile, "write an MPI hostfile in the new order");
  AddOption(sub, "--rankfile", options.rankfile, "write Open MPI's rankfile for the new order");
  AddOption(sub, "--tp", options.tp, "plan for parallel groups instead of one ring: tensor parallel ranks")
      ->check(CLI::PositiveNumber);
  AddOption(sub, "--pp", options.pp, "pipeline stages")->check(CLI::PositiveNumber);
  AddOption(sub, "--ep", options.ep, "expert parallel ranks, of the data parallel ones")->check(CLI::PositiveNumber);
  AddOption(sub, "--dp", options.dp, "data parallel ranks [what is left of the ranks]")->check(CLI::PositiveNumber);
  AddFlag(sub, "--agree", options.has_agree, "all nodes adopt the same plan, or none does; all of them call this");
  AddOption(sub, "--manager", options.agree.manager, "HOST:PORT of the job's manager, for --agree");
  AddOption(sub, "--job", options.agree.job, "NAMESPACE/NAME, for --agree; the manager refuses any other job's");
  AddOption(sub, "--nodes", options.agree.nodes, "number of nodes, for --agree");
  AddOption(sub, "--index", options.agree.index, "which of them this one is, from 0, for --agree");
  AddOption(sub, "--agree-timeout", options.agree.timeout_s, "seconds that the nodes have to agree")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  AddOption(sub, "--tls-dir", options.agree.security.tls_dir, "ca.crt, tls.crt, tls.key for mutual TLS");
}

int RunManagerCommand(Commands& commands) {
  ManagerOptions& options = commands.manager;
  options.http_is_default = commands.manager_http->count() == 0;
  options.token = Token();
  options.secret = Secret();
  InitLog("manager");
  InitGrpcLog();
  absl::Status status = RunManager(options);
  return status.ok() ? kDone : Fail("taskd manager", status);
}

int RunProxyCommand(Commands& commands) {
  ProxyOptions& options = commands.proxy;
  options.listen_is_default = commands.proxy_listen->count() == 0;
  options.task_id = Environment("MINDX_TASK_ID");
  options.secret = Token().empty() ? Secret() : Token();
  InitLog("proxy");
  InitGrpcLog();
  absl::Status status = RunProxy(options);
  return status.ok() ? kDone : Fail("taskd proxy", status);
}

int RunSwitchCommand(Commands& commands) {
  commands.change.security.secret = Token();
  InitLog("switch");
  InitGrpcLog();
  absl::StatusOr<bool> all_applied = RunSwitch(commands.change);
  if (!all_applied.ok()) return Fail("taskd switch", all_applied.status());
  return *all_applied ? kDone : kFailed;
}

int RunStatusCommand(Commands& commands) {
  commands.status.security.secret = Token();
  InitLog("status");
  InitGrpcLog();
  absl::Status status = RunStatus(commands.status);
  return status.ok() ? kDone : Fail("taskd status", status);
}

int RunDiagnoseCommand(Commands& commands) {
  DiagnoseOptions& options = commands.diagnose;
  // In the environment both may stand; a flag wins over them.
  auto is_flag = [&](const char* name) {
    const std::vector<CLI::Option*>& flags = commands.diagnose_app->parse_order();
    return std::find(flags.begin(), flags.end(), commands.diagnose_app->get_option(name)) != flags.end();
  };
  if (is_flag("--manager")) {
    if (is_flag("--from")) {
      return Fail("taskd diagnose", absl::InvalidArgumentError("--from and --manager: only one of them can be asked"));
    }
    options.from.clear();
  }
  options.security.secret = Token();
  InitLog("diagnose");
  InitGrpcLog();
  absl::Status status = RunDiagnose(options);
  return status.ok() ? kDone : Fail("taskd diagnose", status);
}

int RunTraceCommand(Commands& commands) {
  InitLog("trace");
  absl::Status status = RunTrace(commands.trace);
  return status.ok() ? kDone : Fail("taskd trace", status);
}

int RunSimulateCommand(Commands& commands) {
  SimulateOptions& options = commands.simulate;
  // TASKD_MANAGER may be set for other commands.
  const std::vector<CLI::Option*>& flags = commands.simulate_app->parse_order();
  const bool manager_is_flag =
      std::find(flags.begin(), flags.end(), commands.simulate_app->get_option("--manager")) != flags.end();
  if (!manager_is_flag && !options.out.empty()) options.manager.clear();
  options.security.secret = Token();
  InitLog("simulate");
  InitGrpcLog();
  absl::Status status = RunSimulate(options);
  return status.ok() ? kDone : Fail("taskd simulate", status);
}

int RunStore(Commands& commands) {
  InitLog("store");
  absl::Status status = RunStoreCommand(commands.store);
  return status.ok() ? kDone : Fail("taskd store", status);
}

int RunRankTable(Commands& commands) {
  absl::StatusOr<bool> valid = RunRankTableCheck(commands.rank_table);
  if (!valid.ok()) return Fail("taskd ranktable check", valid.status());
  return *valid ? kDone : kFailed;
}

int RunRdma(Commands& commands) {
  if (*commands.rdma_env_app) {
    absl::Status status = RunRdmaEnvironment(commands.rdma_mode);
    return status.ok() ? kDone : Fail("taskd rdma env", status);
  }
  absl::StatusOr<bool> is_rdma = RunRdmaCheck(commands.rdma_check);
  if (!is_rdma.ok()) return Fail("taskd rdma check", is_rdma.status());
  return *is_rdma ? kDone : kFailed;
}

int RunRouteCommand(Commands& commands) {
  RouteOptions& options = commands.route;
  const CLI::App& sub = *commands.route_app;
  options.has_self = sub.get_option("--self")->count() > 0;
  if (options.has_agree) {
    for (const char* flag : {"--manager", "--nodes", "--index"}) {
      if (sub.get_option(flag)->count() > 0) continue;
      return Fail("taskd route", absl::InvalidArgumentError(std::string(flag) + ": is missing; --agree needs it"));
    }
    options.agree.security.secret = Token();
    InitGrpcLog();
  }
  InitLog("route");
  absl::Status status = RunRoute(options);
  return status.ok() ? kDone : Fail("taskd route", status);
}

// The node rank, where no flag gives it: our own variable, then those of the frameworks' launchers.
void SetNodeRankVariable(CLI::App* proxy) {
  CLI::Option* option = proxy->get_option("--node-rank");
  for (const char* name : {"TASKD_NODE_RANK", "RANK", "MS_NODE_RANK"}) {
    if (Environment(name).empty()) continue;
    option->envname(name);
    return;
  }
}

// A link of that name to this program is `taskd run`.
bool IsTorchNpuRun(std::string_view program) { return program.substr(program.rfind('/') + 1) == "torch_npu_run"; }

int Main(int argc, char** argv) {
  if (argc > 0 && IsMpirunFront(argv[0])) return RunMpirunFront(argc, argv);
  // CLI11 would take options of the script for ours.
  if (argc > 0 && IsTorchNpuRun(argv[0])) return RunRunCommand({argv + 1, argv + argc});
  if (argc > 1 && std::string_view(argv[1]) == "run") return RunRunCommand({argv + 2, argv + argc});
  if (argc > 1 && std::string_view(argv[1]) == "rsh") return RunRshCommand({argv + 2, argv + argc});
  Commands commands;
  CLI::App app("TaskD records what a distributed training job does, and switches that on and off while it runs.",
               "taskd");
  app.set_version_flag("--version", "taskd " TASKD_VERSION);
  app.require_subcommand(1);
  AddManager(app, commands);
  AddProxy(app, commands);
  AddSwitch(app, commands);
  AddStatus(app, commands);
  AddDiagnose(app, commands);
  AddTrace(app, commands);
  AddSimulate(app, commands);
  AddStore(app, commands);
  AddRankTable(app, commands);
  AddRdma(app, commands);
  AddRoute(app, commands);
  app.add_subcommand("rsh", "run a command on another node of the job: what mpirun calls in ssh's place");
  app.add_subcommand("run", "launch and supervise the ranks of this node, with torchrun's command line");
  SetNodeRankVariable(commands.proxy_app);
  if (argc < 2) {
    std::cerr << "usage: taskd manager|proxy|run|rsh|store|switch|status|diagnose|trace|simulate|ranktable|rdma|route "
                 "[OPTIONS]   "
                 "(taskd COMMAND --help tells more)"
              << std::endl;
    return kWrongUsage;
  }
  // CLI11 would only miss a subcommand, and not say what it found in its place.
  std::string first = argv[1];
  auto named_first = [&](CLI::App* sub) { return sub->get_name() == first; };
  if (first != "-h" && first != "--help" && first != "--version" && app.get_subcommands(named_first).empty()) {
    return Fail("taskd", absl::InvalidArgumentError("'" + first +
                                                    "' is not manager, proxy, run, rsh, store, switch, status, "
                                                    "diagnose, trace, simulate, ranktable, rdma or route"));
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == static_cast<int>(CLI::ExitCodes::Success))
      return app.exit(error);  // --help, --version
    std::string command = "taskd";
    for (const CLI::App* sub : app.get_subcommands()) command += " " + sub->get_name();
    return Fail(command, absl::InvalidArgumentError(error.what()));
  }
  if (*commands.manager_app) return RunManagerCommand(commands);
  if (*commands.proxy_app) return RunProxyCommand(commands);
  if (*commands.switch_app) return RunSwitchCommand(commands);
  if (*commands.diagnose_app) return RunDiagnoseCommand(commands);
  if (*commands.trace_app) return RunTraceCommand(commands);
  if (*commands.simulate_app) return RunSimulateCommand(commands);
  if (*commands.store_app) return RunStore(commands);
  if (*commands.rank_table_app) return RunRankTable(commands);
  if (*commands.rdma_app) return RunRdma(commands);
  if (*commands.route_app) return RunRouteCommand(commands);
  return RunStatusCommand(commands);
}

}  // namespace
}  // namespace taskd

int main(int argc, char** argv) { return taskd::Main(argc, argv); }
