#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "agent/modes/plans/mode_plan.h"

namespace taskd::modes {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;

const std::map<std::string, std::string> kAddresses = {{"vj-worker-0.vj", "10.0.0.1"},
                                                       {"vj-worker-1.vj", "10.0.0.2"},
                                                       {"vj-worker-2.vj", "10.0.0.2"},
                                                       {"localhost", "127.0.0.1"}};

ModeMachine Machine() {
  ModeMachine machine;
  machine.ipv4 = [](const std::string& host) {
    const auto found = kAddresses.find(host);
    return found == kAddresses.end() ? "" : found->second;
  };
  machine.gpus = [] { return -1; };
  machine.read_file = [](const std::string&) { return absl::NotFoundError("no files here"); };
  return machine;
}

// Of two nodes, the first one, unless `changes` say otherwise; a variable that is changed to "" is not set.
Environment Variables(const Environment& changes = {}) {
  Environment environment = {{"MA_NUM_HOSTS", "2"},
                             {"MA_TASK_INDEX", "0"},
                             {"MA_NUM_GPUS", "4"},
                             {"MA_VJ_NAME", "vj"},
                             {"MA_TASK_NAME", "worker"}};
  for (const auto& [name, value] : changes) environment[name] = value;
  return environment;
}

absl::StatusOr<ModePlan> Plan(const std::string& mode, const Environment& environment,
                              std::vector<std::string> command = {"python", "train.py"},
                              const ModeMachine& machine = Machine()) {
  ModeOptions options;
  options.mode = mode;
  options.command = std::move(command);
  return PlanMode(options, environment, machine);
}

// ---- nodes

TEST(ModelArtsNodes, AreNamedByTheJob) {
  const auto plan = Plan("pytorch-gpu", Variables({{"MA_TASK_INDEX", "1"}}));
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->platform, Platform::kModelArts);
  ASSERT_EQ(plan->nodes.size(), 2u);
  EXPECT_EQ(plan->nodes[0].name, "vj-worker-0.vj");
  EXPECT_EQ(plan->nodes[1].name, "vj-worker-1.vj");
  EXPECT_EQ(plan->nodes[1].cards, 4);
  EXPECT_EQ(plan->index, 1);
  EXPECT_EQ(plan->manager, "vj-worker-0.vj:9601");
}

TEST(ModelArtsNodes, IndexIsTheFirstVariableThatIsSet) {
  const struct {
    const char *ma, *vc, *vk;
    int index;
  } cases[] = {{"1", "0", "0", 1}, {"", "1", "0", 1}, {"", "", "1", 1}, {"0", "1", "1", 0}};
  for (const auto& one : cases) {
    const auto plan = Plan(
        "pytorch-gpu", Variables({{"MA_TASK_INDEX", one.ma}, {"VC_TASK_INDEX", one.vc}, {"VK_TASK_INDEX", one.vk}}));
    ASSERT_TRUE(plan.ok()) << plan.status();
    EXPECT_EQ(plan->index, one.index);
  }
}

TEST(ModelArtsNodes, OneNodeNeedsNoNames) {
  const auto plan = Plan("pytorch-gpu", {{"MA_NUM_HOSTS", "1"}, {"VC_TASK_INDEX", "0"}});
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->nodes[0].name, "localhost");
  EXPECT_EQ(plan->nodes[0].cards, 1);
  EXPECT_EQ(plan->manager, "");
}

TEST(ModelArts, RefusesWithVariableValueAndRule) {
  const struct {
    const char* mode;
    Environment changes;
    std::vector<std::string> words;
  } cases[] = {
      {"pytorch-gpu", {{"MA_NUM_HOSTS", ""}}, {"MA_NUM_HOSTS", "not set"}},
      {"pytorch-gpu", {{"MA_NUM_HOSTS", "0"}}, {"MA_NUM_HOSTS", "'0'", "1"}},
      {"pytorch-gpu", {{"MA_NUM_HOSTS", "-1"}}, {"MA_NUM_HOSTS", "'-1'"}},
      {"pytorch-gpu", {{"MA_NUM_HOSTS", "two"}}, {"MA_NUM_HOSTS", "'two'"}},
      {"pytorch-gpu", {{"MA_NUM_HOSTS", "2000000000"}}, {"MA_NUM_HOSTS", "'2000000000'"}},
      {"pytorch-gpu", {{"MA_TASK_INDEX", ""}}, {"MA_TASK_INDEX", "VC_TASK_INDEX", "VK_TASK_INDEX", "not set"}},
      {"pytorch-gpu", {{"MA_TASK_INDEX", "2"}}, {"MA_TASK_INDEX", "'2'", "MA_NUM_HOSTS is 2"}},
      {"pytorch-gpu", {{"MA_TASK_INDEX", "-1"}}, {"MA_TASK_INDEX", "'-1'"}},
      {"pytorch-gpu", {{"MA_TASK_INDEX", "x"}}, {"MA_TASK_INDEX", "'x'"}},
      {"pytorch-gpu", {{"MA_TASK_INDEX", ""}, {"VC_TASK_INDEX", "7"}}, {"VC_TASK_INDEX", "'7'"}},
      {"pytorch-gpu", {{"MA_TASK_INDEX", ""}, {"VK_TASK_INDEX", "7"}}, {"VK_TASK_INDEX", "'7'"}},
      {"pytorch-gpu", {{"MA_NUM_GPUS", "four"}}, {"MA_NUM_GPUS", "'four'"}},
      {"pytorch-gpu", {{"MA_NUM_GPUS", "-1"}}, {"MA_NUM_GPUS", "'-1'"}},
      {"pytorch-gpu", {{"MA_VJ_NAME", ""}}, {"MA_VJ_NAME", "not set"}},
      {"pytorch-gpu", {{"MA_TASK_NAME", ""}}, {"MA_TASK_NAME", "not set"}},
      {"pytorch-gpu", {{"MA_VJ_NAME", "a b"}}, {"MA_VJ_NAME", "'a b'", "blank"}},
      {"pytorch-gpu", {{"MA_VJ_NAME", "a\nb"}}, {"MA_VJ_NAME", "'a?b'"}},
      {"pytorch-gpu", {{"MASTER_PORT", "0"}}, {"MASTER_PORT", "'0'", "65535"}},
      {"pytorch-gpu", {{"MASTER_PORT", "65536"}}, {"MASTER_PORT", "'65536'"}},
      {"pytorch-gpu", {{"MASTER_PORT", "http"}}, {"MASTER_PORT", "'http'"}},
      {"mpi", {{"MA_TASK_INDEX", "2"}}, {"MA_TASK_INDEX", "'2'"}},
      {"mpi", {{"MA_NUM_GPUS", "0"}}, {"MA_NUM_GPUS", "'0'"}},
      {"mpi", {{"MY_MPI_SLOTS", "0"}}, {"MY_MPI_SLOTS", "'0'"}},
      {"horovod", {{"MY_MPI_SLOTS", "x"}}, {"MY_MPI_SLOTS", "'x'"}},
      {"mpi", {{"MY_SSHD_PORT", "0"}}, {"MY_SSHD_PORT", "'0'", "65535"}},
      {"mpi", {{"MY_SSHD_PORT", "70000"}}, {"MY_SSHD_PORT", "'70000'"}},
      {"mpi", {{"MA_NUM_HOSTS", "3"}}, {"vj-worker-1.vj", "vj-worker-2.vj", "10.0.0.2"}},
  };
  for (const auto& one : cases) {
    const auto plan = Plan(one.mode, Variables(one.changes));
    ASSERT_TRUE(absl::IsInvalidArgument(plan.status())) << one.words[0] << plan.status();
    const std::string text(plan.status().message());
    for (const std::string& word : one.words) EXPECT_THAT(text, HasSubstr(word));
    EXPECT_EQ(text.find('\n'), text.npos) << text;
  }
}

// ---- mpi, horovod

TEST(ModelArtsMpi, FirstNodeRunsMpirun) {
  const auto plan =
      Plan("horovod", Variables({{"PATH", "/bin"}, {"LANG", "C"}, {"SHARED_DIR", "/s"}, {"CREDITS", ""}}));
  ASSERT_TRUE(plan.ok()) << plan.status();
  ASSERT_EQ(plan->processes.size(), 1u);
  EXPECT_THAT(
      plan->processes[0].argv,
      ElementsAre("mpirun", "-np", "8", "-hostfile", "/home/ma-user/hostfile", "-mca", "plm_rsh_args", "-p 36666",
                  "-bind-to", "none", "-map-by", "slot", "-x", "NCCL_DEBUG=INFO", "-x", "NCCL_SOCKET_IFNAME=eth0,bond0",
                  "-x", "NCCL_SOCKET_FAMILY=AF_INET", "-x", "HOROVOD_MPI_THREADS_DISABLE=1", "-x", "LD_LIBRARY_PATH",
                  "-x", "MA_NUM_GPUS", "-x", "MA_NUM_HOSTS", "-x", "MA_TASK_INDEX", "-x", "MA_TASK_NAME", "-x",
                  "MA_VJ_NAME", "-x", "PATH", "-x", "SHARED_DIR", "-mca", "pml", "ob1", "-mca", "btl", "^openib",
                  "-mca", "plm_rsh_no_tree_spawn", "true", "python", "train.py"));
  ASSERT_EQ(plan->files.size(), 2u);
  EXPECT_EQ(plan->files[0].path, "/home/ma-user/hostfile");
  EXPECT_EQ(plan->files[0].content, "10.0.0.1 slots=4\n10.0.0.2 slots=4\n");
  EXPECT_EQ(plan->files[1].path, "/home/ma-user/env_for_user_process");
  EXPECT_EQ(plan->files[1].content,
            "-x MA_NUM_GPUS=4\n-x MA_NUM_HOSTS=2\n-x MA_TASK_INDEX=0\n-x MA_TASK_NAME=worker\n-x MA_VJ_NAME=vj\n"
            "-x PATH=/bin\n-x SHARED_DIR=/s\n");
  EXPECT_THAT(plan->warnings, IsEmpty());
  const Environment& environment = plan->processes[0].environment;
  EXPECT_THAT(environment, Contains(Pair("NCCL_DEBUG", "INFO")));
  EXPECT_THAT(environment, Contains(Pair("NCCL_SOCKET_IFNAME", "eth0,bond0")));
  EXPECT_THAT(environment, Contains(Pair("NCCL_SOCKET_FAMILY", "AF_INET")));
  EXPECT_THAT(environment, Contains(Pair("HOROVOD_MPI_THREADS_DISABLE", "1")));
  EXPECT_THAT(environment, Contains(Pair("MA_VJ_NAME", "vj")));
  EXPECT_EQ(environment.count("LANG"), 0u);
  EXPECT_EQ(environment.count("OMPI_ALLOW_RUN_AS_ROOT"), 0u);
  EXPECT_EQ(plan->role, "worker");
  EXPECT_EQ(plan->start, StartRule::kAfterAll);
  EXPECT_FALSE(plan->serves);
  EXPECT_TRUE(plan->nodes[1].serves);
  EXPECT_FALSE(plan->mpi_front);
  EXPECT_EQ(plan->mpi.ssh_port, 36666);
  EXPECT_EQ(plan->mpi.sshd_config, "/home/ma-user/etc/ssh/sshd_config");
  EXPECT_TRUE(plan->mpi.checks_ssh);
}

TEST(ModelArtsMpi, OtherNodesOnlyServe) {
  const auto plan = Plan("mpi", Variables({{"MA_TASK_INDEX", "1"}, {"MY_SSHD_PORT", "2222"}, {"MA_HOME", "/h"}}));
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_THAT(plan->processes, IsEmpty());
  EXPECT_THAT(plan->files, IsEmpty());
  EXPECT_EQ(plan->role, "worker");
  EXPECT_TRUE(plan->serves);
  EXPECT_FALSE(plan->nodes[0].serves);
  EXPECT_TRUE(plan->nodes[1].serves);
  EXPECT_EQ(plan->start, StartRule::kAfterFirst);
  EXPECT_EQ(plan->mpi.ssh_port, 2222);
  EXPECT_EQ(plan->mpi.sshd_config, "/h/etc/ssh/sshd_config");
  EXPECT_FALSE(plan->mpi.checks_ssh);
}

TEST(ModelArtsMpi, TakesWhatTheUserSets) {
  ModeMachine machine = Machine();
  machine.root = true;
  const auto plan = Plan("mpi",
                         Variables({{"MY_SSHD_PORT", "2222"},
                                    {"MY_MPI_BTL_TCP_IF", "ib0"},
                                    {"MY_MPI_SLOTS", "3"},
                                    {"MA_HOME", "/my home"},
                                    {"LD_LIBRARY_PATH", "/l"},
                                    {"OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "0"},
                                    {"NCCL_DEBUG", "WARN"}}),
                         {"a"}, machine);
  ASSERT_TRUE(plan.ok()) << plan.status();
  const auto& [argv, environment] = plan->processes[0];
  EXPECT_EQ(argv[2], "6");
  EXPECT_EQ(argv[4], "/my home/hostfile");
  EXPECT_EQ(argv[7], "-p 2222");
  EXPECT_THAT(argv, Contains("NCCL_SOCKET_IFNAME=ib0"));
  EXPECT_THAT(environment, Contains(Pair("NCCL_SOCKET_IFNAME", "ib0")));
  EXPECT_THAT(environment, Contains(Pair("NCCL_DEBUG", "INFO")));
  EXPECT_THAT(environment, Contains(Pair("MY_MPI_SLOTS", "3")));
  EXPECT_THAT(environment, Contains(Pair("LD_LIBRARY_PATH", "/l")));
  EXPECT_THAT(environment, Contains(Pair("OMPI_ALLOW_RUN_AS_ROOT", "1")));
  EXPECT_THAT(environment, Contains(Pair("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "0")));
  EXPECT_EQ(plan->files[0].content, "10.0.0.1 slots=3\n10.0.0.2 slots=3\n");
}

TEST(ModelArtsMpi, WarnsOfValuesThatTheTuneFileCannotCarry) {
  const std::string long_value(16001, 'x');
  const auto plan = Plan("mpi", {{"MA_NUM_HOSTS", "1"},
                                 {"MA_TASK_INDEX", "0"},
                                 {"SHARED_GOOD", "a=b#c\"d'"},
                                 {"S3_HASH", "#x"},
                                 {"S3_BLANK", "two words"},
                                 {"VC_WORKER_TAB", "a\tb"},
                                 {"SCC_SEMICOLON", "a;b"},
                                 {"CRED_NEWLINE", "a\nb"},
                                 {"PATH_LONG", long_value}});
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_THAT(plan->warnings, ::testing::UnorderedElementsAre(HasSubstr("S3_BLANK"), HasSubstr("VC_WORKER_TAB"),
                                                              HasSubstr("SCC_SEMICOLON"), HasSubstr("CRED_NEWLINE"),
                                                              HasSubstr("PATH_LONG")));
  EXPECT_EQ(plan->files[1].content,
            "-x MA_NUM_HOSTS=1\n-x MA_TASK_INDEX=0\n-x S3_BLANK=two words\n-x S3_HASH=#x\n-x SCC_SEMICOLON=a;b\n"
            "-x SHARED_GOOD=a=b#c\"d'\n-x VC_WORKER_TAB=a\tb\n");
  for (const char* name : {"S3_BLANK", "VC_WORKER_TAB", "SCC_SEMICOLON", "CRED_NEWLINE", "PATH_LONG", "S3_HASH"}) {
    EXPECT_THAT(plan->processes[0].argv, Contains(name));
  }
  EXPECT_THAT(plan->processes[0].environment, Contains(Pair("CRED_NEWLINE", "a\nb")));
  EXPECT_THAT(plan->processes[0].environment, Contains(Pair("PATH_LONG", long_value)));
}

TEST(ModelArtsMpi, OneNodeNeedsNoSsh) {
  const auto plan = Plan("mpi", {{"MA_NUM_HOSTS", "1"}, {"MA_TASK_INDEX", "0"}});
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->files[0].content, "127.0.0.1 slots=1\n");
  EXPECT_EQ(plan->processes[0].argv[2], "1");
  EXPECT_EQ(plan->mpi.sshd_config, "");
  EXPECT_FALSE(plan->mpi.checks_ssh);
}

TEST(ModelArtsMpi, NamesStandInForAddresses) {
  const auto plan = Plan("mpi", Variables({{"MA_VJ_NAME", "unknown"}}));
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->files[0].content, "unknown-worker-0.unknown slots=4\nunknown-worker-1.unknown slots=4\n");
  EXPECT_THAT(plan->unresolved, ElementsAre("unknown-worker-0.unknown", "unknown-worker-1.unknown"));
}

TEST(ModelArtsMpi, RdmaOnReachesEveryRank) {
  ModeOptions options;
  options.mode = "mpi";
  options.command = {"a"};
  options.rdma = rdma::RdmaMode::kOn;
  const auto plan = PlanMode(options, Variables({{"NCCL_IB_TC", "7"}}), Machine());
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_THAT(plan->processes[0].argv, Contains("NCCL_IB_HCA"));
  EXPECT_THAT(plan->processes[0].environment, Contains(Pair("NCCL_IB_TC", "7")));
  EXPECT_THAT(plan->processes[0].environment, Contains(Pair("NCCL_SOCKET_IFNAME", "eth0,bond0")));
}

// ---- pytorch-gpu

TEST(PytorchGpu, OneNode) {
  const auto plan = Plan("pytorch-gpu", Variables({{"MA_NUM_HOSTS", "1"}, {"MASTER_PORT", "1234"}}));
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_THAT(plan->processes[0].argv, ElementsAre("python", "train.py", "--init_method", "tcp://10.0.0.1:1234"));
  EXPECT_THAT(plan->processes[0].environment, Contains(Pair("MASTER_PORT", "1234")));
  EXPECT_EQ(plan->role, "worker");
  EXPECT_EQ(plan->start, StartRule::kAtOnce);
  ASSERT_EQ(plan->binds.size(), 1u);
  EXPECT_EQ(plan->binds[0].variable, "MASTER_PORT");
  EXPECT_EQ(plan->binds[0].port, 1234);
}

TEST(PytorchGpu, AllNodesAgreeOnAPort) {
  const auto first = Plan("pytorch-gpu", Variables());
  const auto second = Plan("pytorch-gpu", Variables({{"MA_TASK_INDEX", "1"}}));
  ASSERT_TRUE(first.ok() && second.ok()) << first.status() << second.status();
  ASSERT_EQ(first->binds.size(), 1u);
  const int port = first->binds[0].port;
  EXPECT_GE(port, 20000);
  EXPECT_LT(port, 30000);
  const std::string method = "tcp://10.0.0.1:" + std::to_string(port);
  EXPECT_THAT(first->processes[0].argv,
              ElementsAre("python", "train.py", "--init_method", method, "--rank", "0", "--world_size", "2"));
  EXPECT_THAT(second->processes[0].argv,
              ElementsAre("python", "train.py", "--init_method", method, "--rank", "1", "--world_size", "2"));
  EXPECT_EQ(first->start, StartRule::kAtOnce);
  EXPECT_EQ(second->start, StartRule::kAfterFirst);
  EXPECT_THAT(second->binds, IsEmpty());
  const auto other = Plan("pytorch-gpu", Variables({{"MA_VJ_NAME", "other"}}));
  EXPECT_NE(other->binds[0].port, port);
}

TEST(PytorchGpu, WhatTheCommandHasIsKept) {
  const struct {
    std::vector<std::string> command, appended;
    size_t warnings, binds;
  } cases[] = {
      {{"a", "--rank", "5"}, {"--init_method", "tcp://10.0.0.1:1234", "--world_size", "2"}, 1, 1},
      {{"a", "--rank=5"}, {"--init_method", "tcp://10.0.0.1:1234", "--world_size", "2"}, 1, 1},
      {{"a", "--world_size=3"}, {"--init_method", "tcp://10.0.0.1:1234", "--rank", "0"}, 1, 1},
      {{"a", "--init_method", "env://"}, {"--rank", "0", "--world_size", "2"}, 1, 0},
      {{"a", "--init_method=x", "--rank=1", "--world_size=2"}, {}, 3, 0},
      {{"a", "--ranks", "5", "rank", "--rank_file=x"},
       {"--init_method", "tcp://10.0.0.1:1234", "--rank", "0", "--world_size", "2"},
       0,
       1},
  };
  for (const auto& one : cases) {
    const auto plan = Plan("pytorch-gpu", Variables({{"MASTER_PORT", "1234"}}), one.command);
    ASSERT_TRUE(plan.ok()) << plan.status();
    std::vector<std::string> argv = one.command;
    argv.insert(argv.end(), one.appended.begin(), one.appended.end());
    EXPECT_EQ(plan->processes[0].argv, argv);
    EXPECT_EQ(plan->warnings.size(), one.warnings);
    EXPECT_EQ(plan->binds.size(), one.binds);
  }
}

TEST(PytorchGpu, NameStandsInForTheAddress) {
  const auto plan = Plan("pytorch-gpu", Variables({{"MA_VJ_NAME", "u"}, {"MASTER_PORT", "1234"}}));
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->processes[0].argv[3], "tcp://u-worker-0.u:1234");
  EXPECT_THAT(plan->unresolved, ElementsAre("u-worker-0.u"));
}

}  // namespace
}  // namespace taskd::modes
