#include <algorithm>
#include <cstdint>
#include <limits>
#include <numeric>
#include <set>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "agent/engine/placement.h"
#include "agent/engine/task.h"
#include "common/hostlist.h"
#include "common/utf8.h"

namespace taskd::engine {
namespace {

constexpr size_t kMaxHosts = 65536;
constexpr uint64_t kLastStep = 0xffffff00;  // above: the batch shell, an interactive one, an external step
constexpr size_t kMaxJobNameBytes = 100;
constexpr size_t kShownBytes = 80;  // of a variable, in a message
constexpr double kKillWaitMarginS = 10;
constexpr double kUnknownShutdownS = 20;
constexpr double kKillWaitS = 30;  // Slurm's own default

std::string Shown(absl::string_view value) {
  return value.size() <= kShownBytes ? std::string(value)
                                     : absl::StrCat(CutUtf8(std::string(value), kShownBytes), "...");
}

absl::StatusOr<std::vector<std::string>> Expand(const std::string& list) {
  std::vector<std::string> hosts;
  absl::Status status = ExpandHostlist(list, kMaxHosts, hosts);
  if (!status.ok()) return status;
  return hosts;
}

// What people call a job may be anything; a name of ours is not.
std::string PlainName(std::string name) {
  name.resize(std::min(name.size(), kMaxJobNameBytes));
  for (char& c : name) {
    if (!absl::ascii_isalnum(static_cast<unsigned char>(c)) && c != '-' && c != '_' && c != '.') c = '_';
  }
  return name;
}

class Slurm {
 public:
  Slurm(const Environment& environment, const EngineMachine& machine) : environment_(environment), machine_(machine) {}

  absl::StatusOr<Placement> Place() {
    const std::string job = Value("SLURM_JOB_ID");
    if (job.empty()) return placement_;
    uint64_t step = 0;
    const bool has_step = absl::SimpleAtoi(Value("SLURM_STEP_ID"), &step) && step < kLastStep;
    if (!has_step || Value("SLURM_STEP_NODELIST").empty()) {
      PlaceShell(job);
      return placement_;
    }
    Name(job, Value("SLURM_STEP_ID"));
    placement_.where = absl::StrCat("Slurm job ", JobOrTask(job), " step ", Value("SLURM_STEP_ID"));
    absl::Status read = ReadNodes();
    if (read.ok()) read = CheckTasks();
    if (read.ok()) read = ReadNodeRank();
    if (read.ok()) read = ReadDevices();
    if (!read.ok()) return read;
    placement_.master_ports = kMasterPorts;
    placement_.master_is_node_0 = true;
    Add("master-port", absl::StrCat(Port()), "SLURM_JOB_ID");
    ReadKillWait();
    return placement_;
  }

  absl::StatusOr<Task> PlaceTask() {
    uint64_t step = 0;
    for (const char* name : {"SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_STEP_NODELIST"}) {
      if (Value(name).empty()) return Missing(name);
    }
    if (!absl::SimpleAtoi(Value("SLURM_STEP_ID"), &step) || step >= kLastStep) {
      return Wrong("SLURM_STEP_ID", "ranks are the tasks of a step: put srun before taskd");
    }
    Name(Value("SLURM_JOB_ID"), Value("SLURM_STEP_ID"));
    absl::Status read = ReadNodes();
    if (read.ok()) read = ReadNodeRank();
    if (read.ok()) read = ReadTask();
    if (!read.ok()) return read;
    ReadKillWait();
    task_.where = absl::StrCat("Slurm job ", JobOrTask(Value("SLURM_JOB_ID")), " step ", Value("SLURM_STEP_ID"));
    task_.rank_source = "SLURM_PROCID";
    task_.hosts = Hosts();
    task_.one_node = Hosts().size() == 1;
    task_.master_addr = Hosts().front();
    task_.master_port = Port();
    task_.master_ports = kMasterPorts;
    task_.run_id = placement_.Find("rdzv-id")->value;
    task_.shutdown_timeout = placement_.Find("shutdown-timeout")->value;
    task_.job = placement_.job;
    task_.task_id = placement_.task_id;
    if (absl::Status status = TakeUsersMaster(environment_, &task_); !status.ok()) return status;
    const auto named = std::find(Hosts().begin(), Hosts().end(), task_.master_addr);
    if (named != Hosts().end() && named != Hosts().begin()) {
      return absl::InvalidArgumentError(absl::StrCat("MASTER_ADDR '", Shown(task_.master_addr),
                                                     "': task 0, which serves the store, is on ", Hosts().front()));
    }
    return std::move(task_);
  }

  // By node; empty: Slurm does not say, or not so that it can be read. "2(x3),1" is 2, 2, 2, 1.
  std::vector<int> TasksPerNode() const {
    const std::string text = Value("SLURM_STEP_TASKS_PER_NODE");
    std::vector<int> tasks;
    for (absl::string_view part : absl::StrSplit(text, ',')) {
      size_t times = 1;
      if (const size_t repeated = part.find("(x"); repeated != absl::string_view::npos && absl::EndsWith(part, ")")) {
        if (!absl::SimpleAtoi(part.substr(repeated + 2, part.size() - repeated - 3), &times)) return {};
        part = part.substr(0, repeated);
      }
      int number = 0;
      if (!absl::SimpleAtoi(part, &number) || number < 1 || times > kMaxHosts || tasks.size() + times > kMaxHosts) {
        return {};
      }
      tasks.insert(tasks.end(), times, number);
    }
    return tasks;
  }

 private:
  std::string Value(const std::string& name) const { return ValueOf(environment_, name); }

  // The first of the variables that is set; its name too.
  std::pair<std::string, std::string> First(std::initializer_list<const char*> names) const {
    for (const char* name : names) {
      if (std::string value = Value(name); !value.empty()) return {name, value};
    }
    return {};
  }

  const std::vector<std::string>& Hosts() const { return placement_.hosts; }

  void Add(std::string option, std::string value, std::string source) {
    placement_.defaults.push_back({std::move(option), std::move(value), std::move(source)});
  }

  absl::Status Wrong(const std::string& variable, absl::string_view rule) const {
    return absl::InvalidArgumentError(absl::StrCat(variable, " '", Shown(Value(variable)), "': ", rule));
  }

  std::string JobOrTask(const std::string& job) const {
    const std::string array = Value("SLURM_ARRAY_JOB_ID");
    const std::string task = Value("SLURM_ARRAY_TASK_ID");
    return array.empty() || task.empty() ? job : absl::StrCat(array, "_", task);
  }

  void Name(const std::string& job, const std::string& step) {
    const std::string name = PlainName(Value("SLURM_JOB_NAME"));
    placement_.job = absl::StrCat("slurm/", name, name.empty() ? "" : "-", PlainName(job));
    placement_.task_id = absl::StrCat(PlainName(job), ".", step);
    const std::string restarts = Value("SLURM_RESTART_COUNT");
    Add("rdzv-id", absl::StrCat("slurm-", JobOrTask(job), ".", step, ".", restarts.empty() ? "0" : restarts),
        "SLURM_JOB_ID");
  }

  // In the batch script, or in an interactive shell: what is started here runs on this node alone.
  void PlaceShell(const std::string& job) {
    Name(job, "batch");
    placement_.defaults.clear();
    int nodes = 0;
    const auto [variable, value] = First({"SLURM_JOB_NUM_NODES", "SLURM_NNODES"});
    if (!absl::SimpleAtoi(value, &nodes) || nodes <= 1) return;
    placement_.warnings.push_back(absl::StrCat("runs on 1 of ", nodes, " nodes of Slurm job ", JobOrTask(job),
                                               "; put srun before it, with --ntasks-per-node=1, to run on all"));
  }

  absl::Status ReadNodes() {
    absl::StatusOr<std::vector<std::string>> hosts = Expand(Value("SLURM_STEP_NODELIST"));
    if (!hosts.ok()) return Wrong("SLURM_STEP_NODELIST", hosts.status().message());
    placement_.hosts = *std::move(hosts);
    const std::string number = Value("SLURM_STEP_NUM_NODES");
    int nodes = 0;
    if (!number.empty() && (!absl::SimpleAtoi(number, &nodes) || nodes != static_cast<int>(Hosts().size()))) {
      return Wrong("SLURM_STEP_NUM_NODES", absl::StrCat("SLURM_STEP_NODELIST '", Shown(Value("SLURM_STEP_NODELIST")),
                                                        "' has ", Hosts().size(), " nodes"));
    }
    uint64_t parts = 0;
    if (absl::SimpleAtoi(Value("SLURM_HET_SIZE"), &parts) && parts > 1) {
      return Wrong("SLURM_HET_SIZE",
                   "the nodes of a heterogeneous job are in several lists, from which no node rank follows; name "
                   "--nnodes, --rdzv-backend c10d and --rdzv-endpoint");
    }
    placement_.nodes = static_cast<int>(Hosts().size());
    placement_.nodes_source = number.empty() ? "SLURM_STEP_NODELIST" : "SLURM_STEP_NUM_NODES";
    Add("nnodes", absl::StrCat(placement_.nodes), placement_.nodes_source);
    Add("master-addr", Hosts().front(), "SLURM_STEP_NODELIST");
    return CheckFresh();
  }

  // Variables of another job, or of an outer step, which a shell passed on.
  absl::Status CheckFresh() const {
    const auto [variable, list] = First({"SLURM_JOB_NODELIST", "SLURM_NODELIST"});
    if (list.empty()) return absl::OkStatus();
    absl::StatusOr<std::vector<std::string>> job_hosts = Expand(list);
    if (!job_hosts.ok()) return Wrong(variable, job_hosts.status().message());
    const std::set<absl::string_view> known(job_hosts->begin(), job_hosts->end());
    for (const std::string& host : Hosts()) {
      if (known.contains(host)) continue;
      return Wrong("SLURM_STEP_NODELIST",
                   absl::StrCat(host, " is not in ", variable, " '", Shown(list),
                                "': variables of another job? unset SLURM_STEP_ID to run without them"));
    }
    return absl::OkStatus();
  }

  absl::Status CheckTasks() const {
    const std::string tasks = Value("SLURM_STEP_NUM_TASKS");
    if (tasks.empty()) return absl::OkStatus();
    int number = 0;
    if (!absl::SimpleAtoi(tasks, &number) || number < placement_.nodes) {
      return Wrong("SLURM_STEP_NUM_TASKS", absl::StrCat("at least one a node, of which there are ", placement_.nodes));
    }
    if (number == placement_.nodes) return absl::OkStatus();
    return Wrong("SLURM_STEP_NUM_TASKS",
                 absl::StrCat("on ", placement_.nodes, placement_.nodes == 1 ? " node" : " nodes",
                              ": one launcher a node: --ntasks-per-node=1, or --mode slurm for "
                              "ranks that srun starts"));
  }

  absl::Status ReadNodeRank() {
    int node = 0;
    const std::string value = Value("SLURM_NODEID");
    if (value.empty() && placement_.nodes == 1) {
      Add("node-rank", "0", placement_.nodes_source);
      return absl::OkStatus();
    }
    if (!absl::SimpleAtoi(value, &node) || node < 0 || node >= placement_.nodes) {
      return Wrong("SLURM_NODEID", absl::StrCat("has to be 0 to ", placement_.nodes - 1, " in a step of ",
                                                placement_.nodes, " nodes (", placement_.nodes_source, ")"));
    }
    const std::string own = Value("SLURMD_NODENAME");
    if (!own.empty() && own != Hosts()[node]) {
      return Wrong("SLURMD_NODENAME", absl::StrCat("node ", node, " (SLURM_NODEID) of SLURM_STEP_NODELIST '",
                                                   Shown(Value("SLURM_STEP_NODELIST")), "' is ", Hosts()[node]));
    }
    Add("node-rank", value, "SLURM_NODEID");
    return absl::OkStatus();
  }

  absl::Status ReadDevices() {
    const std::string devices = Value("SLURM_GPUS_ON_NODE");
    int number = 0;
    if (devices.empty()) return absl::OkStatus();
    if (!absl::SimpleAtoi(devices, &number) || number < 0) return Wrong("SLURM_GPUS_ON_NODE", "a number of devices");
    if (number > 0) Add("nproc-per-node", devices, "SLURM_GPUS_ON_NODE");
    return absl::OkStatus();
  }

  // From SIGTERM to SIGKILL of a step's processes: the launcher has to be done by then.
  void ReadKillWait() {
    double seconds = kUnknownShutdownS;
    std::string source = "Slurm's KillWait";
    for (const std::string& path :
         {Value("SLURM_CONF"), std::string("/etc/slurm/slurm.conf"), std::string("/run/slurm/conf/slurm.conf")}) {
      const std::string text = path.empty() ? "" : machine_.read_file(path);
      if (text.empty()) continue;
      double kill_wait = kKillWaitS;
      for (absl::string_view line : absl::StrSplit(text, '\n')) {
        line = absl::StripAsciiWhitespace(line.substr(0, line.find('#')));
        const std::pair<absl::string_view, absl::string_view> words = absl::StrSplit(line, absl::MaxSplits('=', 1));
        double value = 0;
        if (!absl::EqualsIgnoreCase(absl::StripAsciiWhitespace(words.first), "KillWait")) continue;
        if (absl::SimpleAtod(absl::StripAsciiWhitespace(words.second), &value) && value > 0) kill_wait = value;
      }
      seconds = std::max(kill_wait - kKillWaitMarginS, kill_wait / 2);
      source = absl::StrCat("KillWait in ", path);
      break;
    }
    Add("shutdown-timeout", absl::StrCat(seconds), source);
  }

  int Port() const { return MasterPort(absl::StrCat(Value("SLURM_JOB_ID"), ".", Value("SLURM_STEP_ID"))); }

  static absl::Status Missing(const std::string& variable) {
    return absl::InvalidArgumentError(
        absl::StrCat(variable, ": it is not set: ranks are the tasks of a Slurm step, put srun before taskd"));
  }

  absl::StatusOr<int> Number(const std::string& variable, int least, int most) const {
    const std::string value = Value(variable);
    int number = 0;
    if (value.empty()) return Missing(variable);
    if (!absl::SimpleAtoi(value, &number) || number < least || number > most) {
      return Wrong(variable, absl::StrCat("a number from ", least, " to ", most));
    }
    return number;
  }

  absl::Status ReadTask() {
    const char* total = Value("SLURM_STEP_NUM_TASKS").empty() ? "SLURM_NTASKS" : "SLURM_STEP_NUM_TASKS";
    const absl::StatusOr<int> world_size = Number(total, placement_.nodes, kMaxTasks);
    if (!world_size.ok()) return world_size.status();
    const absl::StatusOr<int> rank = Number("SLURM_PROCID", 0, *world_size - 1);
    if (!rank.ok()) return rank.status();
    task_.node = placement_.nodes == 1 ? 0 : Number("SLURM_NODEID", 0, placement_.nodes - 1).value_or(0);
    task_.tasks_per_node = TasksPerNode();
    const std::vector<int>& tasks = task_.tasks_per_node;
    if (static_cast<int>(tasks.size()) != placement_.nodes ||
        std::accumulate(tasks.begin(), tasks.end(), int64_t{0}) != *world_size) {
      return Wrong("SLURM_STEP_TASKS_PER_NODE",
                   absl::StrCat("numbers as 2(x3),1 of ", placement_.nodes, " nodes (", placement_.nodes_source,
                                ") with ", *world_size, " tasks (", total, ")"));
    }
    const absl::StatusOr<int> local_rank = Number("SLURM_LOCALID", 0, tasks[task_.node] - 1);
    if (!local_rank.ok()) return local_rank.status();
    task_.rank = *rank;
    task_.world_size = *world_size;
    task_.local_rank = *local_rank;
    task_.local_world_size = tasks[task_.node];
    return absl::OkStatus();
  }

  const Environment& environment_;
  const EngineMachine& machine_;
  Placement placement_;
  Task task_;
};

}  // namespace

absl::StatusOr<Placement> PlaceBySlurm(const Environment& environment, const EngineMachine& machine) {
  return Slurm(environment, machine).Place();
}

absl::StatusOr<Task> TaskBySlurm(const Environment& environment, const EngineMachine& machine) {
  return Slurm(environment, machine).PlaceTask();
}

bool SlurmHasSeveralTasksOnANode(const Environment& environment) {
  if (ValueOf(environment, "SLURM_STEP_ID").empty() || ValueOf(environment, "SLURM_STEP_NODELIST").empty())
    return false;
  const std::vector<int> tasks = Slurm(environment, EngineMachine()).TasksPerNode();
  return std::any_of(tasks.begin(), tasks.end(), [](int number) { return number > 1; });
}

}  // namespace taskd::engine
