#include "agent/run/placed_words.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace taskd::run {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

const Environment kStep = {
    {"SLURM_JOB_ID", "4711"},          {"SLURM_JOB_NAME", "train"},   {"SLURM_JOB_NODELIST", "n[1-3]"},
    {"SLURM_JOB_NUM_NODES", "3"},      {"SLURM_NODEID", "1"},         {"SLURM_STEP_ID", "0"},
    {"SLURM_STEP_NODELIST", "n[1-3]"}, {"SLURM_STEP_NUM_NODES", "3"}, {"SLURM_STEP_NUM_TASKS", "3"}};

absl::StatusOr<RunOptions> Parse(std::vector<std::string> arguments, Environment more = {}) {
  more.insert(kStep.begin(), kStep.end());
  arguments.push_back("train.py");
  std::string help;
  return ParseRunOptions(arguments, more, &help, {"n2", [](const std::string&) { return std::string(); }});
}

RunOptions MustParse(const std::vector<std::string>& arguments, const Environment& more = {}) {
  absl::StatusOr<RunOptions> options = Parse(arguments, more);
  EXPECT_TRUE(options.ok()) << options.status();
  return options.ok() ? *options : RunOptions();
}

std::string Refusal(const std::vector<std::string>& arguments, const Environment& more = {}) {
  const absl::StatusOr<RunOptions> options = Parse(arguments, more);
  EXPECT_TRUE(absl::IsInvalidArgument(options.status())) << ::testing::PrintToString(arguments);
  return std::string(options.status().message());
}

TEST(PlacedWordsTest, NothingGiven) {
  const RunOptions options = MustParse({});
  EXPECT_EQ(options.min_nodes, 3);
  EXPECT_EQ(options.max_nodes, 3);
  EXPECT_EQ(options.node_rank, 1);
  EXPECT_EQ(options.procs_per_node, 1);
  EXPECT_EQ(options.master_addr, "n1");
  EXPECT_EQ(options.rdzv_endpoint, "n1:" + std::to_string(options.master_port));
  EXPECT_EQ(options.rdzv_id, "slurm-4711.0.0");
  EXPECT_EQ(options.master_ports, 16);
  EXPECT_TRUE(options.master_is_node_0);
  EXPECT_EQ(options.job, "slurm/train-4711");
  EXPECT_EQ(options.task_id, "4711.0");
  EXPECT_EQ(options.shutdown_timeout_s, 20);
  EXPECT_EQ(PlacementLine(options, 23711),
            "under Slurm job 4711 step 0: 3 nodes, node rank by SLURM_NODEID, master n1:23711");
  EXPECT_THAT(DryRunText(options), AllOf(HasSubstr("under Slurm job 4711 step 0"), HasSubstr("nnodes: 3\n"),
                                         HasSubstr("job: slurm/train-4711\n"), HasSubstr("program: train.py\n")));
}

// A pod has its place by torchrun's own variables, and Kubernetes' grace period.
TEST(PlacedWordsTest, KubeflowsPodsEndInTime) {
  const auto timeout = [](const Environment& place, const std::vector<std::string>& more = {}) {
    Environment pod = {{"KUBERNETES_SERVICE_HOST", "10.96.0.1"}, {"PET_NNODES", "2"}};
    pod.insert(place.begin(), place.end());
    std::vector<std::string> words = more;
    words.push_back("train.py");
    std::string help;
    const absl::StatusOr<RunOptions> options =
        ParseRunOptions(words, pod, &help, {"train-worker-0", [](const std::string&) { return std::string(); }});
    EXPECT_TRUE(options.ok()) << options.status();
    return options.ok() ? options->shutdown_timeout_s : 0;
  };
  const Environment fixed = {{"PET_NODE_RANK", "1"}, {"PET_MASTER_ADDR", "train-master-0"}};
  EXPECT_EQ(timeout(fixed), 20);
  EXPECT_EQ(timeout(fixed, {"--shutdown-timeout=7"}), 7);
  EXPECT_EQ(timeout({{"PET_RDZV_BACKEND", "c10d"}, {"PET_RDZV_ENDPOINT", "train-worker-0:29400"}}), 20);
}

TEST(PlacedWordsTest, WhatIsGivenWins) {
  const RunOptions options =
      MustParse({"--nproc-per-node=2", "--master-port=29500", "--shutdown-timeout=7"},
                {{"SLURM_GPUS_ON_NODE", "8"}, {"PET_MASTER_ADDR", "10.0.0.1"}, {"PET_NODE_RANK", ""}});
  EXPECT_EQ(options.procs_per_node, 2);
  EXPECT_EQ(options.master_addr, "10.0.0.1");
  EXPECT_EQ(options.master_port, 29500);
  EXPECT_EQ(options.master_ports, 1);
  EXPECT_EQ(options.shutdown_timeout_s, 7);
  EXPECT_EQ(MustParse({}, {{"SLURM_GPUS_ON_NODE", "8"}}).procs_per_node, 8);
  EXPECT_EQ(MustParse({"--node-rank=1"}).node_rank_by, "--node-rank");
  EXPECT_EQ(MustParse({}, {{"TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "90"}}).shutdown_timeout_s, 90);
}

TEST(PlacedWordsTest, TheNumberOfNodes) {
  EXPECT_EQ(MustParse({"--nnodes=3"}).max_nodes, 3);
  EXPECT_THAT(Refusal({"--nnodes=2"}),
              AllOf(HasSubstr("--nnodes '2'"), HasSubstr("has 3 nodes"), HasSubstr("SLURM_STEP_NUM_NODES")));
  EXPECT_THAT(Refusal({}, {{"PET_NNODES", "4"}}), HasSubstr("PET_NNODES '4'"));
  EXPECT_THAT(Refusal({"--nnodes=4:8"}), HasSubstr("--nnodes '4:8'"));
  EXPECT_THAT(Refusal({"--nnodes=x"}), HasSubstr("--nnodes 'x': N or MIN:MAX"));

  const RunOptions elastic = MustParse({"--nnodes=2:8"});
  EXPECT_EQ(elastic.min_nodes, 2);
  EXPECT_EQ(elastic.max_nodes, 3) << "no more can come";
  EXPECT_EQ(elastic.node_rank, 1);

  const RunOptions alone = MustParse({"--nnodes=1"});
  EXPECT_EQ(alone.max_nodes, 1);
  EXPECT_EQ(alone.node_rank, 0);
  EXPECT_EQ(alone.master_addr, "127.0.0.1");
  EXPECT_EQ(alone.placed_by, "");
  EXPECT_EQ(alone.job, "slurm/train-4711");
}

TEST(PlacedWordsTest, ContradictionsOfNodeRankAndMaster) {
  EXPECT_THAT(Refusal({"--node-rank=0"}),
              AllOf(HasSubstr("--node-rank '0'"), HasSubstr("this is node 1"), HasSubstr("SLURM_NODEID")));
  EXPECT_THAT(Refusal({"--master-addr=n2"}), AllOf(HasSubstr("--master-addr 'n2'"), HasSubstr("is n1")));
  const RunOptions second_name = MustParse({"--master-addr=n1-ib0"});
  EXPECT_EQ(second_name.master_addr, "n1-ib0");
  EXPECT_FALSE(second_name.master_is_node_0) << "it may be anything that leads there";
}

TEST(PlacedWordsTest, ARendezvousOfItsOwnOnlyTakesTheName) {
  const RunOptions options =
      MustParse({"--nnodes=3", "--rdzv-backend=c10d", "--rdzv-endpoint=n1:29500", "--rdzv-id=4711"});
  EXPECT_EQ(options.rdzv_endpoint, "n1:29500");
  EXPECT_EQ(options.rdzv_id, "4711");
  EXPECT_EQ(options.placed_by, "");
  EXPECT_EQ(options.master_ports, 1);
  EXPECT_EQ(options.job, "slurm/train-4711");
  EXPECT_EQ(options.shutdown_timeout_s, 20);
  EXPECT_TRUE(MustParse({"--standalone"}).standalone);
  EXPECT_EQ(MustParse({"--standalone"}, {{"SLURM_NODEID", "9"}}).max_nodes, 1);
}

TEST(PlacedWordsTest, AWorldOfItsOwnOnEachNodeIsRefused) {
  EXPECT_THAT(Refusal({"--rdzv-backend=c10d"}),
              AllOf(HasSubstr("--nnodes is not given"), HasSubstr("3 nodes"), HasSubstr("world of its own")));
  EXPECT_THAT(Refusal({}, {{"PET_RDZV_ENDPOINT", "n1:29500"}}), HasSubstr("--nnodes is not given"));
}

TEST(PlacedWordsTest, BelowAnotherLauncherNothingIsTaken) {
  for (const char* outer : {"TORCHELASTIC_RUN_ID", "TASKD_RUN_COOKIE"}) {
    const RunOptions options = MustParse({}, {{outer, "x"}, {"SLURM_NODEID", "9"}});
    EXPECT_EQ(options.max_nodes, 1) << outer;
    EXPECT_EQ(options.job, "") << outer;
  }
}

TEST(PlacedWordsTest, AStepThatARankHasStartedIsNoWorldOnEachNode) {
  const Environment outer = {{"TORCHELASTIC_RUN_ID", "slurm-4711.7.0"}, {"TASKD_TASK_ID", "4711.7"}};
  EXPECT_THAT(Refusal({}, outer), AllOf(HasSubstr("TASKD_TASK_ID '4711.7'"), HasSubstr("Slurm job 4711 step 0"),
                                        HasSubstr("each of 3 nodes"), HasSubstr("--export=PATH,HOME")));
  EXPECT_EQ(MustParse({"--standalone"}, outer).max_nodes, 1);
  EXPECT_EQ(MustParse({"--nnodes=1"}, outer).max_nodes, 1);
  EXPECT_EQ(MustParse({"--nnodes=3", "--rdzv-backend=c10d", "--rdzv-endpoint=n1:29500"}, outer).max_nodes, 3);
  // A launcher of the rank itself is of the rank's step; a task id may be the user's own.
  for (const char* id : {"4711.0", "mine", ""}) {
    EXPECT_EQ(MustParse({}, {{"TORCHELASTIC_RUN_ID", "slurm-4711.0.0"}, {"TASKD_TASK_ID", id}}).max_nodes, 1) << id;
  }
}

TEST(PlacedWordsTest, OneNode) {
  const Environment one = {{"SLURM_STEP_NODELIST", "n2"},
                           {"SLURM_STEP_NUM_NODES", "1"},
                           {"SLURM_STEP_NUM_TASKS", "1"},
                           {"SLURM_NODEID", "0"}};
  for (const std::vector<std::string>& arguments : {std::vector<std::string>{}, {"--nnodes=1"}}) {
    const RunOptions options = MustParse(arguments, one);
    EXPECT_EQ(options.master_addr, "n2");
    EXPECT_EQ(options.master_ports, 16);
    EXPECT_THAT(options.warnings, IsEmpty());
  }
}

}  // namespace
}  // namespace taskd::run
