// TI-ONE's modes torch, mpi, horovod and ray.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>

#include "agent/modes/testing/plan.h"

namespace taskd::modes {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// A change to a good environment, and what the message names.
struct Refusal {
  const char* mode;
  Environment changes;  // "-": take it out
  std::vector<std::string> named;
};

void ExpectRefused(const Environment& good, const Refusal& refusal) {
  TestNode node(refusal.mode, good);
  for (const auto& [name, value] : refusal.changes) {
    node.environment[name] = value;
    if (value == "-") node.environment.erase(name);
  }
  const std::string error = node.Error();
  EXPECT_NE(error, "") << refusal.mode << " " << testing::PrintToString(refusal.changes);
  for (const std::string& part : refusal.named) EXPECT_THAT(error, HasSubstr(part)) << refusal.mode;
}

const Environment kTwo = {{"NODE_LIST", "a:2,b:3"}, {"INDEX", "1"}};

// ---- All of them

TEST(TiOne, GoodBeforeItIsBroken) {
  for (const char* mode : {"torch", "mpi", "horovod", "ray"}) EXPECT_EQ(TestNode(mode, kTwo).Error(), "") << mode;
}

TEST(TiOne, RefusesNodeListAndIndex) {
  const Refusal cases[] = {
      {"", {{"NODE_LIST", ""}}, {"NODE_LIST", "empty"}},
      {"", {{"NODE_LIST", "a:1,b"}}, {"NODE_LIST", "entry 2, 'b'", "host:cards"}},
      {"", {{"NODE_LIST", "a:1,:2"}}, {"NODE_LIST", "entry 2, ':2'", "host is empty"}},
      {"", {{"NODE_LIST", "a:1,b:x"}}, {"NODE_LIST", "entry 2, 'b:x'", "integer"}},
      {"", {{"NODE_LIST", "a:1,b:-1"}}, {"NODE_LIST", "entry 2, 'b:-1'", "integer"}},
      {"", {{"NODE_LIST", "a:1,a:1"}}, {"NODE_LIST", "entry 2, 'a:1'", "twice"}},
      {"", {{"NODE_LIST", "a:1,::1"}}, {"NODE_LIST", "entry 2, '::1'", "brackets"}},
      {"", {{"NODE_LIST", "a:1,::1:8"}}, {"NODE_LIST", "entry 2, '::1:8'", "brackets"}},
      {"", {{"INDEX", "-"}}, {"INDEX", "not set", "there are 2 nodes"}},
      {"", {{"INDEX", ""}}, {"INDEX", "not set", "there are 2 nodes"}},
      {"", {{"INDEX", "x"}}, {"INDEX", "'x'", "0 to 1"}},
      {"", {{"INDEX", "1.0"}}, {"INDEX", "'1.0'", "0 to 1"}},
      {"", {{"INDEX", " 1"}}, {"INDEX", "' 1'", "0 to 1"}},
      {"", {{"INDEX", "-1"}}, {"INDEX", "'-1'", "0 to 1"}},
      {"", {{"INDEX", "2"}}, {"INDEX", "'2'", "0 to 1"}},
      {"", {{"INDEX", "4294967296"}}, {"INDEX", "'4294967296'", "0 to 1"}},
      {"", {{"INDEX", "1\n2"}}, {"INDEX", "'1?2'", "0 to 1"}},
  };
  for (const char* mode : {"torch", "mpi", "horovod", "ray", "ps"}) {
    for (Refusal refusal : cases) {
      refusal.mode = mode;
      ExpectRefused(kTwo, refusal);
    }
  }
}

TEST(TiOne, NodeListIsNeeded) {
  for (const char* mode : {"mpi", "horovod", "ray", "ps"}) {
    ExpectRefused(kTwo, {mode, {{"NODE_LIST", "-"}}, {"NODE_LIST", "not set", mode}});
    ExpectRefused({}, {mode, {}, {"NODE_LIST"}});
  }
}

TEST(TiOne, RefusesWhatContradicts) {
  const Refusal cases[] = {
      {"torch", {{"NODE_LIST", "a:1,b:0"}}, {"NODE_LIST", "entry 2", "'b:0'", "torch"}},
      {"mpi", {{"NODE_LIST", "a:1,b:0"}}, {"NODE_LIST", "entry 2", "'b:0'", "mpi"}},
      {"horovod", {{"NODE_LIST", "[::1]:0,b:0"}}, {"NODE_LIST", "entry 1", "'[::1]:0'", "horovod"}},
      {"torch", {{"WORLD_SIZE", "5"}}, {"WORLD_SIZE", "'5'", "'2'"}},
      {"torch", {{"WORLD_SIZE", "two"}}, {"WORLD_SIZE", "'two'", "'2'"}},
      {"torch", {{"RANK", "0"}}, {"RANK", "'0'", "'1'", "INDEX"}},
      {"ray", {{"RANK", "0"}}, {"RANK", "'0'", "'1'", "INDEX"}},
      {"torch", {{"GPU_NUM", "2"}}, {"GPU_NUM", "'2'", "'5'"}},
      {"mpi", {{"GPU_NUM", "2"}}, {"GPU_NUM", "'2'", "'5'"}},
      {"horovod", {{"GPU_NUM", "x"}}, {"GPU_NUM", "'x'", "'5'"}},
      {"torch", {{"GPU_NUM_PER_NODE", "2"}}, {"GPU_NUM_PER_NODE", "'2'", "'3'"}},
      {"mpi", {{"GPU_NUM_PER_NODE", "2"}}, {"GPU_NUM_PER_NODE", "'2'", "'3'"}},
      {"horovod", {{"GPU_NUM_PER_NODE", "2"}}, {"GPU_NUM_PER_NODE", "'2'", "'3'"}},
      {"torch", {{"MASTER_PORT", "0"}}, {"MASTER_PORT", "'0'", "1 to 65535"}},
      {"torch", {{"MASTER_PORT", "65536"}}, {"MASTER_PORT", "'65536'", "1 to 65535"}},
      {"torch", {{"MASTER_PORT", "http"}}, {"MASTER_PORT", "'http'", "1 to 65535"}},
      {"torch", {{"MASTER_PORT", "+80"}}, {"MASTER_PORT", "'+80'", "1 to 65535"}},
      {"ray", {{"HEAD_PORT", "0"}}, {"HEAD_PORT", "'0'", "1 to 65535"}},
      {"ray", {{"HEAD_PORT", "65536"}}, {"HEAD_PORT", "'65536'", "1 to 65535"}},
      {"ray", {{"HEAD_PORT", "-1"}}, {"HEAD_PORT", "'-1'", "1 to 65535"}},
      {"torch", {{"MASTER_ADDR", "b"}}, {"MASTER_ADDR", "'b'", "node 0, 'a'"}},
      {"torch", {{"MASTER_ADDR", "c"}}, {"MASTER_ADDR", "'c'", "node 0, 'a'"}},
      {"torch", {{"MASTER_ADDR", "c\nd"}}, {"MASTER_ADDR", "'c?d'", "host"}},
      {"ray", {{"HEAD_ADDR", "[]"}}, {"HEAD_ADDR", "'[]'", "host"}},
      {"ray", {{"HEAD_ADDR", std::string(254, 'a')}}, {"HEAD_ADDR", "'aaaa", "host"}},
      {"ray", {{"HEAD_ADDR", "b"}}, {"HEAD_ADDR", "'b'", "node 0, 'a'"}},
      {"mpi", {{"NODE_IP_SLOT_LIST", "1.0.0.1:2"}}, {"NODE_IP_SLOT_LIST", "'1.0.0.1:2'", "1 entries"}},
      {"mpi", {{"NODE_IP_SLOT_LIST", "1.0.0.1:2,1.0.0.2:2"}}, {"NODE_IP_SLOT_LIST", "entry 2", "2 slots", "3 cards"}},
      {"mpi", {{"NODE_IP_SLOT_LIST", "1.0.0.1:2,x"}}, {"NODE_IP_SLOT_LIST: entry 2, 'x'"}},
      {"horovod", {{"NODE_IP_SLOT_LIST", "b:2,a:3"}}, {"NODE_IP_SLOT_LIST", "entry 1 is 'b'", "'a'"}},
      {"mpi", {{"TASKD_MPI_FRONT", "no"}}, {"TASKD_MPI_FRONT", "'no'", "on or off"}},
      {"ray", {{"INDEX", "0"}, {"RAY_ADDRESS", "x:1"}}, {"RAY_ADDRESS", "'x:1'", "'a:6379'"}},
  };
  for (const Refusal& refusal : cases) ExpectRefused(kTwo, refusal);
}

TEST(TiOne, VariablesThatLinuxDoesNotTakeAreWarnedOf) {
  std::string list = "a:1,b:1";
  for (int i = 0; i < 6000; ++i) list += ",n" + std::to_string(i) + ":1";
  TestNode node("ps", {{"NODE_LIST", list}, {"INDEX", "0"}});
  node.options.ps_num = 1;
  EXPECT_THAT(node.Plan()->warnings, IsEmpty());
  for (int i = 6000; i < 12000; ++i) list += ",n" + std::to_string(i) + ":1";
  node.environment["NODE_LIST"] = list;
  EXPECT_THAT(node.Plan()->warnings, ElementsAre(HasSubstr("TF_CONFIG")));
}

TEST(TiOne, ModelArtsNodesWithoutCardsAreRefused) {
  const Environment none = {{"MA_NUM_HOSTS", "2"},
                            {"MA_TASK_INDEX", "0"},
                            {"MA_VJ_NAME", "j"},
                            {"MA_TASK_NAME", "worker"},
                            {"MA_NUM_GPUS", "0"}};
  EXPECT_THAT(TestNode("torch", none).Error(), HasSubstr("MA_NUM_GPUS '0'"));
  EXPECT_EQ(TestNode("ray", none).Error(), "");
  // A name is there once, however many variables are made of its address.
  Environment one = none;
  one["MA_NUM_GPUS"] = "1";
  EXPECT_THAT(TestNode("mpi", one).Plan()->unresolved, ElementsAre("j-worker-0.j", "j-worker-1.j"));
  EXPECT_THAT(TestNode("torch", one).Plan()->unresolved, ElementsAre("j-worker-0.j"));
}

TEST(TiOne, TheManagerIsWhereTheFirstNodeIs) {
  TestNode node("torch", kTwo);
  EXPECT_EQ(node.Json()["manager"], "a:9601");
  node.environment["NODE_LIST"] = "[fe80::1]:1,b:1";
  EXPECT_EQ(node.Json()["manager"], "[fe80::1]:9601");
  node.options.manager = "m:1";
  EXPECT_EQ(node.Json()["manager"], "m:1");
  TestNode alone("torch", {{"NODE_LIST", "a:1"}, {"INDEX", "0"}});
  EXPECT_EQ(alone.Json()["manager"], "");
  EXPECT_EQ(alone.Json()["start"], "at-once");
  alone.options.manager = "m:1";
  EXPECT_EQ(alone.Json()["manager"], "m:1");
}

TEST(TiOne, OptionsOfOtherModesAreWarnedAbout) {
  TestNode node("torch", {});
  node.options.ps_num = 1;
  node.options.num_cpus = "1";
  node.options.num_gpus = "1";
  node.options.self = "x";
  const json warnings = node.Json()["warnings"];
  ASSERT_EQ(warnings.size(), 4u);
  EXPECT_EQ(warnings[0], "--ps-num is for mode ps; it has no effect in mode torch");
}

// ---- torch

TEST(Torch, SetsWhatThePlatformSets) {
  TestNode node("torch", {{"NODE_LIST", "launcher.svc:1,worker-0.svc:1"}, {"INDEX", "1"}, {"HOME", "/root"}});
  node.names = {{"launcher.svc", "10.35.110.11"}};
  node.options.command = {"bash", "-c", "exec python3 \"$0\"", "a b"};
  const json plan = node.Json();
  EXPECT_EQ(plan["mode"], "torch");
  EXPECT_EQ(plan["platform"], "ti-one");
  EXPECT_EQ(plan["role"], "worker");
  EXPECT_EQ(plan["index"], 1);
  EXPECT_EQ(plan["start"], "after-first");
  EXPECT_EQ(plan["nodes"][0]["name"], "launcher.svc");
  EXPECT_EQ(plan["nodes"][1]["cards"], 1);
  EXPECT_EQ(plan["files"], json::array());
  EXPECT_EQ(plan["warnings"], json::array());
  EXPECT_EQ(plan["binds"], json::array());
  ASSERT_EQ(plan["processes"].size(), 1u);
  EXPECT_EQ(plan["processes"][0]["argv"], (json{"bash", "-c", "exec python3 \"$0\"", "a b"}));
  EXPECT_EQ(plan["processes"][0]["env"], (json{{"NODE_LIST", "launcher.svc:1,worker-0.svc:1"},
                                               {"INDEX", "1"},
                                               {"MASTER_ADDR", "10.35.110.11"},
                                               {"MASTER_PORT", "23456"},
                                               {"WORLD_SIZE", "2"},
                                               {"RANK", "1"},
                                               {"GPU_NUM", "2"},
                                               {"GPU_NUM_PER_NODE", "1"}}));
  node.environment["INDEX"] = "0";
  const json first = node.Json();
  EXPECT_EQ(first["role"], "master");
  EXPECT_EQ(first["start"], "at-once");
  EXPECT_EQ(first["binds"], (json{{{"variable", "MASTER_PORT"}, {"port", 23456}}}));
}

TEST(Torch, KeepsWhatAgrees) {
  const Environment all = {{"NODE_LIST", "a:2,[::1]:3"},
                           {"INDEX", "1"},
                           {"MASTER_ADDR", "10.0.0.1"},
                           {"MASTER_PORT", "500"},
                           {"WORLD_SIZE", "2"},
                           {"RANK", "1"},
                           {"GPU_NUM", "5"},
                           {"GPU_NUM_PER_NODE", "3"}};
  EXPECT_EQ(TestNode("torch", all).Json()["processes"][0]["env"], json(all));
  // Set to nothing is not set.
  Environment empty = all;
  for (const char* name : {"MASTER_PORT", "WORLD_SIZE", "RANK", "GPU_NUM", "GPU_NUM_PER_NODE"}) empty[name] = "";
  Environment derived = all;
  derived["MASTER_PORT"] = "23456";
  EXPECT_EQ(TestNode("torch", empty).Json()["processes"][0]["env"], json(derived));
}

TEST(Torch, MasterAddressIsNodeZeros) {
  const struct {
    const char *list, *given, *named, *expected;  // named: the address of "a"; expected "": refused
  } cases[] = {
      {"a:1,b:1", "", "10.0.0.1", "10.0.0.1"},
      {"a:1,b:1", "", "", "a"},
      {"[::1]:1,b:1", "", "", "::1"},
      {"10.0.0.9:1,b:1", "", "", "10.0.0.9"},
      {"a:1,b:1", "a", "10.0.0.1", "a"},
      {"a:1,b:1", "a", "", "a"},
      {"a.svc.local:1,b:1", "a", "", "a"},
      {"a:1,b:1", "a.svc", "", "a.svc"},
      {"a:1,b:1", "10.35.110.11", "", "10.35.110.11"},
      {"a:1,b:1", "10.0.0.1", "10.0.0.1", "10.0.0.1"},
      {"a:1,b:1", "10.0.0.2", "10.0.0.1", ""},
      {"a:1,10.0.0.2:1", "10.0.0.2", "", ""},
      {"a:1,b:1", "10.0.0.1", "127.0.1.1", "10.0.0.1"},  // as a machine often names itself
      {"127.0.0.2:1,b:1", "127.0.0.3", "", ""},
      {"10.0.0.1:1,b:1", "localhost", "", "localhost"},  // nothing is known of localhost here
      {"10.0.0.1:1,b:1", "127.0.0.1", "", ""},
      {"10.0.0.1:1", "127.0.0.1", "", "127.0.0.1"},
      {"10.0.0.1:1", "10.0.0.2", "", ""},
      {"10.0.0.1:1,b:1", "fe80::1", "", "fe80::1"},
      {"[fe80::1]:1,b:1", "fe80:0::1", "", "fe80:0::1"},
      {"[fe80::1]:1,b:1", "[fe80::1]", "", "fe80::1"},
      {"[fe80::1]:1,b:1", "fe80::2", "", ""},
  };
  for (const auto& one : cases) {
    TestNode node("torch", {{"NODE_LIST", one.list}, {"INDEX", "0"}, {"MASTER_ADDR", one.given}});
    if (*one.named != '\0') node.names["a"] = one.named;
    SCOPED_TRACE(std::string(one.list) + " " + one.given);
    if (*one.expected == '\0') {
      EXPECT_THAT(node.Error(), AllOf(HasSubstr("MASTER_ADDR"), HasSubstr(one.given)));
    } else {
      EXPECT_EQ(node.Json()["processes"][0]["env"]["MASTER_ADDR"], one.expected);
    }
  }
}

TEST(Torch, SaysWhichNamesStandForAddresses) {
  TestNode node("torch", kTwo);
  EXPECT_THAT(node.Plan()->unresolved, ElementsAre("a"));
  node.names["a"] = "10.0.0.1";
  EXPECT_THAT(node.Plan()->unresolved, IsEmpty());
}

TEST(Torch, WithoutAnyPlatform) {
  const struct {
    int gpus;
    const char* cards;
  } cases[] = {{-1, "1"}, {0, "1"}, {1, "1"}, {4, "4"}};
  for (const auto& one : cases) {
    TestNode node("torch", {{"PATH", "/bin"}});
    node.gpus = one.gpus;
    node.options.command = {"torchrun", "x"};
    const json plan = node.Json();
    EXPECT_EQ(plan["platform"], "none");
    EXPECT_EQ(plan["role"], "master");
    EXPECT_EQ(plan["manager"], "");
    EXPECT_EQ(plan["nodes"].size(), 1u);
    EXPECT_EQ(plan["nodes"][0]["name"], "localhost");
    EXPECT_EQ(plan["processes"][0]["env"], (json{{"NODE_LIST", std::string("localhost:") + one.cards},
                                                 {"INDEX", "0"},
                                                 {"MASTER_ADDR", "localhost"},
                                                 {"MASTER_PORT", "23456"},
                                                 {"WORLD_SIZE", "1"},
                                                 {"RANK", "0"},
                                                 {"GPU_NUM", one.cards},
                                                 {"GPU_NUM_PER_NODE", one.cards}}));
    EXPECT_EQ(plan["warnings"].size(), one.gpus == 0 ? 1u : 0u);
  }
}

TEST(Torch, WithoutNodeListThereIsOneNode) {
  TestNode node("torch", {{"MASTER_ADDR", "10.0.0.1"}, {"MASTER_PORT", "5"}, {"GPU_NUM_PER_NODE", "4"}});
  node.options.command = {"python3", "-m", "torch.distributed.launch"};
  node.gpus = 8;
  const json env = node.Json()["processes"][0]["env"];
  EXPECT_EQ(env["MASTER_ADDR"], "10.0.0.1");
  EXPECT_EQ(env["MASTER_PORT"], "5");
  EXPECT_EQ(env["GPU_NUM_PER_NODE"], "4");
  EXPECT_EQ(env["GPU_NUM"], "4");
  ExpectRefused({}, {"torch", {{"WORLD_SIZE", "2"}}, {"WORLD_SIZE", "'2'", "there is 1 node"}});
  ExpectRefused({}, {"torch", {{"RANK", "1"}}, {"RANK", "'1'"}});
  ExpectRefused({}, {"torch", {{"INDEX", "1"}}, {"INDEX", "'1'", "NODE_LIST"}});
  ExpectRefused({}, {"torch", {{"GPU_NUM", "2"}}, {"GPU_NUM", "'2'", "'1'"}});
  ExpectRefused({}, {"torch", {{"GPU_NUM_PER_NODE", "0"}}, {"GPU_NUM_PER_NODE", "'0'"}});
  ExpectRefused({}, {"torch", {{"MASTER_PORT", "x"}}, {"MASTER_PORT", "'x'"}});
}

TEST(Torch, WarnsOfOneProcessForManyCards) {
  const struct {
    std::vector<std::string> command;
    const char* list;
    bool warned;
  } cases[] = {{{"python3", "train.py"}, "a:8", true},
               {{"python3", "train.py"}, "a:1", false},
               {{"/opt/bin/torchrun", "train.py"}, "a:8", false},
               {{"python3", "-m", "torch.distributed.run", "train.py"}, "a:8", false},
               {{"bash", "-c", "cd /x; python -m torch.distributed.launch --nnodes $WORLD_SIZE t.py"}, "a:8", false},
               {{"torch_npu_run", "t.py"}, "a:8", false}};
  for (const auto& one : cases) {
    TestNode node("torch", {{"NODE_LIST", one.list}, {"INDEX", "0"}});
    node.options.command = one.command;
    const std::vector<std::string> warnings = node.Plan()->warnings;
    EXPECT_EQ(warnings.size(), one.warned ? 1u : 0u) << one.command.back();
    if (!one.warned) continue;
    EXPECT_THAT(warnings, ElementsAre(AllOf(HasSubstr("GPU_NUM_PER_NODE is 8"), HasSubstr("torchrun"))));
  }
}

// ---- RDMA

class Rdma : public ::testing::Test {
 protected:
  Rdma() {
    std::string name = ::testing::TempDir() + "/modes_XXXXXX";
    sysfs_ = mkdtemp(name.data());
    std::filesystem::create_directories(std::filesystem::path(sysfs_) / "class/infiniband/mlx5_bond_0");
  }
  ~Rdma() override { std::filesystem::remove_all(sysfs_); }

  TestNode Node(const std::string& mode, const std::string& list) const {
    TestNode node(mode, {{"NODE_LIST", list}, {"INDEX", "0"}});
    node.sysfs = sysfs_;
    return node;
  }
  std::string sysfs_;
};

TEST_F(Rdma, EveryProcessHasItsVariablesIfTheMachinesAreMadeForIt) {
  for (const char* mode : {"torch", "mpi", "horovod", "ray"}) {
    const absl::StatusOr<ModePlan> plan = Node(mode, "a:8,b:8").Plan();
    ASSERT_TRUE(plan.ok()) << plan.status();
    for (const ModeProcess& process : plan->processes) {
      EXPECT_EQ(process.environment.at("NCCL_IB_HCA"), "mlx5_bond") << mode;
      EXPECT_EQ(process.environment.at("TCCL_TOPO_AFFINITY"), "4") << mode;
    }
    EXPECT_FALSE(Node(mode, "a:8,b:7").Plan()->processes[0].environment.contains("NCCL_IB_HCA")) << mode;
    EXPECT_FALSE(Node(mode, "a:8").Plan()->processes[0].environment.contains("NCCL_IB_HCA")) << mode;
  }
  TestNode ps = Node("ps", "a:8,b:8");
  ps.options.ps_num = 1;
  EXPECT_FALSE(ps.Plan()->processes[0].environment.contains("NCCL_IB_HCA"));
}

TEST_F(Rdma, TheUserDecides) {
  TestNode node = Node("torch", "a:8,b:8");
  node.environment["NCCL_DEBUG"] = "WARN";
  EXPECT_EQ(node.Plan()->processes[0].environment.at("NCCL_DEBUG"), "WARN");
  node.options.rdma = rdma::RdmaMode::kOff;
  EXPECT_FALSE(node.Plan()->processes[0].environment.contains("NCCL_IB_HCA"));
  TestNode other = Node("torch", "a:1");
  other.options.rdma = rdma::RdmaMode::kOn;
  other.sysfs = "/nonexistent";
  EXPECT_TRUE(other.Plan()->processes[0].environment.contains("NCCL_IB_HCA"));
}

// ---- mpi, horovod

const char kSeedList[] =
    "train-960258573108964736-7an39bddmfpc-launcher:1,train-960258573108964736-7an39bddmfpc-worker-0:1";

TEST(Mpi, SetsWhatThePlatformSets) {
  TestNode node("mpi", {{"NODE_LIST", kSeedList}, {"INDEX", "0"}});
  node.names = {{"train-960258573108964736-7an39bddmfpc-launcher", "9.0.255.56"},
                {"train-960258573108964736-7an39bddmfpc-worker-0", "9.0.255.118"}};
  const json plan = node.Json();
  EXPECT_EQ(plan["role"], "launcher");
  EXPECT_EQ(plan["start"], "after-all");
  EXPECT_EQ(plan["files"], (json{{{"path", "/etc/mpi/hostfile"},
                                  {"content",
                                   "train-960258573108964736-7an39bddmfpc-launcher slots=1\n"
                                   "train-960258573108964736-7an39bddmfpc-worker-0 slots=1\n"}}}));
  EXPECT_EQ(plan["processes"][0]["argv"], json{"train"});
  EXPECT_EQ(plan["processes"][0]["env"], (json{{"NODE_LIST", kSeedList},
                                               {"INDEX", "0"},
                                               {"GPU_NUM", "2"},
                                               {"GPU_NUM_PER_NODE", "1"},
                                               {"OMPI_MCA_orte_default_hostfile", "/etc/mpi/hostfile"},
                                               {"OMPI_MCA_orte_keep_fqdn_hostnames", "true"},
                                               {"NODE_IP_SLOT_LIST", "9.0.255.56:1,9.0.255.118:1"}}));
  EXPECT_EQ(plan["mpi_front"], true);
  node.environment["INDEX"] = "1";
  const json other = node.Json();
  EXPECT_EQ(other["role"], "worker");
  EXPECT_EQ(other["start"], "after-first");
  EXPECT_EQ(other["files"], plan["files"]);
  EXPECT_EQ(other["processes"][0]["argv"], json{"train"});
  EXPECT_EQ(other["serves"], false);
  EXPECT_EQ(other["mpi_front"], true);
}

TEST(Mpi, KeepsTheSlotListThatCameIn) {
  const struct {
    const char* given;
    bool kept;
  } cases[] = {{"9.0.255.56:2,9.0.255.118:3", true},  // a has this address; nothing is known of b
               {"a:2,b:3", true},
               {"a.svc:2,b.svc:3", true},
               {"9.0.255.57:2,9.0.255.118:3", false},
               {"9.0.255.118:2,9.0.255.56:3", false}};
  for (const auto& one : cases) {
    TestNode node("mpi", kTwo);
    node.names["a"] = "9.0.255.56";
    node.environment["NODE_IP_SLOT_LIST"] = one.given;
    if (one.kept) {
      EXPECT_EQ(node.Json()["processes"][0]["env"]["NODE_IP_SLOT_LIST"], one.given);
    } else {
      EXPECT_THAT(node.Error(), AllOf(HasSubstr("NODE_IP_SLOT_LIST"), HasSubstr("entry 1")));
    }
  }
}

TEST(Mpi, AddressesInTheLists) {
  TestNode node("mpi", {{"NODE_LIST", "[fe80::1]:2,10.0.0.2:3,c:1"}, {"INDEX", "2"}});
  EXPECT_EQ(node.Json()["processes"][0]["env"]["NODE_IP_SLOT_LIST"], "[fe80::1]:2,10.0.0.2:3,c:1");
  EXPECT_EQ(node.Json()["files"][0]["content"], "fe80::1 slots=2\n10.0.0.2 slots=3\nc slots=1\n");
  EXPECT_EQ(node.Json()["unresolved"], json{"c"});
}

TEST(Mpi, TheHostfileIsWhereTheVariableSays) {
  TestNode node("mpi", kTwo);
  node.environment["OMPI_MCA_orte_default_hostfile"] = "/x/hosts";
  EXPECT_EQ(node.Json()["processes"][0]["env"]["OMPI_MCA_orte_default_hostfile"], "/x/hosts");
  EXPECT_EQ(node.Json()["files"][0]["path"], "/x/hosts");
}

TEST(Mpi, TheFrontCanBeTurnedOff) {
  TestNode node("mpi", kTwo);
  node.environment["TASKD_MPI_FRONT"] = "off";
  EXPECT_FALSE(node.Plan()->mpi_front);
  node.environment["TASKD_MPI_FRONT"] = "on";
  EXPECT_TRUE(node.Plan()->mpi_front);
  EXPECT_FALSE(TestNode("horovod", kTwo).Plan()->mpi_front);
  EXPECT_FALSE(TestNode("mpi", {{"NODE_LIST", "a:1"}, {"INDEX", "0"}}).Plan()->mpi_front);
}

TEST(Mpi, ChecksSshBeforeWhatNeedsIt) {
  const struct {
    std::vector<std::string> command;
    const char *list, *index;
    bool checked;
  } cases[] = {{{"mpirun", "x"}, "a:1,b:1", "0", true},
               {{"/usr/bin/mpiexec", "x"}, "a:1,b:1", "0", true},
               {{"bash", "-c", "cd /x && mpirun -np 2 y"}, "a:1,b:1", "0", true},
               {{"horovodrun", "x"}, "a:1,b:1", "0", true},
               {{"deepspeed", "x"}, "a:1,b:1", "0", true},
               {{"python3", "prepare.py"}, "a:1,b:1", "0", false},
               {{"mpirun", "x"}, "a:1,b:1", "1", false},
               {{"mpirun", "x"}, "a:1", "0", false}};
  for (const auto& one : cases) {
    TestNode node("mpi", {{"NODE_LIST", one.list}, {"INDEX", one.index}});
    node.options.command = one.command;
    EXPECT_EQ(node.Plan()->mpi.checks_ssh, one.checked) << one.command[0] << one.list << one.index;
    EXPECT_EQ(node.Plan()->mpi.ssh_port, 22);
  }
}

TEST(Mpi, OneNodeIsALauncher) {
  const json plan = TestNode("mpi", {{"NODE_LIST", "a:4"}, {"INDEX", "0"}}).Json();
  EXPECT_EQ(plan["role"], "launcher");
  EXPECT_EQ(plan["start"], "at-once");
  EXPECT_EQ(plan["files"][0]["content"], "a slots=4\n");
}

TEST(Horovod, RunsOnTheLauncherOnly) {
  TestNode node("horovod", kTwo);
  const json worker = node.Json();
  EXPECT_EQ(worker["role"], "worker");
  EXPECT_EQ(worker["processes"], json::array());
  EXPECT_EQ(worker["serves"], true);
  EXPECT_EQ(worker["nodes"][0]["serves"], false);
  EXPECT_EQ(worker["nodes"][1]["serves"], true);
  EXPECT_EQ(worker["files"][0]["content"], "a slots=2\nb slots=3\n");
  node.environment["INDEX"] = "0";
  const json launcher = node.Json();
  EXPECT_EQ(launcher["role"], "launcher");
  EXPECT_EQ(launcher["start"], "after-all");
  EXPECT_EQ(launcher["processes"][0]["argv"], json{"train"});
  EXPECT_EQ(launcher["serves"], false);
}

// ---- ray

TEST(Ray, TheHeadStartsTheCommand) {
  TestNode node("ray", {{"NODE_LIST", "head-0:0,worker-1:1"}, {"INDEX", "0"}});
  const json plan = node.Json();
  const json base = {{"NODE_LIST", "head-0:0,worker-1:1"},
                     {"INDEX", "0"},
                     {"RANK", "0"},
                     {"HEAD_ADDR", "head-0"},
                     {"HEAD_PORT", "6379"}};
  EXPECT_EQ(plan["role"], "head");
  EXPECT_EQ(plan["start"], "after-ready");
  EXPECT_EQ(plan["binds"], (json{{{"variable", "HEAD_PORT"}, {"port", 6379}}}));
  EXPECT_EQ(plan["serves"], false);
  ASSERT_EQ(plan["processes"].size(), 2u);
  EXPECT_EQ(plan["processes"][0]["argv"],
            (json{"ray", "start", "--head", "--port=6379", "--resources={\"Rank:0\": 1}"}));
  EXPECT_EQ(plan["processes"][0]["env"], base);
  EXPECT_EQ(plan["processes"][1]["argv"], json{"train"});
  json with_address = base;
  with_address["RAY_ADDRESS"] = "head-0:6379";
  EXPECT_EQ(plan["processes"][1]["env"], with_address);
  EXPECT_EQ(node.Plan()->head_port, 6379);
}

TEST(Ray, WorkersOnlyJoin) {
  TestNode node("ray", {{"NODE_LIST", "[fe80::1]:0,b:1,c:1"},
                        {"INDEX", "2"},
                        {"HEAD_PORT", "7000"},
                        {"RANK", "2"},
                        {"RAY_ADDRESS", "x"}});
  const json plan = node.Json();
  EXPECT_EQ(plan["role"], "worker");
  EXPECT_EQ(plan["start"], "after-first");
  EXPECT_EQ(plan["binds"], json::array());
  EXPECT_EQ(plan["serves"], true);
  EXPECT_EQ(plan["nodes"][0]["serves"], false);
  EXPECT_EQ(plan["nodes"][1]["serves"], true);
  ASSERT_EQ(plan["processes"].size(), 1u);
  EXPECT_EQ(plan["processes"][0]["argv"],
            (json{"ray", "start", "--address=[fe80::1]:7000", "--resources={\"Rank:2\": 1}"}));
  EXPECT_EQ(plan["processes"][0]["env"]["RANK"], "2");
  EXPECT_EQ(plan["processes"][0]["env"]["INDEX"], "2");
  EXPECT_EQ(plan["processes"][0]["env"]["HEAD_ADDR"], "fe80::1");
}

TEST(Ray, KeepsTheHeadsAddress) {
  TestNode node("ray", kTwo);
  node.environment["HEAD_ADDR"] = "10.0.0.1";
  EXPECT_EQ(node.Json()["processes"][0]["env"]["HEAD_ADDR"], "10.0.0.1");
  EXPECT_EQ(node.Json()["processes"][0]["argv"][2], "--address=10.0.0.1:6379");
  node.names["a"] = "10.0.0.2";
  EXPECT_THAT(node.Error(), AllOf(HasSubstr("HEAD_ADDR"), HasSubstr("'10.0.0.1'")));
}

TEST(Ray, CountsWholeCpusAndGpus) {
  const struct {
    const char *cpus, *gpus;
    std::vector<std::string> words;
    size_t warnings;
  } cases[] = {{"", "", {}, 0},
               {"4", "", {"--num-cpus=4"}, 0},
               {"4.0", "2", {"--num-cpus=4", "--num-gpus=2"}, 0},
               {"0.7", "0.2", {"--num-cpus=0", "--num-gpus=1"}, 2},
               {"7.9", "1.5", {"--num-cpus=7", "--num-gpus=2"}, 2},
               {"0", "0", {"--num-cpus=0", "--num-gpus=0"}, 0}};
  for (const char* index : {"0", "1"}) {
    for (const auto& one : cases) {
      TestNode node("ray", {{"NODE_LIST", "a:1,b:1"}, {"INDEX", index}});
      node.options.num_cpus = one.cpus;
      node.options.num_gpus = one.gpus;
      const absl::StatusOr<ModePlan> plan = node.Plan();
      ASSERT_TRUE(plan.ok()) << plan.status();
      std::vector<std::string> words;
      for (const std::string& word : plan->processes[0].argv) {
        if (word.starts_with("--num")) words.push_back(word);
      }
      EXPECT_EQ(words, one.words);
      EXPECT_EQ(plan->warnings.size(), one.warnings);
    }
  }
  TestNode node("ray", {{"NODE_LIST", "a:1"}, {"INDEX", "0"}});
  node.options.num_cpus = "0.7";
  EXPECT_THAT(node.Plan()->warnings, Contains(AllOf(HasSubstr("--num-cpus 0.7"), HasSubstr("never run"))));
}

// ---- Dry run

TEST(PlanText, ShowsWhatWouldBeStarted) {
  TestNode node("mpi", kTwo);
  node.options.command = {"bash", "-c", "echo 'it' is"};
  const std::string text = ModePlanText(*node.Plan());
  EXPECT_EQ(text,
            "mode      mpi (platform: ti-one)\n"
            "role      worker, node 1 of 2\n"
            "nodes     a (2 cards), b (3 cards)\n"
            "manager   a:9601\n"
            "start     when node 0 is there\n"
            "mpirun    of node 0 only; on other nodes it waits for that\n"
            "process   bash -c 'echo '\\''it'\\'' is'\n"
            "    GPU_NUM=5\n"
            "    GPU_NUM_PER_NODE=3\n"
            "    INDEX=1\n"
            "    NODE_IP_SLOT_LIST=a:2,b:3\n"
            "    NODE_LIST=a:2,b:3\n"
            "    OMPI_MCA_orte_default_hostfile=/etc/mpi/hostfile\n"
            "    OMPI_MCA_orte_keep_fqdn_hostnames=true\n"
            "file      /etc/mpi/hostfile\n"
            "    a slots=2\n"
            "    b slots=3\n"
            "note      a does not resolve yet\n"
            "note      b does not resolve yet\n");
  EXPECT_THAT(ModePlanText(*TestNode("horovod", kTwo).Plan()), HasSubstr("process   none on this node\n"));
}

TEST(PlanJson, IsOneLineWhateverIsInIt) {
  TestNode node("torch", {});
  node.options.command = {"a\nb", "\xff\xfe", ""};
  const std::string text = ModePlanJson(*node.Plan());
  EXPECT_EQ(text.find('\n'), text.npos);
  EXPECT_EQ(json::parse(text)["processes"][0]["argv"][0], "a\nb");
  EXPECT_EQ(text.find("{\"mode\":\"torch\",\"platform\":\"none\",\"role\":\"master\",\"index\":0,\"nodes\":[{"), 0u);
  EXPECT_EQ(node.Plan()->processes[0].argv[1], "\xff\xfe");  // as it is started
}

}  // namespace
}  // namespace taskd::modes
