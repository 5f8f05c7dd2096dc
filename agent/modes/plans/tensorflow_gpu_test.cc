#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "agent/modes/plans/mode_plan.h"

namespace taskd::modes {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// The first ps of two nodes, unless `changes` say otherwise; a variable that is changed to "" is not set.
absl::StatusOr<ModePlan> Plan(const Environment& changes = {}) {
  Environment environment = {{"MA_NUM_HOSTS", "2"},
                             {"VC_TASK_INDEX", "0"},
                             {"MA_VJ_NAME", "vj"},
                             {"MA_TASK_NAME", "ps"},
                             {"MA_NUM_GPUS", "8"}};
  for (const auto& [name, value] : changes) environment[name] = value;
  ModeMachine machine;
  machine.ipv4 = [](const std::string&) { return ""; };
  machine.gpus = [] { return -1; };
  machine.read_file = [](const std::string&) { return absl::NotFoundError("no files here"); };
  ModeOptions options;
  options.mode = "tensorflow-gpu";
  options.command = {"python", "mnist.py"};
  return PlanMode(options, environment, machine);
}

TEST(TensorflowGpu, OneNodeRunsTheCommandAlone) {
  for (const char* task : {"worker", "ps", ""}) {
    const auto plan = Plan({{"MA_NUM_HOSTS", "1"}, {"MA_TASK_NAME", task}});
    ASSERT_TRUE(plan.ok()) << plan.status();
    ASSERT_EQ(plan->processes.size(), 1u);
    EXPECT_THAT(plan->processes[0].argv, ElementsAre("python", "mnist.py"));
    EXPECT_EQ(plan->role, "worker");
    EXPECT_FALSE(plan->serves);
    EXPECT_EQ(plan->nodes.size(), 1u);
    EXPECT_THAT(plan->binds, IsEmpty());
    EXPECT_EQ(plan->platform, Platform::kModelArts);
  }
}

TEST(TensorflowGpu, ListsAreTakenFromTheFirstVariableThatIsSet) {
  const struct {
    const char *tf_ps, *vc_ps, *tf_worker, *vc_worker, *ps_hosts, *worker_hosts;
  } cases[] = {
      {"[a:1,b:2]", "x,y", "[c:3,d:4]", "x,y", "a:1,b:2", "c:3,d:4"},
      {"a:1,b:2", "", "c:3,d:4", "", "a:1,b:2", "c:3,d:4"},
      {" [ a:1 , b:2 ] ", "", "[c:3, d:4]", "", "a:1,b:2", "c:3,d:4"},
      {"", "a:1,b:2", "", "[c:3,d:4]", "a:1,b:2", "c:3,d:4"},
      {"a:1,b:2", "", "", "c:3,d:4", "a:1,b:2", "c:3,d:4"},
      {"[[::1]:1,[::2]:2]", "", "[::3]:3,[::4]:4", "", "[::1]:1,[::2]:2", "[::3]:3,[::4]:4"},
  };
  for (const auto& one : cases) {
    const auto plan = Plan({{"TF_PS_HOSTS", one.tf_ps},
                            {"VC_PS_HOSTS", one.vc_ps},
                            {"TF_WORKER_HOSTS", one.tf_worker},
                            {"VC_WORKER_HOSTS", one.vc_worker}});
    ASSERT_TRUE(plan.ok()) << plan.status();
    EXPECT_THAT(plan->processes[0].argv,
                ElementsAre("python", "mnist.py", "--task_index", "0", "--ps_hosts", one.ps_hosts, "--worker_hosts",
                            one.worker_hosts, "--job_name", "ps"));
  }
}

TEST(TensorflowGpu, NodesAreThePsThenTheWorkers) {
  const struct {
    const char *task, *index;
    int node;
  } cases[] = {{"ps", "0", 0}, {"ps", "1", 1}, {"worker", "0", 2}, {"worker", "1", 3}};
  for (const auto& one : cases) {
    const auto plan = Plan({{"MA_TASK_NAME", one.task},
                            {"VC_TASK_INDEX", one.index},
                            {"TF_PS_HOSTS", "a:1,b:2"},
                            {"TF_WORKER_HOSTS", "c:3,d:4"}});
    ASSERT_TRUE(plan.ok()) << plan.status();
    EXPECT_EQ(plan->role, one.task);
    EXPECT_EQ(plan->index, one.node);
    ASSERT_EQ(plan->nodes.size(), 4u);
    EXPECT_EQ(plan->nodes[0].name, "a");
    EXPECT_EQ(plan->nodes[3].name, "d");
    EXPECT_EQ(plan->nodes[3].cards, 8);
    for (size_t i = 0; i < 4; ++i) EXPECT_EQ(plan->nodes[i].serves, i < 2);
    EXPECT_EQ(plan->serves, one.node < 2);
    ASSERT_EQ(plan->binds.size(), 1u);
    EXPECT_EQ(plan->binds[0].port, one.node + 1);
    EXPECT_EQ(plan->binds[0].variable, one.node < 2 ? "TF_PS_HOSTS" : "TF_WORKER_HOSTS");
    EXPECT_EQ(plan->manager, "a:9601");
  }
}

TEST(TensorflowGpu, NamesAndPortsThatNobodyGaveAreTheSameOnAllNodes) {
  const auto ps = Plan();
  const auto worker = Plan({{"MA_TASK_NAME", "worker"}, {"VC_TASK_INDEX", "1"}});
  ASSERT_TRUE(ps.ok() && worker.ok()) << ps.status() << worker.status();
  ASSERT_EQ(ps->binds.size(), 1u);
  ASSERT_EQ(worker->binds.size(), 1u);
  const std::string ps_port = std::to_string(ps->binds[0].port);
  const std::string worker_port = std::to_string(worker->binds[0].port);
  const std::string ps_hosts = "vj-ps-0.vj:" + ps_port + ",vj-ps-1.vj:" + ps_port;
  const std::string worker_hosts = "vj-worker-0.vj:" + worker_port + ",vj-worker-1.vj:" + worker_port;
  EXPECT_THAT(ps->processes[0].argv, ElementsAre("python", "mnist.py", "--task_index", "0", "--ps_hosts", ps_hosts,
                                                 "--worker_hosts", worker_hosts, "--job_name", "ps"));
  EXPECT_THAT(worker->processes[0].argv, ElementsAre("python", "mnist.py", "--task_index", "1", "--ps_hosts", ps_hosts,
                                                     "--worker_hosts", worker_hosts, "--job_name", "worker"));
  EXPECT_EQ(worker->binds[0].port, ps->binds[0].port + 1);
}

TEST(TensorflowGpu, PortsStayInTheirRange) {
  for (int job = 0; job < 1000; ++job) {
    const auto plan = Plan({{"MA_VJ_NAME", "job" + std::to_string(job)}});
    ASSERT_TRUE(plan.ok()) << plan.status();
    EXPECT_GE(plan->binds[0].port, 5000);
    EXPECT_LT(plan->binds[0].port + 1, 9601);  // TaskD's own
  }
}

TEST(TensorflowGpu, PsAndWorkerMayShareAHost) {
  const auto plan = Plan({{"TF_PS_HOSTS", "a,b:77"}, {"TF_WORKER_HOSTS", "a,b"}, {"MA_VJ_NAME", ""}});
  ASSERT_TRUE(plan.ok()) << plan.status();
  const int port = plan->binds[0].port;
  EXPECT_EQ(plan->processes[0].argv[5], "a:" + std::to_string(port) + ",b:77");
  EXPECT_EQ(plan->processes[0].argv[7], "a:" + std::to_string(port + 1) + ",b:" + std::to_string(port + 1));
}

TEST(TensorflowGpu, RefusesWithVariableValueAndRule) {
  const struct {
    Environment changes;
    std::vector<std::string> words;
  } cases[] = {
      {{{"MA_NUM_HOSTS", ""}}, {"MA_NUM_HOSTS", "not set"}},
      {{{"MA_NUM_HOSTS", "0"}}, {"MA_NUM_HOSTS", "'0'"}},
      {{{"VC_TASK_INDEX", ""}}, {"MA_TASK_INDEX", "not set"}},
      {{{"VC_TASK_INDEX", "2"}}, {"VC_TASK_INDEX", "'2'", "MA_NUM_HOSTS is 2"}},
      {{{"MA_NUM_HOSTS", "1"}, {"VC_TASK_INDEX", "1"}}, {"VC_TASK_INDEX", "'1'"}},
      {{{"MA_TASK_NAME", ""}}, {"MA_TASK_NAME", "''", "ps or worker"}},
      {{{"MA_TASK_NAME", "chief"}}, {"MA_TASK_NAME", "'chief'", "ps or worker"}},
      {{{"MA_VJ_NAME", ""}}, {"MA_VJ_NAME", "TF_PS_HOSTS", "VC_PS_HOSTS"}},
      {{{"MA_VJ_NAME", ""}, {"TF_PS_HOSTS", "a,b"}}, {"MA_VJ_NAME", "TF_WORKER_HOSTS"}},
      {{{"MA_VJ_NAME", "a,b"}}, {"MA_VJ_NAME", "'a,b'"}},
      {{{"MA_NUM_GPUS", "x"}}, {"MA_NUM_GPUS", "'x'"}},
      {{{"TF_PS_HOSTS", "a:1"}, {"TF_WORKER_HOSTS", "b:1,c:1"}},
       {"TF_PS_HOSTS 'a:1'", "1 ps", "TF_WORKER_HOSTS 'b:1,c:1'", "2 workers"}},
      {{{"VC_PS_HOSTS", "a:1,b:1,c:1"}, {"TF_WORKER_HOSTS", "b:1,c:1"}},
       {"VC_PS_HOSTS", "3 ps", "TF_WORKER_HOSTS", "2 workers"}},
      {{{"TF_PS_HOSTS", "a,b,c"}}, {"TF_PS_HOSTS 'a,b,c'", "3 ps", "MA_NUM_HOSTS '2'", "2 workers"}},
      {{{"TF_PS_HOSTS", "a,b,c"}, {"TF_WORKER_HOSTS", "d,e,f"}}, {"TF_PS_HOSTS 'a,b,c'", "3 ps", "MA_NUM_HOSTS '2'"}},
      {{{"TF_PS_HOSTS", "[]"}}, {"TF_PS_HOSTS", "entry 1", "empty"}},
      {{{"TF_PS_HOSTS", "a:1,"}}, {"TF_PS_HOSTS", "entry 2", "empty"}},
      {{{"TF_PS_HOSTS", "a:1,:2"}}, {"TF_PS_HOSTS", "entry 2", "':2'", "empty"}},
      {{{"TF_PS_HOSTS", "a:0,b:1"}}, {"TF_PS_HOSTS", "'a:0'", "65535"}},
      {{{"TF_PS_HOSTS", "a:65536,b:1"}}, {"TF_PS_HOSTS", "'a:65536'", "65535"}},
      {{{"TF_PS_HOSTS", "a:,b:1"}}, {"TF_PS_HOSTS", "'a:'", "65535"}},
      {{{"TF_PS_HOSTS", "a:1:2,b:1"}}, {"TF_PS_HOSTS", "'a:1:2'", "65535"}},
      {{{"TF_PS_HOSTS", "[a]:1,b:1"}}, {"TF_PS_HOSTS", "'[a]:1'", "IPv6"}},
      {{{"TF_PS_HOSTS", "[::1:1,b:1"}}, {"TF_PS_HOSTS", "bracket"}},
      {{{"TF_PS_HOSTS", "[::1]1,b:1"}}, {"TF_PS_HOSTS", "'[::1]1'", "host:port"}},
      {{{"TF_PS_HOSTS", "\"a\":1,b:1"}}, {"TF_PS_HOSTS", "no host's name"}},
      {{{"TF_PS_HOSTS", "a:1,a:1"}}, {"TF_PS_HOSTS", "a:1", "twice"}},
      {{{"TF_PS_HOSTS", "a,a"}}, {"TF_PS_HOSTS", "a:", "twice"}},
      {{{"TF_PS_HOSTS", "a:1,b:1"}, {"TF_WORKER_HOSTS", "c:1,b:1"}}, {"TF_WORKER_HOSTS", "b:1", "twice"}},
  };
  for (const auto& one : cases) {
    const auto plan = Plan(one.changes);
    ASSERT_TRUE(absl::IsInvalidArgument(plan.status())) << one.words[0] << plan.status();
    const std::string text(plan.status().message());
    for (const std::string& word : one.words) EXPECT_THAT(text, HasSubstr(word));
    EXPECT_EQ(text.find('\n'), text.npos) << text;
  }
}

}  // namespace
}  // namespace taskd::modes
