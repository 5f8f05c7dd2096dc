#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "agent/engine/placement.h"

namespace taskd::engine {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// As `srun -N3 --ntasks-per-node=1` sets it on the second node, Slurm 22.05.
Environment Step() {
  return {{"SLURM_JOB_ID", "4711"},      {"SLURM_JOB_NAME", "train"},   {"SLURM_JOB_NODELIST", "n[1-3]"},
          {"SLURM_JOB_NUM_NODES", "3"},  {"SLURM_LOCALID", "0"},        {"SLURM_NNODES", "3"},
          {"SLURM_NODEID", "1"},         {"SLURM_NODELIST", "n[1-3]"},  {"SLURM_NTASKS", "3"},
          {"SLURM_PROCID", "1"},         {"SLURM_STEP_ID", "0"},        {"SLURM_STEP_NODELIST", "n[1-3]"},
          {"SLURM_STEP_NUM_NODES", "3"}, {"SLURM_STEP_NUM_TASKS", "3"}, {"SLURM_STEP_TASKS_PER_NODE", "1(x3)"},
          {"SLURMD_NODENAME", "n2"}};
}

EngineMachine Machine(std::map<std::string, std::string> files = {}) {
  return {"n2", [files = std::move(files)](const std::string& path) {
            const auto file = files.find(path);
            return file == files.end() ? "" : file->second;
          }};
}

Placement Place(const Environment& environment, const EngineMachine& machine = Machine()) {
  absl::StatusOr<Placement> placement = PlaceBySlurm(environment, machine);
  EXPECT_TRUE(placement.ok()) << placement.status();
  return placement.ok() ? *placement : Placement();
}

std::string Refusal(Environment environment, const Environment& changes) {
  for (const auto& [name, value] : changes) environment[name] = value;
  const absl::StatusOr<Placement> placement = PlaceBySlurm(environment, Machine());
  EXPECT_TRUE(absl::IsInvalidArgument(placement.status())) << testing::PrintToString(changes);
  return std::string(placement.status().message());
}

std::string ValueIn(const Placement& placement, const std::string& option) {
  const Default* found = placement.Find(option);
  return found == nullptr ? "" : found->value;
}

std::string SourceIn(const Placement& placement, const std::string& option) {
  const Default* found = placement.Find(option);
  return found == nullptr ? "" : found->source;
}

TEST(SlurmTest, AStepIsTheJob) {
  const Placement placement = Place(Step());
  EXPECT_EQ(placement.where, "Slurm job 4711 step 0");
  EXPECT_EQ(placement.nodes, 3);
  EXPECT_EQ(placement.nodes_source, "SLURM_STEP_NUM_NODES");
  EXPECT_EQ(ValueIn(placement, "nnodes"), "3");
  EXPECT_EQ(ValueIn(placement, "node-rank"), "1");
  EXPECT_EQ(SourceIn(placement, "node-rank"), "SLURM_NODEID");
  EXPECT_EQ(ValueIn(placement, "master-addr"), "n1");
  EXPECT_EQ(ValueIn(placement, "rdzv-id"), "slurm-4711.0.0");
  EXPECT_EQ(ValueIn(placement, "nproc-per-node"), "");
  EXPECT_EQ(placement.job, "slurm/train-4711");
  EXPECT_EQ(placement.task_id, "4711.0");
  EXPECT_EQ(placement.master_ports, 16);
  EXPECT_THAT(placement.warnings, IsEmpty());
}

TEST(SlurmTest, ThePortIsTheSameOnAllNodesAndAnotherForAnotherStep) {
  Environment other = Step();
  other["SLURM_NODEID"] = "2";
  other["SLURMD_NODENAME"] = "n3";
  const std::string port = ValueIn(Place(Step()), "master-port");
  EXPECT_EQ(ValueIn(Place(other), "master-port"), port);
  EXPECT_GE(std::stoi(port), 20000);
  EXPECT_LT(std::stoi(port), 30000);
  other["SLURM_STEP_ID"] = "1";
  EXPECT_NE(ValueIn(Place(other), "master-port"), port);
}

TEST(SlurmTest, WithoutAStepOnlyTheNameIsTaken) {
  Environment shell = Step();
  for (const char* name : {"SLURM_STEP_ID", "SLURM_STEP_NODELIST", "SLURM_STEP_NUM_NODES", "SLURM_STEP_NUM_TASKS"}) {
    shell.erase(name);
  }
  Placement placement = Place(shell);
  EXPECT_EQ(placement.where, "");
  EXPECT_THAT(placement.defaults, IsEmpty());
  EXPECT_EQ(placement.job, "slurm/train-4711");
  ASSERT_EQ(placement.warnings.size(), 1u);
  EXPECT_THAT(placement.warnings[0], AllOf(HasSubstr("1 of 3 nodes"), HasSubstr("srun")));

  shell["SLURM_JOB_NUM_NODES"] = "1";
  EXPECT_THAT(Place(shell).warnings, IsEmpty());
  Environment interactive = Step();
  interactive["SLURM_STEP_ID"] = "4294967290";
  EXPECT_EQ(Place(interactive).where, "");
  EXPECT_EQ(Place({}).job, "");
  EXPECT_EQ(Place({{"SLURM_JOB_ID", ""}, {"SLURM_STEP_ID", "0"}}).where, "");
}

TEST(SlurmTest, ArrayTasksRequeuesAndNames) {
  Environment task = Step();
  task["SLURM_ARRAY_JOB_ID"] = "4700";
  task["SLURM_ARRAY_TASK_ID"] = "2";
  task["SLURM_RESTART_COUNT"] = "1";
  task["SLURM_JOB_NAME"] = "a b/\"c'";
  const Placement placement = Place(task);
  EXPECT_EQ(placement.where, "Slurm job 4700_2 step 0");
  EXPECT_EQ(ValueIn(placement, "rdzv-id"), "slurm-4700_2.0.1");
  EXPECT_EQ(placement.job, "slurm/a_b__c_-4711");
}

TEST(SlurmTest, DevicesOfTheNode) {
  Environment step = Step();
  step["SLURM_GPUS_ON_NODE"] = "8";
  EXPECT_EQ(ValueIn(Place(step), "nproc-per-node"), "8");
  step["SLURM_GPUS_ON_NODE"] = "0";
  EXPECT_EQ(ValueIn(Place(step), "nproc-per-node"), "");
  EXPECT_THAT(Refusal(Step(), {{"SLURM_GPUS_ON_NODE", "a100"}}), HasSubstr("SLURM_GPUS_ON_NODE 'a100'"));
}

TEST(SlurmTest, KillWait) {
  const auto timeout = [](const std::map<std::string, std::string>& files, const Environment& more = {}) {
    Environment step = Step();
    step.insert(more.begin(), more.end());
    return ValueIn(Place(step, Machine(files)), "shutdown-timeout");
  };
  EXPECT_EQ(timeout({}), "20");
  EXPECT_EQ(timeout({{"/etc/slurm/slurm.conf", "ClusterName=x\n killwait = 60 # s\n"}}), "50");
  EXPECT_EQ(timeout({{"/etc/slurm/slurm.conf", "#KillWait=90\n"}}), "20") << "Slurm's default is 30";
  EXPECT_EQ(timeout({{"/etc/slurm/slurm.conf", "KillWait=5"}}), "2.5");
  EXPECT_EQ(timeout({{"/etc/slurm/slurm.conf", "KillWait=abc"}}), "20");
  EXPECT_EQ(timeout({{"/c", "KillWait=120"}, {"/etc/slurm/slurm.conf", "KillWait=60"}}, {{"SLURM_CONF", "/c"}}), "110");
}

TEST(SlurmTest, SeveralTasksOfANode) {
  EXPECT_THAT(Refusal(Step(), {{"SLURM_STEP_NUM_TASKS", "6"}}),
              AllOf(HasSubstr("SLURM_STEP_NUM_TASKS '6'"), HasSubstr("one launcher a node: --ntasks-per-node=1"),
                    HasSubstr("--mode slurm")));
}

TEST(SlurmTest, Contradictions) {
  EXPECT_THAT(Refusal(Step(), {{"SLURM_STEP_NUM_NODES", "4"}}),
              AllOf(HasSubstr("SLURM_STEP_NUM_NODES '4'"), HasSubstr("SLURM_STEP_NODELIST 'n[1-3]'")));
  EXPECT_THAT(Refusal(Step(), {{"SLURM_STEP_NODELIST", "n[1-"}}), HasSubstr("SLURM_STEP_NODELIST 'n[1-'"));
  EXPECT_THAT(Refusal(Step(), {{"SLURM_NODEID", "3"}}), HasSubstr("SLURM_NODEID '3': has to be 0 to 2"));
  EXPECT_THAT(Refusal(Step(), {{"SLURM_NODEID", ""}}), HasSubstr("SLURM_NODEID ''"));
  EXPECT_THAT(Refusal(Step(), {{"SLURM_NODEID", "0"}}), AllOf(HasSubstr("SLURMD_NODENAME 'n2'"), HasSubstr("n1")));
  EXPECT_THAT(Refusal(Step(), {{"SLURM_STEP_NUM_TASKS", "1"}}), HasSubstr("SLURM_STEP_NUM_TASKS '1'"));
  EXPECT_THAT(Refusal(Step(), {{"SLURM_JOB_NODELIST", "m[1-2]"}}),
              AllOf(HasSubstr("n1 is not in SLURM_JOB_NODELIST 'm[1-2]'"), HasSubstr("unset SLURM_STEP_ID")));
  EXPECT_THAT(Refusal(Step(), {{"SLURM_HET_SIZE", "2"}}), HasSubstr("heterogeneous"));
}

TEST(SlurmTest, TenThousandNodes) {
  Environment step = Step();
  step["SLURM_JOB_NODELIST"] = step["SLURM_STEP_NODELIST"] = "node[00001-10000]";
  step["SLURM_STEP_NUM_NODES"] = step["SLURM_STEP_NUM_TASKS"] = "10000";
  step["SLURM_NODEID"] = "9999";
  step["SLURMD_NODENAME"] = "node10000";
  EXPECT_EQ(Place(step).nodes, 10000);
}

}  // namespace
}  // namespace taskd::engine
