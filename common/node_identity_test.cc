#include "common/node_identity.h"

#include "gtest/gtest.h"

namespace taskd {
namespace {

TEST(NodeIdentityTest, TheSchedulersVariableWinsOverTheHostName) {
  EXPECT_EQ(IdentityOf({}, "login-1", "m"), (NodeIdentity{"login-1", "", "login-1", "m"}));
  EXPECT_EQ(IdentityOf({{"SLURMD_NODENAME", "n3"}}, "n3-ib0", "m").node_name, "n3");
  EXPECT_EQ(IdentityOf({{"SLURMD_NODENAME", "n3"}, {"TASKD_NODE_NAME", "rack1-n3"}}, "n3", "m").node_name, "rack1-n3");
  EXPECT_EQ(IdentityOf({{"TASKD_NODE_NAME", ""}}, "n3", "m").node_name, "n3") << "an empty variable is none";
}

TEST(NodeIdentityTest, APodsHostNameIsNotItsNodes) {
  const Environment pod = {{"KUBERNETES_SERVICE_HOST", "10.96.0.1"}};
  EXPECT_EQ(IdentityOf(pod, "train-1", "m"), (NodeIdentity{"train-1", "train-1", "", "m"}));
  Environment named = pod;
  named["TASKD_NODE_NAME"] = "worker-7";
  named["POD_NAME"] = "train-1-x7k2p";
  EXPECT_EQ(IdentityOf(named, "train-1", "m"), (NodeIdentity{"train-1", "train-1-x7k2p", "worker-7", "m"}));
  Environment slurm = pod;  // Slurm in pods
  slurm["SLURMD_NODENAME"] = "n3";
  EXPECT_EQ(IdentityOf(slurm, "slurmd-3", "m").node_name, "n3");
}

TEST(NodeIdentityTest, NamesAreShortAndPlain) {
  for (const char* name : {"n3", "worker-7.cluster.local", "GPU_node.1", "0"}) EXPECT_TRUE(IsNodeName(name)) << name;
  for (const char* name : {"", "-n", ".n", "_n", "a b", "a/b", "a;b", "a\nb", "w\xc3\xb6rker"}) {
    EXPECT_FALSE(IsNodeName(name)) << name;
  }
  EXPECT_TRUE(IsNodeName(std::string(253, 'n')));
  EXPECT_FALSE(IsNodeName(std::string(254, 'n')));
}

}  // namespace
}  // namespace taskd
