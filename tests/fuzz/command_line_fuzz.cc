// What users and platforms write on command lines and in variables: an error of one line, or something that keeps the
// promises of its type. The first byte picks the reader; words and variables are one a line.
#include <cstdio>
#include <cstdlib>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "agent/modes/plans/mode_options.h"
#include "agent/modes/plans/mode_plan.h"
#include "agent/rdma/node_list.h"
#include "agent/run/options.h"
#include "common/address.h"
#include "common/hostlist.h"
#include "tests/fuzz/fuzz_target.h"

namespace {

using Environment = std::map<std::string, std::string>;

void CheckError(const absl::Status& status) {
  FUZZ_CHECK(absl::IsInvalidArgument(status) && !status.message().empty());
  FUZZ_CHECK(status.message().find('\n') == absl::string_view::npos);
}

void Address(const std::string& text) {
  const absl::StatusOr<taskd::HostPort> address = taskd::ParseHostPort("--x", text);
  FUZZ_CHECK(address.ok() || (absl::IsInvalidArgument(address.status()) && !address.status().message().empty()));
  if (!address.ok()) return;
  FUZZ_CHECK(!address->host.empty() && address->port >= 0 && address->port <= 65535);
  const absl::StatusOr<taskd::HostPort> again = taskd::ParseHostPort("--x", taskd::FormatHostPort(*address));
  FUZZ_CHECK(again.ok() && again->host == address->host && again->port == address->port);
}

void NodeList(const std::string& text) {
  const absl::StatusOr<std::vector<taskd::rdma::NodeEntry>> nodes = taskd::rdma::ParseNodeList(text);
  if (!nodes.ok()) return CheckError(nodes.status());
  FUZZ_CHECK(!nodes->empty());
  std::set<std::string> hosts;
  std::string written;
  for (const taskd::rdma::NodeEntry& node : *nodes) {
    FUZZ_CHECK(!node.host.empty() && node.cards >= 0 && hosts.insert(node.host).second);
    const bool brackets = node.host.find(':') != std::string::npos;
    absl::StrAppend(&written, written.empty() ? "" : ",", brackets ? "[" : "", node.host, brackets ? "]:" : ":",
                    node.cards);
  }
  const absl::StatusOr<std::vector<taskd::rdma::NodeEntry>> again = taskd::rdma::ParseNodeList(written);
  FUZZ_CHECK(again.ok() && again->size() == nodes->size());
  for (size_t i = 0; i < nodes->size(); ++i) {
    FUZZ_CHECK((*again)[i].host == (*nodes)[i].host && (*again)[i].cards == (*nodes)[i].cards);
  }
}

void Hostlist(const std::string& text) {
  constexpr size_t kMost = 1000;
  std::vector<std::string> hosts = {"before"};
  const absl::Status status = taskd::ExpandHostlist(text, kMost, hosts);
  FUZZ_CHECK(status.ok() || !status.message().empty());
  FUZZ_CHECK(hosts.size() <= kMost && hosts[0] == "before");
  for (const std::string& host : hosts) FUZZ_CHECK(!host.empty() && host.size() <= 255);
}

// NAME=value with a name that a variable may have goes to the environment, everything else is a word.
void Split(const std::string& text, std::vector<std::string>* words, Environment* environment) {
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    const size_t equals = line.find('=');
    if (equals != absl::string_view::npos && equals > 0 && line[0] >= 'A' && line[0] <= 'Z') {
      (*environment)[std::string(line.substr(0, equals))] = std::string(line.substr(equals + 1));
    } else {
      words->emplace_back(line);
    }
  }
}

void RunLine(const std::string& text) {
  std::vector<std::string> words;
  Environment environment;
  Split(text, &words, &environment);
  std::string help;
  const absl::StatusOr<taskd::run::RunOptions> options = taskd::run::ParseRunOptions(words, environment, &help);
  if (!options.ok()) return CheckError(options.status());
  if (!help.empty()) return;
  FUZZ_CHECK(options->min_nodes >= 1 && options->min_nodes <= options->max_nodes && options->procs_per_node >= 1);
  FUZZ_CHECK(options->max_restarts >= 0 && options->monitor_interval_s > 0 && options->shutdown_timeout_s >= 0);
  FUZZ_CHECK(options->rdzv_backend == "static" || options->rdzv_backend == "c10d" ||
             options->rdzv_backend == "parallel");
  FUZZ_CHECK(taskd::ParseHostPort("", options->rdzv_endpoint).ok());
  FUZZ_CHECK(int{options->module} + int{options->no_python} + int{options->run_path} <= 1);
  FUZZ_CHECK(options->redirects.all >= 0 && options->redirects.all <= 3 && options->tee.all >= 0 &&
             options->tee.all <= 3);
  for (int signal : options->signals_to_handle) FUZZ_CHECK(signal > 0 && signal <= 64);
}

void ModeLine(const std::string& text) {
  std::vector<std::string> words;
  Environment environment;
  Split(text, &words, &environment);
  std::string help;
  taskd::modes::AsksForMode(words);
  const absl::StatusOr<taskd::modes::ModeOptions> options = taskd::modes::ParseModeOptions(words, environment, &help);
  if (!options.ok()) return CheckError(options.status());
  if (!help.empty()) return;
  FUZZ_CHECK(!options->command.empty() && !options->mode.empty());
  FUZZ_CHECK(options->wait_s > 0 && options->wait_s <= 86400 && (options->dry_run || !options->json));
}

// What a platform sets, for every mode.
void Platform(const std::string& text) {
  std::vector<std::string> words;
  Environment environment;
  Split(text, &words, &environment);
  for (const auto& [name, value] : environment) {
    if (value.find('\0') != std::string::npos) return;  // no variable has one
  }
  taskd::modes::ModeMachine machine;
  machine.ipv4 = [](const std::string& host) { return host.size() % 2 == 0 ? std::string("10.0.0.1") : ""; };
  machine.gpus = [] { return 8; };
  const std::string table = words.empty() ? "" : words[0];
  machine.read_file = [&table](const std::string&) -> absl::StatusOr<std::string> { return table; };
  machine.sysfs = "/nonexistent";
  for (const char* mode : {"auto", "torch", "mpi", "ray", "ascend", "pytorch-gpu", "tensorflow-gpu"}) {
    taskd::modes::ModeOptions options;
    options.mode = mode;
    options.command = {"x"};
    const absl::StatusOr<taskd::modes::ModePlan> plan = taskd::modes::PlanMode(options, environment, machine);
    if (!plan.ok()) {
      FUZZ_CHECK(!plan.status().message().empty());
      FUZZ_CHECK(plan.status().message().find('\n') == absl::string_view::npos);
      continue;
    }
    FUZZ_CHECK(!plan->nodes.empty() && plan->index >= 0 && plan->index <= static_cast<int>(plan->nodes.size()));
    FUZZ_CHECK(taskd::modes::ModePlanJson(*plan).find('\n') == std::string::npos &&
               !taskd::modes::ModePlanText(*plan).empty());
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 1 || size > 16384) return 0;
  const std::string text(reinterpret_cast<const char*>(data) + 1, size - 1);
  switch (data[0] % 6) {
    case 0:
      Address(text);
      break;
    case 1:
      NodeList(text);
      break;
    case 2:
      Hostlist(text);
      break;
    case 3:
      RunLine(text);
      break;
    case 4:
      ModeLine(text);
      break;
    default:
      Platform(text);
  }
  return 0;
}

std::vector<std::string> FuzzSeeds() {
  return {"0127.0.0.1:9601",
          "0[fe80::1]:0",
          "0node-0.svc:65535",
          "1a:1,[fe80::1]:8,10.0.0.2:0",
          "2n[01-03,7]x[0-1],a,b[9-12]",
          "3--nnodes\n1:4\n--nproc-per-node=8\n--rdzv-backend=c10d\n--rdzv_endpoint\n[::1]:29400\n--rdzv-conf\na=b,c=1",
          "3--redirects\n0:3,1:1\n--tee=3\n--max-restarts\n3\n-m\nmodule\n--x",
          "3PET_NNODES=2\nTASKD_HANG_FACTOR=3.5\n--node-rank=1\n--master-addr\nh\n--master-port=1\ntrain.py\n--lr\n1",
          "3--standalone\n--signals-to-handle\nSIGTERM,SIGINT\n--local-ranks-filter=0,1\n--\npython\nx",
          "4--mode\nray\n--num-cpus=4\n--wait\n3\n--dry-run\n--json\n--\nx",
          "4--mode=ps\n--ps-num\n1\nTASKD_REMOTE_START=taskd\nTASKD_WAIT_S=2\nx",
          "5MA_NUM_HOSTS=2\nMA_TASK_INDEX=1\nMA_NUM_GPUS=4\nMA_TASK_NAME=ps\nMA_CURRENT_IP=1.1.1.1\nRANK_TABLE_FILE=/x",
          "5NODE_LIST=a:1,bc:2\nINDEX=1\nGPU_NUM=3\nNODE_IP_SLOT_LIST=a:1,10.0.0.1:2\nMASTER_ADDR=a\nMASTER_PORT=1",
          R"(5RANK_TABLE_FILE=/x
MA_NUM_HOSTS=1
MA_CURRENT_IP=1.0.0.1
{"version":"1.0","status":"completed","server_count":"1","server_list":[{"server_id":"1.0.0.1","device":[{"device_id":"0","device_ip":"1.1.1.1","rank_id":"0"}]}]})"};
}
