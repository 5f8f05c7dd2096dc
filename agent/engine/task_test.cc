#include "agent/engine/task.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

namespace taskd::engine {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// As `srun -n7` over three nodes sets it in its last task, Slurm 22.05.
Environment SlurmTask() {
  return {{"SLURM_JOB_ID", "4711"},      {"SLURM_JOB_NAME", "train"},   {"SLURM_JOB_NODELIST", "n[1-3]"},
          {"SLURM_LOCALID", "0"},        {"SLURM_NODEID", "2"},         {"SLURM_NTASKS", "9"},
          {"SLURM_PROCID", "6"},         {"SLURM_STEP_ID", "1"},        {"SLURM_STEP_NODELIST", "n[1-3]"},
          {"SLURM_STEP_NUM_NODES", "3"}, {"SLURM_STEP_NUM_TASKS", "7"}, {"SLURM_STEP_TASKS_PER_NODE", "3(x2),1"},
          {"SLURMD_NODENAME", "n3"}};
}

Environment OpenMpiRank() {
  return {{"OMPI_COMM_WORLD_RANK", "3"},
          {"OMPI_COMM_WORLD_SIZE", "4"},
          {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
          {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
          {"PMIX_RANK", "3"},
          {"PMIX_NAMESPACE", "187367425"}};
}

Environment HydraRank() {
  return {{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}, {"MPI_LOCALRANKID", "1"}, {"MPI_LOCALNRANKS", "2"}};
}

EngineMachine Machine(std::map<std::string, std::string> files = {}) {
  return {"n2", [files = std::move(files)](const std::string& path) {
            const auto file = files.find(path);
            return file == files.end() ? "" : file->second;
          }};
}

Task Good(absl::StatusOr<Task> task) {
  EXPECT_TRUE(task.ok()) << task.status();
  return task.ok() ? *std::move(task) : Task();
}

Environment With(Environment environment, const Environment& changes) {
  for (const auto& [name, value] : changes) environment[name] = value;
  return environment;
}

std::string Refusal(const absl::StatusOr<Task>& task) {
  EXPECT_TRUE(absl::IsInvalidArgument(task.status())) << task.status();
  return std::string(task.status().message());
}

TEST(SlurmTaskTest, IsOneRank) {
  const Task task = Good(TaskBySlurm(SlurmTask(), Machine()));
  EXPECT_EQ(task.where, "Slurm job 4711 step 1");
  EXPECT_EQ(task.rank, 6);
  EXPECT_EQ(task.world_size, 7);  // the step's, not the job's
  EXPECT_EQ(task.local_rank, 0);
  EXPECT_EQ(task.local_world_size, 1);
  EXPECT_EQ(task.node, 2);
  EXPECT_FALSE(task.one_node);
  EXPECT_THAT(task.hosts, ElementsAre("n1", "n2", "n3"));
  EXPECT_THAT(task.tasks_per_node, ElementsAre(3, 3, 1));
  EXPECT_EQ(task.master_addr, "n1");
  EXPECT_EQ(task.master_ports, 16);
  EXPECT_EQ(task.run_id, "slurm-4711.1.0");
  EXPECT_EQ(task.job, "slurm/train-4711");
  EXPECT_EQ(task.task_id, "4711.1");
  EXPECT_EQ(task.shutdown_timeout, "20");
}

// The launchers of one step and the ranks of another one on the same nodes must not meet.
TEST(SlurmTaskTest, MeetsWhereTheLaunchersOfItsStepWould) {
  const Task task = Good(TaskBySlurm(SlurmTask(), Machine()));
  EXPECT_EQ(task.master_port, MasterPort("4711.1"));
  EXPECT_NE(task.master_port, Good(TaskBySlurm(With(SlurmTask(), {{"SLURM_STEP_ID", "2"}}), Machine())).master_port);
}

TEST(SlurmTaskTest, UsersMasterStays) {
  Task task = Good(TaskBySlurm(With(SlurmTask(), {{"MASTER_ADDR", "10.0.0.1"}}), Machine()));
  EXPECT_EQ(task.master_addr, "10.0.0.1");
  EXPECT_EQ(task.master_ports, 16);
  task = Good(TaskBySlurm(With(SlurmTask(), {{"MASTER_PORT", "29500"}, {"TASKD_MASTER_ADDR", "n1-ib"}}), Machine()));
  EXPECT_EQ(task.master_addr, "n1-ib");
  EXPECT_EQ(task.master_port, 29500);
  EXPECT_EQ(task.master_ports, 1) << "a port that the user has chosen is the one";
}

TEST(SlurmTaskTest, WhatContradictsItselfIsRefused) {
  const auto refusal = [](const Environment& changes) {
    return Refusal(TaskBySlurm(With(SlurmTask(), changes), Machine()));
  };
  EXPECT_THAT(Refusal(TaskBySlurm({}, Machine())), AllOf(HasSubstr("SLURM_JOB_ID"), HasSubstr("put srun before")));
  EXPECT_THAT(refusal({{"SLURM_STEP_ID", ""}}), AllOf(HasSubstr("SLURM_STEP_ID"), HasSubstr("put srun before")));
  EXPECT_THAT(refusal({{"SLURM_STEP_ID", "4294967291"}}), HasSubstr("put srun before"));
  EXPECT_THAT(refusal({{"SLURM_PROCID", ""}}), HasSubstr("SLURM_PROCID"));
  EXPECT_THAT(refusal({{"SLURM_PROCID", "7"}}), AllOf(HasSubstr("SLURM_PROCID '7'"), HasSubstr("0 to 6")));
  EXPECT_THAT(refusal({{"SLURM_PROCID", "-1"}}), HasSubstr("SLURM_PROCID '-1'"));
  EXPECT_THAT(refusal({{"SLURM_STEP_NUM_TASKS", "2"}}), HasSubstr("SLURM_STEP_NUM_TASKS '2'"));
  EXPECT_THAT(refusal({{"SLURM_LOCALID", "1"}}), AllOf(HasSubstr("SLURM_LOCALID '1'"), HasSubstr("0 to 0")));
  for (const char* tasks : {"", "3(x2)", "3(x2),2", "3(x99999999999),1", "3(x2,1", "0(x3),7", "a", "3,3,1,"}) {
    EXPECT_THAT(refusal({{"SLURM_STEP_TASKS_PER_NODE", tasks}}), HasSubstr("SLURM_STEP_TASKS_PER_NODE")) << tasks;
  }
  EXPECT_THAT(refusal({{"MASTER_PORT", "http"}}), HasSubstr("MASTER_PORT 'http'"));
  EXPECT_THAT(refusal({{"MASTER_ADDR", "n2"}}), AllOf(HasSubstr("MASTER_ADDR 'n2'"), HasSubstr("on n1")));
  EXPECT_THAT(refusal({{"SLURM_HET_SIZE", "2"}}), HasSubstr("SLURM_HET_SIZE"));
  EXPECT_THAT(refusal({{"SLURMD_NODENAME", "n1"}}), HasSubstr("SLURMD_NODENAME"));
}

TEST(SlurmTaskTest, SeveralTasksOnANodeAreSeen) {
  EXPECT_TRUE(SlurmHasSeveralTasksOnANode(SlurmTask()));
  EXPECT_TRUE(SlurmHasSeveralTasksOnANode(With(SlurmTask(), {{"SLURM_STEP_TASKS_PER_NODE", "1,2,1"}})));
  EXPECT_FALSE(SlurmHasSeveralTasksOnANode(With(SlurmTask(), {{"SLURM_STEP_TASKS_PER_NODE", "1(x3)"}})));
  EXPECT_FALSE(SlurmHasSeveralTasksOnANode(With(SlurmTask(), {{"SLURM_STEP_ID", ""}})));
  EXPECT_FALSE(SlurmHasSeveralTasksOnANode({}));
}

TEST(MpiTaskTest, OpenMpi) {
  const Task task = Good(TaskByMpi(With(OpenMpiRank(), {{"MASTER_ADDR", "n1"}}), Machine()));
  EXPECT_EQ(task.where, "Open MPI job 187367425");
  EXPECT_EQ(task.rank_source, "OMPI_COMM_WORLD_RANK");
  EXPECT_EQ(task.rank, 3);
  EXPECT_EQ(task.world_size, 4);
  EXPECT_EQ(task.local_rank, 1);
  EXPECT_EQ(task.local_world_size, 2);
  EXPECT_EQ(task.node, -1);
  EXPECT_EQ(task.master_addr, "n1");
  EXPECT_EQ(task.master_port, MasterPort("187367425"));
  EXPECT_EQ(task.run_id, "mpi-187367425");
}

TEST(MpiTaskTest, OnSeveralNodesTheMasterIsTheUsers) {
  EXPECT_THAT(Refusal(TaskByMpi(OpenMpiRank(), Machine())), AllOf(HasSubstr("MASTER_ADDR"), HasSubstr("2 of 4 ranks")));
  const Task task = Good(TaskByMpi(With(OpenMpiRank(), {{"OMPI_COMM_WORLD_LOCAL_SIZE", "4"}}), Machine()));
  EXPECT_TRUE(task.one_node);
  EXPECT_EQ(task.master_addr, "127.0.0.1");
}

// taskd <- numactl, which has the rank's variables <- hydra_pmi_proxy.
TEST(MpiTaskTest, RanksOfOneMpiexecMeetByWhoHasStartedThem) {
  using std::string_literals::operator""s;
  const EngineMachine machine = Machine({{"/proc/self/stat", "30 (taskd) S 20 30 30"},
                                         {"/proc/20/environ", "HOME=/root\0PMI_RANK=1\0"s},
                                         {"/proc/20/stat", "20 (a) b) S 10 30 30"},
                                         {"/proc/10/environ", "HOME=/root\0NOT_PMI_RANK=1\0"s}});
  const Task task = Good(TaskByMpi(HydraRank(), machine));
  EXPECT_EQ(task.where, "PMI job pid-10");
  EXPECT_EQ(task.rank, 1);
  EXPECT_EQ(task.master_port, MasterPort("pid-10"));
  EXPECT_EQ(task.run_id, "mpi-pid-10");
  EXPECT_EQ(Good(TaskByMpi(HydraRank(), Machine())).master_port, 29500) << "nothing of /proc can be read";
}

TEST(MpiTaskTest, PmixHasTheRestFromWhoStartsIt) {
  EXPECT_THAT(Refusal(TaskByMpi({{"PMIX_RANK", "1"}}, Machine())), HasSubstr("PMIX_SIZE: it is not set"));
  const Task task = Good(TaskByMpi({{"PMIX_RANK", "1"},
                                    {"WORLD_SIZE", "2"},
                                    {"LOCAL_RANK", "1"},
                                    {"LOCAL_WORLD_SIZE", "2"},
                                    {"PMIX_NAMESPACE", "prterun-n1-17@1"}},
                                   Machine()));
  EXPECT_EQ(task.rank, 1);
  EXPECT_EQ(task.run_id, "mpi-prterun-n1-17@1");
}

TEST(MpiTaskTest, NumbersAreChecked) {
  const auto refusal = [](const Environment& changes) {
    return Refusal(TaskByMpi(With(HydraRank(), changes), Machine()));
  };
  EXPECT_THAT(refusal({{"PMI_RANK", "2"}}), HasSubstr("PMI_RANK '2': a number from 0 to 1"));
  EXPECT_THAT(refusal({{"PMI_RANK", "x"}}), HasSubstr("PMI_RANK 'x'"));
  EXPECT_THAT(refusal({{"PMI_SIZE", "0"}}), HasSubstr("PMI_SIZE '0'"));
  EXPECT_THAT(refusal({{"MPI_LOCALRANKID", "2"}}), HasSubstr("MPI_LOCALRANKID '2'"));
  EXPECT_THAT(refusal({{"MPI_LOCALNRANKS", "3"}}), HasSubstr("MPI_LOCALNRANKS '3'"));
}

TEST(MpiTaskTest, SrunsTaskWithARankOfPmiIsNone) {
  EXPECT_TRUE(IsMpiRank(HydraRank()));
  EXPECT_TRUE(IsMpiRank(OpenMpiRank()));
  EXPECT_FALSE(IsMpiRank({}));
  EXPECT_FALSE(IsMpiRank(With(SlurmTask(), {{"PMI_RANK", "6"}, {"PMI_SIZE", "7"}})));
  EXPECT_FALSE(IsMpiRank(With(SlurmTask(), {{"PMIX_RANK", "6"}})));
  // mpiexec starts its own helper on each node with srun.
  EXPECT_TRUE(IsMpiRank(With(SlurmTask(), HydraRank())));
  EXPECT_TRUE(IsMpiRank(With(SlurmTask(), OpenMpiRank())));
}

}  // namespace
}  // namespace taskd::engine
