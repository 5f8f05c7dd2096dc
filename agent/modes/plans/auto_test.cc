// What --mode auto makes of an environment.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "agent/modes/testing/plan.h"

namespace taskd::modes {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

const char kTfConfig[] = R"({"cluster":{"ps":["p:1"],"worker":["w:1"]},"task":{"type":"ps","index":0}})";

TEST(Auto, TiOne) {
  const Environment nodes = {{"NODE_LIST", "a:1,b:1"}, {"INDEX", "0"}};
  const struct {
    Environment more;
    std::vector<std::string> command;
    Mode mode;
  } cases[] = {
      {{}, {"x"}, Mode::kTorch},
      {{{"WORLD_SIZE", "2"}}, {"horovodrun"}, Mode::kTorch},
      {{{"TF_CONFIG", kTfConfig}}, {"x"}, Mode::kPs},
      {{{"TF_CONFIG", ""}}, {"x"}, Mode::kTorch},
      {{{"HEAD_ADDR", "a"}}, {"x"}, Mode::kRay},
      {{{"OMPI_MCA_orte_default_hostfile", "/etc/mpi/hostfile"}}, {"mpirun"}, Mode::kMpi},
      {{{"NODE_IP_SLOT_LIST", "1.0.0.1:1,1.0.0.2:1"}}, {"x", "horovodrun"}, Mode::kMpi},
      {{{"OMPI_MCA_orte_default_hostfile", "/h"}, {"NODE_IP_SLOT_LIST", "a:1,b:1"}}, {"x"}, Mode::kMpi},
      {{{"NODE_IP_SLOT_LIST", "a:1,b:1"}}, {"horovodrun", "x"}, Mode::kHorovod},
      {{{"NODE_IP_SLOT_LIST", "a:1,b:1"}}, {"/usr/local/bin/horovodrun", "x"}, Mode::kHorovod},
      {{{"RANK_TABLE_FILE", "/t.json"}}, {"x"}, Mode::kTorch},
      {{{"RANK_TABLE_FILE", "/t.json"}, {"MA_CURRENT_IP", ""}}, {"x"}, Mode::kTorch},
  };
  for (const auto& one : cases) {
    TestNode node("auto", nodes);
    node.environment.insert(one.more.begin(), one.more.end());
    node.options.command = one.command;
    const absl::StatusOr<ModePlan> plan = node.Plan();
    ASSERT_TRUE(plan.ok()) << plan.status() << testing::PrintToString(one.more);
    EXPECT_EQ(ModeName(plan->mode), ModeName(one.mode)) << testing::PrintToString(one.more);
  }
  EXPECT_EQ(TestNode("auto", {}).Plan()->mode, Mode::kTorch);
}

TEST(Auto, ModelArts) {
  const Environment nodes = {
      {"MA_NUM_HOSTS", "2"}, {"MA_TASK_INDEX", "0"}, {"MA_VJ_NAME", "job"}, {"MA_TASK_NAME", "worker"}};
  const struct {
    Environment more;
    Mode mode;
  } cases[] = {
      {{}, Mode::kPytorchGpu},
      {{{"TF_PS_HOSTS", "p0,p1"}, {"TF_WORKER_HOSTS", "w0,w1"}}, Mode::kTensorflowGpu},
      {{{"VC_PS_HOSTS", "p0,p1"}, {"VC_WORKER_HOSTS", "w0,w1"}}, Mode::kTensorflowGpu},
      {{{"TF_WORKER_HOSTS", "w0,w1"}}, Mode::kPytorchGpu},
      {{{"MA_TASK_NAME", "ps"}}, Mode::kTensorflowGpu},
  };
  for (const auto& one : cases) {
    TestNode node("auto", nodes);
    for (const auto& [name, value] : one.more) node.environment[name] = value;
    const absl::StatusOr<ModePlan> plan = node.Plan();
    ASSERT_TRUE(plan.ok()) << plan.status() << testing::PrintToString(one.more);
    EXPECT_EQ(ModeName(plan->mode), ModeName(one.mode)) << testing::PrintToString(one.more);
    EXPECT_EQ(plan->platform, Platform::kModelArts);
  }
  // There is no rank table, so the error message shows which mode was chosen.
  TestNode ascend("auto", nodes);
  ascend.environment["RANK_TABLE_FILE"] = "/t.json";
  EXPECT_TRUE(absl::IsNotFound(ascend.Plan().status()));
  EXPECT_THAT(ascend.Plan().status().message(), HasSubstr("RANK_TABLE_FILE"));
}

TEST(Auto, TwoSignsContradict) {
  const std::pair<std::string, std::string> signs[] = {{"TF_CONFIG", kTfConfig},
                                                       {"HEAD_ADDR", "a"},
                                                       {"NODE_IP_SLOT_LIST", "a:1,b:1"},
                                                       {"OMPI_MCA_orte_default_hostfile", "/h"},
                                                       {"RANK_TABLE_FILE", "/t.json"}};
  for (const auto& first : signs) {
    for (const auto& second : signs) {
      const bool both_mpi = first.first[0] != 'R' && second.first[0] != 'R' &&
                            (first.first.starts_with("N") || first.first.starts_with("O")) &&
                            (second.first.starts_with("N") || second.first.starts_with("O"));
      if (both_mpi || first == second) continue;
      TestNode node("auto", {{"NODE_LIST", "a:1,b:1"}, {"INDEX", "0"}, {"MA_HOME", "/home"}});
      node.environment.insert({first, second});
      EXPECT_THAT(node.Error(), AllOf(HasSubstr(first.first), HasSubstr(second.first)));
    }
  }
}

TEST(Auto, WhatPlatformAModeIsOf) {
  const Environment model_arts = {
      {"MA_NUM_HOSTS", "2"}, {"MA_TASK_INDEX", "1"}, {"MA_VJ_NAME", "job"}, {"MA_TASK_NAME", "worker"}};
  for (const char* mode : {"mpi", "horovod"}) {
    TestNode node(mode, model_arts);
    EXPECT_EQ(node.Json()["platform"], "modelarts") << mode;
    node.environment["NODE_LIST"] = "";
    EXPECT_EQ(node.Json()["platform"], "modelarts") << mode;
    node.environment["NODE_LIST"] = "a:1,b:1";
    node.environment["INDEX"] = "0";
    EXPECT_EQ(node.Json()["platform"], "ti-one") << mode;
  }
  // The other modes of TI-ONE work with ModelArts' nodes.
  for (const char* mode : {"torch", "ray", "ps"}) {
    TestNode node(mode, model_arts);
    node.options.ps_num = 1;
    const nlohmann::json plan = node.Json();
    EXPECT_EQ(plan["platform"], "modelarts") << mode;
    EXPECT_EQ(plan["index"], 1) << mode;
    EXPECT_EQ(plan["nodes"][0]["name"], "job-worker-0.job") << mode;
    EXPECT_EQ(plan["processes"][0]["env"]["NODE_LIST"], "job-worker-0.job:1,job-worker-1.job:1") << mode;
    EXPECT_EQ(plan["processes"][0]["env"]["INDEX"], "1") << mode;
  }
}

TEST(PlanMode, NeedsAModeAndACommand) {
  TestNode node("nothing", {});
  EXPECT_THAT(node.Error(), AllOf(HasSubstr("--mode"), HasSubstr("'nothing'")));
  node.options.mode = "auto";
  node.options.command.clear();
  EXPECT_THAT(node.Error(), HasSubstr("CMD"));
  node.options.command = {"x"};
  node.options.manager = "off";  // that is for the ranks of srun and mpirun
  EXPECT_THAT(node.Error(), HasSubstr("--manager 'off'"));
}

}  // namespace
}  // namespace taskd::modes
