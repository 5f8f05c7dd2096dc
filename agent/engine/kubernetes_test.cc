#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "agent/engine/placement.h"

namespace taskd::engine {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// As kubelet writes it for a pod with a subdomain.
constexpr char kHosts[] =
    "# Kubernetes-managed hosts file.\n127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n"
    "10.244.1.7\ttrain-2.train.research.svc.cluster.local\ttrain-2\n";

EngineMachine Machine(std::string host, std::map<std::string, std::string> files = {}) {
  return {std::move(host), [files = std::move(files)](const std::string& path) {
            const auto file = files.find(path);
            return file == files.end() ? "" : file->second;
          }};
}

EngineMachine Pod() { return Machine("train-2", {{"/etc/hosts", kHosts}}); }

// Kubernetes itself sets this in every pod.
Environment With(Environment variables) {
  variables["KUBERNETES_SERVICE_HOST"] = "10.96.0.1";
  return variables;
}

Placement Place(const Environment& environment, const EngineMachine& machine = Pod()) {
  absl::StatusOr<Placement> placement = PlaceByKubernetes(With(environment), machine);
  EXPECT_TRUE(placement.ok()) << placement.status();
  return placement.ok() ? *placement : Placement();
}

std::string Refusal(const Environment& environment, const EngineMachine& machine = Pod()) {
  const absl::StatusOr<Placement> placement = PlaceByKubernetes(With(environment), machine);
  EXPECT_TRUE(absl::IsInvalidArgument(placement.status())) << testing::PrintToString(environment);
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

TEST(KubernetesTest, APodByItselfIsNothing) {
  const Placement placement = Place({});
  EXPECT_THAT(placement.where, IsEmpty());
  EXPECT_THAT(placement.defaults, IsEmpty());
  EXPECT_EQ(placement.nodes, 0);
}

TEST(IndexedJobTest, TheHostNameAndTheIndexTellThePlace) {
  const Placement placement = Place({{"JOB_COMPLETION_INDEX", "2"}});
  EXPECT_EQ(placement.where, "Kubernetes Indexed Job research/train");
  EXPECT_EQ(placement.job, "research/train");
  EXPECT_EQ(placement.task_id, "train");
  EXPECT_EQ(ValueIn(placement, "node-rank"), "2");
  EXPECT_EQ(SourceIn(placement, "node-rank"), "JOB_COMPLETION_INDEX");
  EXPECT_EQ(ValueIn(placement, "master-addr"), "train-0.train");
  EXPECT_EQ(ValueIn(placement, "rdzv-id"), "train");
  EXPECT_EQ(ValueIn(placement, "shutdown-timeout"), "20");
  EXPECT_THAT(placement.warnings, IsEmpty());
}

// Nothing in a pod says how many there are.
TEST(IndexedJobTest, TheNumberOfNodesIsTheUsers) {
  const Placement placement = Place({{"JOB_COMPLETION_INDEX", "2"}});
  EXPECT_EQ(placement.nodes, 0);
  EXPECT_TRUE(placement.nodes_needed);
  EXPECT_EQ(ValueIn(placement, "nnodes"), "");
}

TEST(IndexedJobTest, NodeListHasTheNumber) {
  const Placement placement =
      Place({{"JOB_COMPLETION_INDEX", "2"}, {"NODE_LIST", "train-0.train:8,train-1.train:8, train-2.train:8"}});
  EXPECT_EQ(placement.nodes, 3);
  EXPECT_FALSE(placement.nodes_needed);
  EXPECT_EQ(ValueIn(placement, "nnodes"), "3");
  EXPECT_EQ(SourceIn(placement, "nnodes"), "NODE_LIST");
  EXPECT_EQ(ValueIn(placement, "master-addr"), "train-0.train");
}

TEST(IndexedJobTest, TheHostNameMayBeTheLongOne) {
  const Placement placement =
      Place({{"JOB_COMPLETION_INDEX", "12"}}, Machine("my-job-12.workers.default.svc.cluster.local"));
  EXPECT_EQ(ValueIn(placement, "master-addr"), "my-job-0.workers");
  EXPECT_EQ(placement.job, "default/my-job");
}

TEST(IndexedJobTest, WithHostNetworkTheListNamesTheMaster) {
  const Placement placement = Place({{"JOB_COMPLETION_INDEX", "1"}, {"NODE_LIST", "10.0.0.1,10.0.0.2"}},
                                    Machine("worker-machine-17", {{"/etc/hosts", "10.0.0.2 worker-machine-17\n"}}));
  EXPECT_EQ(ValueIn(placement, "master-addr"), "10.0.0.1");
  EXPECT_EQ(SourceIn(placement, "master-addr"), "NODE_LIST");
}

TEST(IndexedJobTest, WithoutADomainPodsCannotMeet) {
  const EngineMachine machine = Machine("train-2", {{"/etc/hosts", "10.244.1.7\ttrain-2\n"}});
  const Placement placement = Place({{"JOB_COMPLETION_INDEX", "2"}}, machine);
  EXPECT_EQ(ValueIn(placement, "master-addr"), "train-0");
  EXPECT_THAT(placement.warnings, ElementsAre(AllOf(HasSubstr("train-2 has no domain"), HasSubstr("subdomain"))));
  // The first one finds itself: a job of one pod needs nothing.
  const Placement first = Place({{"JOB_COMPLETION_INDEX", "0"}}, Machine("train-0"));
  EXPECT_EQ(ValueIn(first, "master-addr"), "train-0");
  EXPECT_THAT(first.warnings, IsEmpty());
}

TEST(IndexedJobTest, TheNamespaceIsFoundElsewhereToo) {
  const Environment job = {{"JOB_COMPLETION_INDEX", "0"}};
  EXPECT_EQ(Place(job, Machine("a-0", {{"/etc/resolv.conf",
                                        "search ml.svc.cluster.local svc.cluster.local\nnameserver 10.96.0.10\n"}}))
                .job,
            "ml/a");
  EXPECT_EQ(Place(job, Machine("a-0", {{"/var/run/secrets/kubernetes.io/serviceaccount/namespace", "lab"}})).job,
            "lab/a");
  EXPECT_EQ(Place(job, Machine("a-0")).job, "default/a");
}

TEST(IndexedJobTest, WrongVariablesAreNamed) {
  for (const char* value : {"", "x", "-1", "+1", "1 ", "65536", "99999999999"}) {
    EXPECT_THAT(Refusal({{"JOB_COMPLETION_INDEX", value}}),
                AllOf(HasSubstr("JOB_COMPLETION_INDEX '"), HasSubstr(value), HasSubstr("a number from 0 to 65535")));
  }
  EXPECT_THAT(Refusal({{"JOB_COMPLETION_INDEX", "2"}, {"NODE_LIST", "a:1,b:1"}}),
              AllOf(HasSubstr("JOB_COMPLETION_INDEX '2'"), HasSubstr("0 to 1"), HasSubstr("2 nodes (NODE_LIST)")));
  for (const char* value : {"", "a,,b", ",", ":8"}) {
    EXPECT_THAT(Refusal({{"JOB_COMPLETION_INDEX", "0"}, {"NODE_LIST", value}}),
                AllOf(HasSubstr("NODE_LIST '"), HasSubstr("names of hosts")));
  }
}

TEST(KubeflowTest, TorchrunsOwnVariablesAreEnough) {
  const Placement placement = Place(
      {{"JOB_COMPLETION_INDEX", "1"}, {"PET_NNODES", "2"}, {"PET_NODE_RANK", "1"}, {"PET_MASTER_ADDR", "t-node-0-0.t"}},
      Machine("t-node-0-1"));
  EXPECT_THAT(placement.where, IsEmpty());
  EXPECT_EQ(placement.defaults.size(), 1u);
  EXPECT_EQ(ValueIn(placement, "shutdown-timeout"), "20");
}

TEST(KubeflowTest, APyTorchJobHasNoIndex) {
  for (const char* place : {"PET_NODE_RANK", "PET_RDZV_ENDPOINT"}) {
    const Environment environment = {{"PET_NNODES", "2"}, {place, "1"}};
    const Placement placement = Place(environment, Machine("train-worker-0"));
    EXPECT_THAT(placement.where, IsEmpty());
    EXPECT_EQ(placement.defaults.size(), 1u);
    EXPECT_EQ(ValueIn(placement, "shutdown-timeout"), "20");
    // The same words of a user, who is in no pod.
    EXPECT_THAT(PlaceByKubernetes(environment, Machine("n1"))->defaults, IsEmpty());
  }
}

// The labels of the pods of two jobs with two pods each.
Environment JobSet() {
  return {{"JOB_COMPLETION_INDEX", "1"},  {"JOBSET_NAME", "train"},     {"JOBSET_REPLICATED_JOB_NAME", "node"},
          {"JOBSET_REPLICAS", "2"},       {"JOBSET_PODS_PER_JOB", "2"}, {"JOBSET_JOB_GLOBAL_INDEX", "1"},
          {"JOBSET_RESTART_ATTEMPT", "3"}};
}

Environment JobSet(const Environment& changes) {
  Environment environment = JobSet();
  for (const auto& [name, value] : changes) environment[name] = value;
  return environment;
}

TEST(JobSetTest, JobsAreNumberedThrough) {
  const Placement placement = Place(
      JobSet(), Machine("train-node-1-1",
                        {{"/etc/hosts", "10.1.2.3 train-node-1-1.train.lab.svc.cluster.local train-node-1-1\n"}}));
  EXPECT_EQ(placement.where, "Kubernetes JobSet lab/train");
  EXPECT_EQ(placement.nodes, 4);
  EXPECT_EQ(ValueIn(placement, "nnodes"), "4");
  EXPECT_EQ(ValueIn(placement, "node-rank"), "3");
  EXPECT_EQ(ValueIn(placement, "master-addr"), "train-node-0-0.train");
  EXPECT_EQ(ValueIn(placement, "rdzv-id"), "train.3");
}

TEST(JobSetTest, TheDomainIsThePodsOrTheNameOfTheSet) {
  EXPECT_EQ(ValueIn(Place(JobSet(), Machine("train-node-1-1.net.lab.svc.cluster.local")), "master-addr"),
            "train-node-0-0.net");
  EXPECT_EQ(ValueIn(Place(JobSet(), Machine("elsewhere")), "master-addr"), "train-node-0-0.train");
  EXPECT_EQ(ValueIn(Place(JobSet({{"JOBSET_COORDINATOR", "train-head-0-0.net"}})), "master-addr"),
            "train-head-0-0.net");
}

// The agent for restarts in place has this variable for itself, and starts its worker with it.
TEST(JobSetTest, OneJobIsAnIndexedJob) {
  const Placement placement =
      Place({{"JOB_COMPLETION_INDEX", "1"}, {"JOBSET_NAME", "train"}},
            Machine("train-node-0-1", {{"/etc/hosts", "10.1.2.3 train-node-0-1.train train-node-0-1\n"}}));
  EXPECT_EQ(placement.where, "Kubernetes JobSet default/train");
  EXPECT_EQ(ValueIn(placement, "node-rank"), "1");
  EXPECT_EQ(ValueIn(placement, "master-addr"), "train-node-0-0.train");
  EXPECT_TRUE(placement.nodes_needed);
}

TEST(JobSetTest, TheNumberOfJobsMayBeTheUsers) {
  Environment environment = JobSet();
  environment.erase("JOBSET_REPLICAS");
  Placement placement = Place(environment);
  EXPECT_TRUE(placement.nodes_needed);
  EXPECT_EQ(ValueIn(placement, "node-rank"), "3");
  environment["NODE_LIST"] = "a,b,c,d";
  placement = Place(environment);
  EXPECT_FALSE(placement.nodes_needed);
  EXPECT_EQ(ValueIn(placement, "nnodes"), "4");
  environment["NODE_LIST"] = "a,b,c";
  EXPECT_THAT(Refusal(environment), AllOf(HasSubstr("JOBSET_JOB_GLOBAL_INDEX '1'"), HasSubstr("3 nodes (NODE_LIST)")));
}

// Each of several jobs would otherwise be a world of its own.
TEST(JobSetTest, TheNumberOfThePodsJobIsNeeded) {
  for (const char* name : {"JOBSET_REPLICAS", "JOBSET_PODS_PER_JOB"}) {
    EXPECT_THAT(Refusal({{"JOB_COMPLETION_INDEX", "0"}, {"JOBSET_NAME", "train"}, {name, "2"}}),
                HasSubstr("JOBSET_JOB_GLOBAL_INDEX ''"));
  }
}

TEST(JobSetTest, WrongVariablesAreNamed) {
  EXPECT_THAT(Refusal(JobSet({{"JOBSET_JOB_GLOBAL_INDEX", "2"}})),
              AllOf(HasSubstr("JOBSET_JOB_GLOBAL_INDEX '2'"), HasSubstr("2 jobs (JOBSET_REPLICAS)")));
  EXPECT_THAT(Refusal(JobSet({{"JOB_COMPLETION_INDEX", "2"}})),
              AllOf(HasSubstr("JOB_COMPLETION_INDEX '2'"), HasSubstr("2 pods (JOBSET_PODS_PER_JOB)")));
  for (const char* name : {"JOBSET_JOB_GLOBAL_INDEX", "JOBSET_REPLICAS", "JOBSET_PODS_PER_JOB", "JOBSET_NAME",
                           "JOBSET_REPLICATED_JOB_NAME"}) {
    EXPECT_THAT(Refusal(JobSet({{name, ""}})), HasSubstr(std::string(name) + " ''"));
  }
  EXPECT_THAT(Refusal(JobSet({{"NODE_LIST", "a,b,c"}})),
              AllOf(HasSubstr("NODE_LIST 'a,b,c'"), HasSubstr("3 names"), HasSubstr("4 nodes")));
  EXPECT_THAT(Refusal(JobSet({{"JOBSET_REPLICAS", "65536"}})), HasSubstr("at most 65536 nodes"));
}

Environment Group() {
  return {{"LWS_LEADER_ADDRESS", "train-0.train.lab"}, {"LWS_GROUP_SIZE", "4"}, {"LWS_WORKER_INDEX", "3"}};
}

TEST(LeaderWorkerSetTest, AGroupIsTheJob) {
  const Placement placement = Place(Group(), Machine("train-0-3.train.lab.svc.cluster.local"));
  EXPECT_EQ(placement.where, "LeaderWorkerSet group lab/train-0");
  EXPECT_EQ(placement.nodes, 4);
  EXPECT_EQ(ValueIn(placement, "nnodes"), "4");
  EXPECT_EQ(ValueIn(placement, "node-rank"), "3");
  EXPECT_EQ(SourceIn(placement, "node-rank"), "LWS_WORKER_INDEX");
  EXPECT_EQ(ValueIn(placement, "master-addr"), "train-0.train.lab");
  EXPECT_EQ(ValueIn(placement, "rdzv-id"), "train-0");
}

TEST(LeaderWorkerSetTest, WrongVariablesAreNamed) {
  Environment changed = Group();
  changed["LWS_WORKER_INDEX"] = "4";
  EXPECT_THAT(Refusal(changed), AllOf(HasSubstr("LWS_WORKER_INDEX '4'"), HasSubstr("4 nodes (LWS_GROUP_SIZE)")));
  for (const char* name : {"LWS_LEADER_ADDRESS", "LWS_GROUP_SIZE", "LWS_WORKER_INDEX"}) {
    changed = Group();
    changed[name] = "";
    EXPECT_THAT(Refusal(changed), HasSubstr(std::string(name) + " ''"));
  }
}

TEST(VolcanoTest, TheHostsOfTheTaskAreTheNodes) {
  const Placement placement = Place({{"VC_TASK_INDEX", "1"},
                                     {"VC_WORKER_HOSTS", "train-worker-0.train,train-worker-1.train"},
                                     {"VC_WORKER_NUM", "2"}},
                                    Machine("train-worker-1.train.lab.svc.cluster.local"));
  EXPECT_EQ(placement.where, "Volcano job lab/train");
  EXPECT_EQ(placement.nodes, 2);
  EXPECT_EQ(ValueIn(placement, "nnodes"), "2");
  EXPECT_EQ(SourceIn(placement, "nnodes"), "VC_WORKER_HOSTS");
  EXPECT_EQ(ValueIn(placement, "node-rank"), "1");
  EXPECT_EQ(ValueIn(placement, "master-addr"), "train-worker-0.train");
  EXPECT_EQ(ValueIn(placement, "rdzv-id"), "train");
}

TEST(VolcanoTest, OfSeveralTasksThePodsOwn) {
  const Placement placement = Place({{"VC_TASK_INDEX", "1"},
                                     {"VC_PS_HOSTS", "train-ps-0.train,train-ps-1.train"},
                                     {"VC_GPU_WORKER_HOSTS", "train-gpu-worker-0.train,train-gpu-worker-1.train"}},
                                    Machine("train-gpu-worker-1"));
  EXPECT_EQ(placement.nodes_source, "VC_GPU_WORKER_HOSTS");
  EXPECT_EQ(ValueIn(placement, "master-addr"), "train-gpu-worker-0.train");
}

TEST(VolcanoTest, MasterAndWorkersAreOneWorld) {
  const Placement placement = Place({{"VC_TASK_INDEX", "1"},
                                     {"VC_MASTER_HOSTS", "train-master-0.train"},
                                     {"VC_WORKER_HOSTS", "train-worker-0.train,train-worker-1.train"}},
                                    Machine("train-worker-1"));
  EXPECT_EQ(placement.nodes, 3);
  EXPECT_EQ(ValueIn(placement, "node-rank"), "2");
  EXPECT_EQ(ValueIn(placement, "master-addr"), "train-master-0.train");
  EXPECT_THAT(placement.hosts, ElementsAre("train-master-0.train", "train-worker-0.train", "train-worker-1.train"));
}

TEST(VolcanoTest, WithoutHostsTheNumberIsTheUsers) {
  const Placement placement = Place({{"VC_TASK_INDEX", "1"}});
  EXPECT_TRUE(placement.nodes_needed);
  EXPECT_EQ(ValueIn(placement, "node-rank"), "1");
  EXPECT_EQ(ValueIn(placement, "master-addr"), "");
}

TEST(VolcanoTest, WrongVariablesAreNamed) {
  EXPECT_THAT(Refusal({{"VC_WORKER_HOSTS", "a,b"}}), HasSubstr("VC_TASK_INDEX ''"));
  EXPECT_THAT(Refusal({{"VC_TASK_INDEX", "2"}, {"VC_WORKER_HOSTS", "a,b"}}),
              AllOf(HasSubstr("VC_TASK_INDEX '2'"), HasSubstr("2 nodes (VC_WORKER_HOSTS)")));
  EXPECT_THAT(Refusal({{"VC_TASK_INDEX", "1"}, {"VC_WORKER_HOSTS", "a,b"}, {"VC_WORKER_NUM", "3"}}),
              AllOf(HasSubstr("VC_WORKER_NUM '3'"), HasSubstr("VC_WORKER_HOSTS 'a,b' has 2")));
  EXPECT_THAT(Refusal({{"VC_TASK_INDEX", "0"}, {"VC_WORKER_HOSTS", ""}}), HasSubstr("VC_WORKER_HOSTS ''"));
  EXPECT_THAT(Refusal({{"VC_TASK_INDEX", "0"}, {"VC_PS_HOSTS", "a"}, {"VC_WORKER_HOSTS", "b"}}),
              AllOf(HasSubstr("VC_TASK_INDEX '0'"), HasSubstr("VC_PS_HOSTS, VC_WORKER_HOSTS"), HasSubstr("train-2")));
}

TEST(KubernetesTest, TwoPlacesAtOnceAreBothNamed) {
  EXPECT_THAT(
      Refusal({{"VC_TASK_INDEX", "1"}, {"JOB_COMPLETION_INDEX", "2"}}),
      AllOf(HasSubstr("VC_TASK_INDEX '1' of Volcano"), HasSubstr("JOB_COMPLETION_INDEX '2' of an Indexed Job")));
  EXPECT_THAT(Refusal({{"LWS_LEADER_ADDRESS", "a"}, {"VC_WORKER_HOSTS", "b"}}),
              AllOf(HasSubstr("LWS_LEADER_ADDRESS 'a'"), HasSubstr("VC_WORKER_HOSTS 'b'")));
}

}  // namespace
}  // namespace taskd::engine
