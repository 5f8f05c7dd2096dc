#include "agent/run/options.h"

#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "agent/run/device_count.h"
#include "agent/run/options_help.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace taskd::run {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;
using ::testing::UnorderedElementsAre;

using Environment = std::map<std::string, std::string>;

absl::StatusOr<RunOptions> Parse(const std::vector<std::string>& arguments, const Environment& environment = {}) {
  std::string help;
  absl::StatusOr<RunOptions> options = ParseRunOptions(arguments, environment, &help);
  EXPECT_EQ(help, "");
  return options;
}

RunOptions MustParse(const std::vector<std::string>& arguments, const Environment& environment = {}) {
  absl::StatusOr<RunOptions> options = Parse(arguments, environment);
  EXPECT_TRUE(options.ok()) << options.status();
  return options.ok() ? *options : RunOptions();
}

// With a script after them.
RunOptions With(std::vector<std::string> arguments, const Environment& environment = {}) {
  arguments.push_back("train.py");
  RunOptions options = MustParse(arguments, environment);
  EXPECT_EQ(options.program, "train.py");
  return options;
}

void ExpectWrong(std::vector<std::string> arguments, const std::vector<std::string>& says,
                 const Environment& environment = {}) {
  arguments.push_back("train.py");
  absl::StatusOr<RunOptions> options = Parse(arguments, environment);
  std::string shown = ::testing::PrintToString(arguments);
  ASSERT_EQ(options.status().code(), absl::StatusCode::kInvalidArgument) << shown;
  const std::string message(options.status().message());
  for (const std::string& part : says) EXPECT_THAT(message, HasSubstr(part)) << shown;
  EXPECT_EQ(message.find('\n'), std::string::npos);
}

TEST(RunOptionsTest, DefaultsAreTorchruns) {
  RunOptions o = With({});
  EXPECT_EQ(o.min_nodes, 1);
  EXPECT_EQ(o.max_nodes, 1);
  EXPECT_EQ(o.procs_per_node, 1);
  EXPECT_EQ(o.node_rank, 0);
  EXPECT_FALSE(o.node_rank_given);
  EXPECT_EQ(o.rdzv_backend, "static");
  EXPECT_EQ(o.rdzv_endpoint, "127.0.0.1:29500");
  EXPECT_EQ(o.rdzv_id, "none");
  EXPECT_EQ(o.max_restarts, 0);
  EXPECT_EQ(o.monitor_interval_s, 0.1);
  EXPECT_EQ(o.role, "default");
  EXPECT_EQ(o.log_dir, "");
  EXPECT_EQ(o.redirects.Of(0), 0);
  EXPECT_EQ(o.tee.Of(0), 0);
  EXPECT_THAT(o.signals_to_handle, ElementsAre(SIGTERM, SIGINT, SIGHUP, SIGQUIT));
  EXPECT_EQ(o.shutdown_timeout_s, 30);
  EXPECT_FALSE(o.tiered);
  EXPECT_EQ(o.manager, "");
  EXPECT_FALSE(o.no_taskd);
  EXPECT_FALSE(o.no_python || o.module || o.run_path);
  EXPECT_THAT(o.arguments, IsEmpty());
  EXPECT_THAT(o.warnings, IsEmpty());
}

TEST(RunOptionsTest, DashesUnderscoresAndEqualsSigns) {
  for (std::vector<std::string> spelling : std::vector<std::vector<std::string>>{{"--nproc-per-node", "4"},
                                                                                 {"--nproc_per_node", "4"},
                                                                                 {"--nproc-per-node=4"},
                                                                                 {"--nproc_per_node=4"},
                                                                                 {"--nproc_per-node=4"},
                                                                                 {"--nproc", "4"}}) {
    EXPECT_EQ(With(spelling).procs_per_node, 4) << spelling[0];
  }
  EXPECT_EQ(With({"--rdzv-id=a=b"}).rdzv_id, "a=b");
  EXPECT_EQ(With({"--role="}).role, "");
  EXPECT_EQ(With({"--max-restarts", "1", "--max_restarts=2"}).max_restarts, 2);
}

TEST(RunOptionsTest, ShortOptions) {
  for (std::vector<std::string> spelling :
       std::vector<std::vector<std::string>>{{"-r", "3"}, {"-r3"}, {"-r=3"}, {"--redirects", "3"}}) {
    EXPECT_EQ(With(spelling).redirects.Of(5), 3) << spelling[0];
  }
  EXPECT_EQ(With({"-t", "0:3"}).tee.Of(0), 3);
  EXPECT_TRUE(With({"-m"}).module);
  RunOptions both = With({"-mr2"});
  EXPECT_TRUE(both.module);
  EXPECT_EQ(both.redirects.Of(0), 2);
  ExpectWrong({"-x"}, {"unknown option '-x'"});
  ExpectWrong({"-mx"}, {"-mx"});
}

TEST(RunOptionsTest, WhatFollowsTheScriptIsTheScripts) {
  RunOptions o = MustParse({"--nnodes=1", "train.py", "--nnodes", "2", "--help", "-m", "--", "--mode=x"});
  EXPECT_EQ(o.max_nodes, 1);
  EXPECT_EQ(o.program, "train.py");
  EXPECT_THAT(o.arguments, ElementsAre("--nnodes", "2", "--help", "-m", "--", "--mode=x"));
  EXPECT_FALSE(o.module);
  o = MustParse({"-m", "pkg.train", "-m"});
  EXPECT_TRUE(o.module);
  EXPECT_EQ(o.program, "pkg.train");
  EXPECT_THAT(o.arguments, ElementsAre("-m"));
}

TEST(RunOptionsTest, SeparatorStartsScriptOrCommand) {
  RunOptions o = MustParse({"--nproc-per-node", "2", "--", "train.py", "--", "-x"});
  EXPECT_EQ(o.program, "train.py");
  EXPECT_FALSE(o.no_python);
  EXPECT_THAT(o.arguments, ElementsAre("--", "-x"));
  o = MustParse({"--", "sh", "-c", "exit 3"});
  EXPECT_EQ(o.program, "sh");
  EXPECT_TRUE(o.no_python);
  EXPECT_THAT(o.arguments, ElementsAre("-c", "exit 3"));
  EXPECT_FALSE(MustParse({"-m", "--", "pkg.train"}).no_python);
  EXPECT_FALSE(MustParse({"--run-path", "--", "/x/train"}).no_python);
  EXPECT_TRUE(MustParse({"--no-python", "--", "run.py"}).no_python);
  EXPECT_FALSE(MustParse({"train"}).no_python);
  EXPECT_EQ(MustParse({"--", "-odd-name"}).program, "-odd-name");
}

TEST(RunOptionsTest, NoScript) {
  for (const std::vector<std::string>& words :
       std::vector<std::vector<std::string>>{{}, {"--nnodes=1"}, {"--"}, {""}}) {
    absl::StatusOr<RunOptions> options = Parse(words);
    EXPECT_EQ(options.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(options.status().message()), HasSubstr("SCRIPT is missing"));
  }
}

TEST(RunOptionsTest, UnknownAndIncomplete) {
  ExpectWrong({"--nodes=2"}, {"unknown option '--nodes'"});
  ExpectWrong({"--mode", "mpi"}, {"--mode"});
  ExpectWrong({"--master", "x"}, {"ambiguous", "--master-addr", "--master-port"});
  ExpectWrong({"--nnodes", "--standalone"}, {"--nnodes", "a value is missing", "--standalone"});
  ExpectWrong({"--standalone=1"}, {"--standalone", "'1'", "takes no value"});
  absl::StatusOr<RunOptions> options = Parse({"--nnodes"});
  EXPECT_THAT(std::string(options.status().message()), AllOf(HasSubstr("--nnodes"), HasSubstr("value is missing")));
}

TEST(RunOptionsTest, ReceiversOfOrdersAreCheckedWhereTheManagerStarts) {
  const auto problem = [](const std::vector<std::string>& words) {
    std::vector<std::string> all = {"--order-to", "command:/none/drain", "--nnodes=2", "--master-addr=10.0.0.1"};
    all.insert(all.end(), words.begin(), words.end());
    all.push_back("train.py");
    return std::string(Parse(all).status().message());
  };
  EXPECT_THAT(problem({"--node-rank=0"}), HasSubstr("--order-to: command: "));
  EXPECT_EQ(problem({"--node-rank=1"}), "");
  EXPECT_EQ(problem({"--node-rank=0", "--manager=10.0.0.1:9601"}), "") << "its own options count";
}

TEST(RunOptionsTest, Nodes) {
  RunOptions o = With({"--nnodes", "2:4", "--rdzv-backend", "c10d"});
  EXPECT_EQ(o.min_nodes, 2);
  EXPECT_EQ(o.max_nodes, 4);
  o = With({"--nnodes=3"});
  EXPECT_EQ(o.min_nodes, 3);
  EXPECT_EQ(o.max_nodes, 3);
  for (const char* bad : {"0", "-1", "4:2", "0:2", "a", "1:2:3", "", ":", "1:", "65537", "2.5", "99999999999"}) {
    ExpectWrong({std::string("--nnodes=") + bad}, {"--nnodes", std::string("'") + bad + "'", "MIN:MAX"});
  }
  ExpectWrong({"--nnodes", "-1"}, {"--nnodes", "'-1'"});
}

TEST(RunOptionsTest, NodeRank) {
  RunOptions o = With({"--nnodes=2", "--node-rank=1"});
  EXPECT_EQ(o.node_rank, 1);
  EXPECT_TRUE(o.node_rank_given);
  ExpectWrong({"--nnodes=2", "--node-rank=2"}, {"--node-rank", "'2'", "below --nnodes 2"});
  ExpectWrong({"--node-rank=x"}, {"--node-rank", "'x'"});
  EXPECT_EQ(With({"--rdzv-backend=c10d", "--node-rank=7"}).node_rank, 7);
}

TEST(RunOptionsTest, ProcsPerNode) {
  EXPECT_EQ(With({"--nproc-per-node=cpu"}).procs_per_node, sysconf(_SC_NPROCESSORS_ONLN));
  EXPECT_GE(With({"--nproc-per-node=auto"}).procs_per_node, 1);
  for (const char* bad : {"0", "-2", "all", "", "1.5", "4097"}) {
    ExpectWrong({std::string("--nproc-per-node=") + bad}, {"--nproc-per-node", std::string("'") + bad + "'", "auto"});
  }
  // Whatever the machine has, nothing of it may be seen.
  ExpectWrong({"--nproc-per-node=gpu"}, {"--nproc-per-node", "'gpu'"},
              {{"CUDA_VISIBLE_DEVICES", ""}, {"ASCEND_RT_VISIBLE_DEVICES", ""}});
  EXPECT_EQ(
      With({"--nproc-per-node=auto"}, {{"CUDA_VISIBLE_DEVICES", ""}, {"ASCEND_RT_VISIBLE_DEVICES", ""}}).procs_per_node,
      sysconf(_SC_NPROCESSORS_ONLN));
}

class DeviceCountTest : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/taskd-devices-XXXXXX";
    ASSERT_NE(mkdtemp(name), nullptr);
    root_ = std::string(name) + "/";
    fs::create_directories(root_ + "dev");
  }
  void TearDown() override { fs::remove_all(root_); }
  void Touch(const std::string& path) { std::ofstream(root_ + path).put('x'); }

  std::string root_;
};

TEST_F(DeviceCountTest, Nodes) {
  EXPECT_EQ(CountDevices(root_, {}), 0);
  EXPECT_EQ(CountDevices(root_ + "none/", {}), 0);
  for (const char* other : {"nvidiactl", "nvidia-uvm", "nvidia", "davinci_manager"}) {
    Touch(std::string("dev/") + other);
  }
  EXPECT_EQ(CountDevices(root_, {{"CUDA_VISIBLE_DEVICES", "0,1"}}), 0);
  for (const char* npu : {"davinci0", "davinci1", "davinci10"}) Touch(std::string("dev/") + npu);
  EXPECT_EQ(CountDevices(root_, {}), 3);
  EXPECT_EQ(CountDevices(root_, {{"ASCEND_RT_VISIBLE_DEVICES", "0,2"}}), 2);
  for (const char* gpu : {"nvidia0", "nvidia1"}) Touch(std::string("dev/") + gpu);
  EXPECT_EQ(CountDevices(root_, {{"ASCEND_RT_VISIBLE_DEVICES", "0"}}), 2);
}

TEST_F(DeviceCountTest, RenderNodesOfAmdAndIntel) {
  fs::create_directories(root_ + "dev/dri");
  for (int i = 0; i < 8; ++i) {
    Touch("dev/dri/renderD" + std::to_string(128 + i));
    Touch("dev/dri/card" + std::to_string(i));
  }
  EXPECT_EQ(CountDevices(root_, {}), 8);
  EXPECT_EQ(CountDevices(root_, {{"ZE_AFFINITY_MASK", "0,1"}}), 2);
  Touch("dev/kfd");
  EXPECT_EQ(CountDevices(root_, {{"ZE_AFFINITY_MASK", "0,1"}}), 8);
  EXPECT_EQ(CountDevices(root_, {{"HIP_VISIBLE_DEVICES", "0,2,4"}}), 3);
  EXPECT_EQ(CountDevices(root_, {{"ROCR_VISIBLE_DEVICES", "0,1"}, {"HIP_VISIBLE_DEVICES", "1"}}), 1);
  Touch("dev/nvidia0");
  EXPECT_EQ(CountDevices(root_, {}), 1);
}

TEST_F(DeviceCountTest, GraphicsThatDoNotCompute) {
  fs::create_directories(root_ + "dev/dri");
  fs::create_directories(root_ + "sys/class/drm");
  int number = 128;
  for (const auto& [slot, vendor] : std::vector<std::pair<const char*, const char*>>{{"0000:00:02.0", "0x8086"},
                                                                                     {"0000:3a:00.0", "0x8086"},
                                                                                     {"0000:c1:00.0", "0x1002"},
                                                                                     {"0000:01:01.0", "0x1a03"},
                                                                                     {"0000:06:00.0", "0x1af4"}}) {
    const std::string device = root_ + "sys/devices/" + slot, name = "renderD" + std::to_string(number++);
    fs::create_directories(device);
    std::ofstream(device + "/vendor") << vendor << "\n";
    fs::create_directories(root_ + "sys/class/drm/" + name);
    fs::create_symlink(device, root_ + "sys/class/drm/" + name + "/device");
    Touch("dev/dri/" + name);
  }
  EXPECT_EQ(CountDevices(root_, {}), 2);
}

TEST_F(DeviceCountTest, DriversListWithoutNodes) {
  fs::create_directories(root_ + "proc/driver/nvidia/gpus/0000:01:00.0");
  fs::create_directories(root_ + "proc/driver/nvidia/gpus/0000:02:00.0");
  EXPECT_EQ(CountDevices(root_, {}), 2);
  Touch("dev/nvidia5");  // a container that was given one of two
  EXPECT_EQ(CountDevices(root_, {}), 1);
}

TEST_F(DeviceCountTest, Visible) {
  for (int i = 0; i < 4; ++i) Touch("dev/nvidia" + std::to_string(i));
  struct Case {
    const char* visible;
    int count;
  };
  for (const Case& c : {Case{"", 0}, Case{"-1", 0}, Case{"0", 1}, Case{"0,1,2", 3}, Case{"3, 2", 2}, Case{"0,-1,1", 1},
                        Case{"0,9,1", 1}, Case{"GPU-aa,GPU-bb", 2}, Case{"MIG-GPU-1/2/3", 1}, Case{"NoDevFiles", 1}}) {
    EXPECT_EQ(CountDevices(root_, {{"CUDA_VISIBLE_DEVICES", c.visible}}), c.count) << c.visible;
  }
}

TEST(RunOptionsTest, EndpointOfStaticIsTheMaster) {
  RunOptions o = With({"--master-addr=node0", "--master-port=1234"});
  EXPECT_EQ(o.rdzv_endpoint, "node0:1234");
  o = With({"--master_addr", "[::1]", "--master_port", "1234", "--rdzv-backend", "parallel"});
  EXPECT_EQ(o.rdzv_endpoint, "[::1]:1234");
  EXPECT_EQ(o.master_addr, "::1");
  EXPECT_EQ(With({"--master-addr=fe80::1"}).rdzv_endpoint, "[fe80::1]:29500");
  o = With({"--rdzv-endpoint=node7:99"});
  EXPECT_EQ(o.master_addr, "node7");
  EXPECT_EQ(o.master_port, 99);
  EXPECT_EQ(With({"--rdzv-endpoint=node7", "--master-port=98"}).rdzv_endpoint, "node7:98");
  EXPECT_THAT(With({"--rdzv-endpoint=node7:99", "--master-addr=node8"}).warnings,
              ElementsAre(HasSubstr("--master-addr node8 has no effect")));
  for (const char* bad : {"", "a b", "node0:29500", "[::1]:1", "http://x"}) {
    ExpectWrong({std::string("--master-addr=") + bad}, {"--master-addr", bad});
  }
  for (const char* bad : {"x", "-1", "65536", ""}) {
    ExpectWrong({std::string("--master-port=") + bad}, {"--master-port", std::string("'") + bad + "'", "65535"});
  }
}

TEST(RunOptionsTest, EndpointOfC10d) {
  struct Case {
    const char* given;
    const char* is;
  };
  for (const Case& c : {Case{"", "localhost:29400"}, Case{"node0", "node0:29400"}, Case{"node0:1", "node0:1"},
                        Case{"[::1]:29500", "[::1]:29500"}, Case{"[::1]", "[::1]:29400"}, Case{"::1", "[::1]:29400"},
                        Case{"localhost:0", "localhost:0"}}) {
    EXPECT_EQ(With({"--rdzv-backend=c10d", std::string("--rdzv-endpoint=") + c.given}).rdzv_endpoint, c.is) << c.given;
  }
  for (const char* bad : {":1", "node0:", "node0:x", "node0:65536", "a b:1", "[::1", "::1]:4"}) {
    ExpectWrong({"--rdzv-backend=c10d", std::string("--rdzv-endpoint=") + bad}, {"--rdzv-endpoint", bad});
  }
  EXPECT_THAT(With({"--rdzv-backend=c10d", "--master-port=1"}).warnings, ElementsAre(HasSubstr("--master-port")));
  // Platforms set these for every job.
  EXPECT_THAT(With({"--rdzv-backend=c10d"}, {{"PET_MASTER_ADDR", "x"}}).warnings, IsEmpty());
  ExpectWrong({"--rdzv-backend=etcd"}, {"--rdzv-backend", "'etcd'", "static, c10d, parallel"});
}

TEST(RunOptionsTest, Standalone) {
  RunOptions o = With({"--standalone", "--rdzv-id=x", "--rdzv-endpoint=y:1", "--nproc-per-node=2"});
  EXPECT_TRUE(o.standalone);
  EXPECT_EQ(o.rdzv_backend, "c10d");
  EXPECT_EQ(o.rdzv_endpoint, "localhost:0");
  EXPECT_EQ(o.rdzv_id.size(), 32u);
  EXPECT_NE(o.rdzv_id, With({"--standalone"}).rdzv_id);
  EXPECT_EQ(With({"--standalone", "--nnodes=1:4"}).max_nodes, 1);
  ExpectWrong({"--standalone", "--nnodes=2"}, {"--nnodes", "'2'", "--standalone"});
}

TEST(RunOptionsTest, RendezvousConfiguration) {
  RunOptions o = With({"--rdzv-conf", " timeout=5, join_timeout = 6.5 ,is_host=Yes,store_type=tcp,x=a=b"});
  EXPECT_THAT(o.rdzv_conf, UnorderedElementsAre(Pair("timeout", "5"), Pair("join_timeout", "6.5"),
                                                Pair("is_host", "true"), Pair("store_type", "tcp"), Pair("x", "a=b")));
  EXPECT_THAT(With({"--rdzv-conf="}).rdzv_conf, IsEmpty());
  EXPECT_EQ(With({"--rdzv-conf=is_host=0"}).rdzv_conf.at("is_host"), "false");
  for (const char* bad : {"timeout", "=5", "timeout=", "a=1,,b=2", ","}) {
    ExpectWrong({std::string("--rdzv-conf=") + bad}, {"--rdzv-conf", bad, "KEY=VALUE"});
  }
  ExpectWrong({"--rdzv-conf=a=1,join_timeout=soon"}, {"--rdzv-conf join_timeout", "'soon'"});
  ExpectWrong({"--rdzv-conf=timeout=-1"}, {"--rdzv-conf timeout", "'-1'"});
  ExpectWrong({"--rdzv-conf=is_host=maybe"}, {"--rdzv-conf is_host", "'maybe'"});
}

TEST(RunOptionsTest, Streams) {
  RunOptions o = With({"-r", "10:1,11:3", "-t", "2"});
  EXPECT_EQ(o.redirects.Of(10), 1);
  EXPECT_EQ(o.redirects.Of(11), 3);
  EXPECT_EQ(o.redirects.Of(0), 0);
  EXPECT_EQ(o.tee.Of(99), 2);
  for (const char* bad : {"4", "-1", "", "x", "0:4", "0", "0:", ":1", "0:1,", "a:1", "0:1:2", "00"}) {
    if (std::string(bad) == "0") continue;
    ExpectWrong({std::string("--redirects=") + bad}, {"--redirects", std::string("'") + bad + "'", "stdout"});
    ExpectWrong({std::string("-t=") + bad}, {"-t", std::string("'") + bad + "'"});
  }
}

TEST(RunOptionsTest, LocalRanksFilter) {
  EXPECT_THAT(With({"--local-ranks-filter", "0,3"}).local_ranks_filter, ElementsAre(0, 3));
  EXPECT_THAT(With({"--local-ranks-filter="}).local_ranks_filter, IsEmpty());
  for (const char* bad : {"a", "0,", "-1", "0;3"}) {
    ExpectWrong({std::string("--local-ranks-filter=") + bad}, {"--local-ranks-filter", bad});
  }
}

TEST(RunOptionsTest, Signals) {
  EXPECT_THAT(With({"--signals-to-handle=SIGTERM,SIGUSR1, USR2,SIGTERM"}).signals_to_handle,
              ElementsAre(SIGTERM, SIGUSR1, SIGUSR2));
  for (const char* bad : {"", "SIGFOO", "15", "SIGTERM,,SIGINT", "SIGKILL", "SIGSTOP", "SIGCHLD"}) {
    ExpectWrong({std::string("--signals-to-handle=") + bad}, {"--signals-to-handle", bad});
  }
}

// An outer launcher's TORCHELASTIC_SIGNALS_TO_HANDLE is for its ranks, as with torchrun.
TEST(RunOptionsTest, SignalsOfTheEnvironment) {
  EXPECT_THAT(With({}, {{"PET_SIGNALS_TO_HANDLE", "SIGUSR1"}, {"TASKD_SIGNALS_TO_HANDLE", "SIGINT"}}).signals_to_handle,
              ElementsAre(SIGUSR1));
  EXPECT_THAT(With({}, {{"TASKD_SIGNALS_TO_HANDLE", "SIGINT"}}).signals_to_handle, ElementsAre(SIGINT));
  EXPECT_THAT(With({}, {{"TORCHELASTIC_SIGNALS_TO_HANDLE", "SIGUSR1"}}).signals_to_handle,
              ElementsAre(SIGTERM, SIGINT, SIGHUP, SIGQUIT));
  ExpectWrong({}, {"PET_SIGNALS_TO_HANDLE", "'SIGFOO'", "names of signals"}, {{"PET_SIGNALS_TO_HANDLE", "SIGFOO"}});
}

TEST(RunOptionsTest, Supervision) {
  RunOptions o = With({"--max-restarts=3", "--monitor-interval=2.5", "--shutdown-timeout=7", "--start-method=fork"},
                      {{"TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "8"}});
  EXPECT_EQ(o.max_restarts, 3);
  EXPECT_EQ(o.monitor_interval_s, 2.5);
  EXPECT_EQ(o.shutdown_timeout_s, 7);
  EXPECT_EQ(With({}, {{"TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "8"}}).shutdown_timeout_s, 8);
  ExpectWrong({}, {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "'x'"}, {{"TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "x"}});
  for (const char* option : {"--max-restarts", "--monitor-interval", "--shutdown-timeout"}) {
    for (const char* bad : {"-1", "x", "", "nan", "inf"}) {
      ExpectWrong({std::string(option) + "=" + bad}, {option, std::string("'") + bad + "'"});
    }
  }
  EXPECT_EQ(o.node_timeout_s, 0);
  EXPECT_EQ(With({"--node-timeout=90.5"}, {{"TASKD_NODE_TIMEOUT", "20"}}).node_timeout_s, 90.5);
  EXPECT_EQ(With({}, {{"TASKD_NODE_TIMEOUT", "20"}}).node_timeout_s, 20);
  for (const char* bad : {"4.9", "86401", "-1", "x", "", "nan", "inf"}) {
    ExpectWrong({std::string("--node-timeout=") + bad},
                {"--node-timeout", std::string("'") + bad + "'", "a number from 5 to 86400"});
  }
  ExpectWrong({}, {"TASKD_NODE_TIMEOUT", "'0'"}, {{"TASKD_NODE_TIMEOUT", "0"}});
  ExpectWrong({"--start-method=thread"}, {"--start-method", "'thread'", "spawn, fork, forkserver"});
}

TEST(RunOptionsTest, Tiers) {
  EXPECT_TRUE(With({"--enable-tiered-parallel-tcpstore"}).tiered);
  EXPECT_TRUE(With({"--enable_tiered_parallel_tcpstore=true"}).tiered);
  EXPECT_TRUE(With({"--enable_tiered_parallel_tcpstore", "True"}).tiered);
  EXPECT_FALSE(With({"--enable_tiered_parallel_tcpstore=False"}).tiered);
  EXPECT_FALSE(With({"--enable_tiered_parallel_tcpstore", "false"}).tiered);
  EXPECT_TRUE(With({}, {{"PET_ENABLE_TIERED_PARALLEL_TCPSTORE", "true"}}).tiered);
  EXPECT_FALSE(With({"--enable-tiered-parallel-tcpstore=0"}, {{"PET_ENABLE_TIERED_PARALLEL_TCPSTORE", "true"}}).tiered);
  ExpectWrong({"--enable-tiered-parallel-tcpstore=maybe"}, {"--enable-tiered-parallel-tcpstore", "'maybe'"});
  EXPECT_EQ(With({"--store-fan-out=32"}).store_fan_out, 32);
  for (const char* bad : {"1", "-1", "x"})
    ExpectWrong({std::string("--store-fan-out=") + bad}, {"--store-fan-out", bad});
  EXPECT_EQ(With({}).store_memory_limit_mb, 0);
  EXPECT_EQ(With({}, {{"PET_STORE_MEMORY_LIMIT_MB", "512"}}).store_memory_limit_mb, 512);
  for (const char* bad : {"0", "-1", "x", "99999999999"})
    ExpectWrong({std::string("--store-memory-limit-mb=") + bad}, {"--store-memory-limit-mb", bad});
}

TEST(RunOptionsTest, OurOwn) {
  RunOptions o = With({"--manager=h:1", "--hang-action=restart", "--hang-factor=0"});
  EXPECT_EQ(o.manager, "h:1");
  EXPECT_EQ(o.hang_action, "restart");
  EXPECT_EQ(o.hang_factor, 0);
  EXPECT_TRUE(o.ras);
  EXPECT_FALSE(With({"--ras=off"}).ras);
  EXPECT_FALSE(With({}, {{"TASKD_RAS", "off"}}).ras);
  EXPECT_TRUE(With({"--ras=on"}, {{"TASKD_RAS", "off"}}).ras);
  ExpectWrong({"--ras=no"}, {"--ras", "'no'", "on, off"});
  EXPECT_EQ(With({"--manager=off"}).manager, "off");
  EXPECT_EQ(With({}, {{"TASKD_MANAGER", "h:2"}}).manager, "h:2");
  EXPECT_EQ(With({}, {{"TASKD_MANAGER", "h:2"}, {"PET_MANAGER", "h:3"}}).manager, "h:3");
  o = With({"--no-taskd", "--manager=h:1"});
  EXPECT_TRUE(o.no_taskd);
  EXPECT_EQ(o.manager, "off");
  ExpectWrong({"--manager=h"}, {"--manager", "'h'"});
  ExpectWrong({"--manager=h:0"}, {"--manager", "'h:0'"});
  ExpectWrong({"--hang-action=kill"}, {"--hang-action", "'kill'", "report, restart, stop"});
  for (const char* bad : {"1", "-3", "x", "0.5"})
    ExpectWrong({std::string("--hang-factor=") + bad}, {"--hang-factor", bad});
}

TEST(RunOptionsTest, WhatIsRunAndHow) {
  EXPECT_TRUE(With({"--no-python"}).no_python);
  EXPECT_TRUE(With({"--no_python"}).no_python);
  RunOptions o = With({"--run-path", "--no-python"});
  EXPECT_TRUE(o.run_path);
  EXPECT_FALSE(o.no_python);
  ExpectWrong({"-m", "--no-python"}, {"--module", "--no-python"});
}

TEST(RunOptionsTest, Environment) {
  RunOptions o = With({"--nnodes=2"}, {{"PET_NNODES", "3"},
                                       {"PET_NPROC_PER_NODE", "4"},
                                       {"PET_MODULE", "1"},
                                       {"PET_STANDALONE", "0"},
                                       {"PET_NO_TASKD", "true"},
                                       {"PET_RDZV_ID", ""}});
  EXPECT_EQ(o.max_nodes, 2);
  EXPECT_EQ(o.procs_per_node, 4);
  EXPECT_TRUE(o.module);
  EXPECT_FALSE(o.standalone);
  EXPECT_TRUE(o.no_taskd);
  EXPECT_EQ(o.rdzv_id, "none");
  ExpectWrong({}, {"PET_STANDALONE", "'yes'", "true or false"}, {{"PET_STANDALONE", "yes"}});
  ExpectWrong({}, {"PET_MAX_RESTARTS", "'x'"}, {{"PET_MAX_RESTARTS", "x"}});
  // A wrong value that the command line overrides does no harm.
  EXPECT_EQ(With({"--max-restarts=1"}, {{"PET_MAX_RESTARTS", "x"}}).max_restarts, 1);
}

TEST(RunOptionsTest, NumaBinding) {
  EXPECT_EQ(With({}).numa_binding, "");
  for (const char* how : {"node", "socket", "exclusive", "core-complex"}) {
    RunOptions o = With({std::string("--numa-binding=") + how});
    EXPECT_EQ(o.numa_binding, how);
    EXPECT_THAT(o.warnings, IsEmpty());
  }
  EXPECT_EQ(With({}, {{"PET_NUMA_BINDING", "socket"}, {"TASKD_NUMA_BINDING", "node"}}).numa_binding, "socket");
  EXPECT_EQ(With({}, {{"TASKD_NUMA_BINDING", "node"}}).numa_binding, "node");
  for (const char* bad : {"moon", "", "Node", "core_complex"}) {
    ExpectWrong({std::string("--numa-binding=") + bad},
                {"--numa-binding", std::string("'") + bad + "'", "one of node, socket, exclusive, core-complex"});
  }
  ExpectWrong({}, {"PET_NUMA_BINDING", "'moon'"}, {{"PET_NUMA_BINDING", "moon"}});
}

TEST(RunOptionsTest, AcceptedWithoutEffect) {
  RunOptions o = With({"--logs-specs=mine", "--event-log-handler=console", "--duplicate-stdout-filters=a,b",
                       "--duplicate_stderr_filters=c"});
  EXPECT_THAT(o.warnings, UnorderedElementsAre(HasSubstr("--logs-specs"), HasSubstr("--event-log-handler"),
                                               HasSubstr("--duplicate-stdout"), HasSubstr("--duplicate-stderr")));
  EXPECT_THAT(With({"--event-log-handler=null"}).warnings, IsEmpty());
  EXPECT_TRUE(With({"--virtual-local-rank"}).virtual_local_rank);
}

TEST(RunOptionsTest, Help) {
  for (const std::vector<std::string>& words :
       std::vector<std::vector<std::string>>{{"--help"}, {"-h"}, {"--nnodes=2", "--help", "train.py"}}) {
    std::string help;
    EXPECT_TRUE(ParseRunOptions(words, {}, &help).ok());
    EXPECT_EQ(help, kRunHelp);
  }
  std::istringstream lines(kRunHelp);
  for (std::string line; std::getline(lines, line);) {
    EXPECT_LE(line.size(), 90u) << line;
    EXPECT_FALSE(line.ends_with(' ')) << line;
  }
  for (const char* option : {"nnodes",
                             "nproc-per-node",
                             "node-rank",
                             "rdzv-backend",
                             "rdzv-endpoint",
                             "rdzv-id",
                             "rdzv-conf",
                             "standalone",
                             "master-addr",
                             "master-port",
                             "local-addr",
                             "max-restarts",
                             "monitor-interval",
                             "start-method",
                             "event-log-handler",
                             "role",
                             "module",
                             "no-python",
                             "run-path",
                             "log-dir",
                             "redirects",
                             "tee",
                             "local-ranks-filter",
                             "duplicate-stdout-filters",
                             "duplicate-stderr-filters",
                             "logs-specs",
                             "numa-binding",
                             "signals-to-handle",
                             "shutdown-timeout",
                             "node-timeout",
                             "virtual-local-rank",
                             "enable-tiered-parallel-tcpstore",
                             "store-fan-out",
                             "store-memory-limit-mb",
                             "manager",
                             "ledger",
                             "on-slow",
                             "on-slow-when",
                             "remaining",
                             "evictions",
                             "order-to",
                             "no-taskd",
                             "hang-action",
                             "hang-factor",
                             "ras",
                             "help"}) {
    EXPECT_THAT(kRunHelp, HasSubstr(std::string("--") + option));
  }
}

}  // namespace
}  // namespace taskd::run
