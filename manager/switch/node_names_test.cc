#include "manager/switch/node_names.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace taskd::manager {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<std::string> Refuse(const std::vector<NodeIdentity>& nodes,
                                const std::optional<std::set<std::string>>& listed = std::nullopt) {
  std::vector<const NodeIdentity*> pointers;
  for (const NodeIdentity& node : nodes) pointers.push_back(&node);
  return RefuseNodeNames(pointers, listed);
}

TEST(NodeNamesTest, EachHostHasItsName) {
  EXPECT_THAT(Refuse({{"h1", "", "n1", "m1"}, {"h2", "", "n2", "m2"}}), Each(""));
  EXPECT_THAT(Refuse({{"h1", "", "n1", "m1"}, {"h1", "", "n1", "m1"}}), Each("")) << "two nodes of one machine";
  EXPECT_THAT(Refuse({{"n1", "", "n1", "m"}, {"n2", "", "n2", "m"}}), Each("")) << "namespaces of one kernel";
}

TEST(NodeNamesTest, PodsOfOneMachineShareItsName) {
  EXPECT_THAT(Refuse({{"p1", "p1", "n1", "m1"}, {"p2", "p2", "n1", "m1"}}), Each(""));
  EXPECT_THAT(Refuse({{"p", "p1", "n1", "m1"}, {"p", "p2", "n2", "m2"}}), Each("")) << "one host name in all pods";
  EXPECT_THAT(Refuse({{"p1", "p1", "n1", "m1"}, {"p2", "p2", "n1", "m2"}}), Each(HasSubstr("two hosts")));
  EXPECT_THAT(Refuse({{"p1", "p1", "n1", ""}, {"p2", "p2", "n1", ""}}), Each(HasSubstr("two hosts")))
      << "nothing proves that they are on one machine";
}

TEST(NodeNamesTest, OneNameOfTwoHostsIsNobodys) {
  EXPECT_THAT(Refuse({{"h1", "", "n1", "m1"}, {"h2", "", "n1", "m2"}, {"h3", "", "n3", "m3"}}),
              ElementsAre("two hosts have the node name 'n1': 'h1' and 'h2'",
                          "two hosts have the node name 'n1': 'h1' and 'h2'", ""));
  EXPECT_THAT(Refuse({{"localhost", "", "localhost", "m1"}, {"localhost", "", "localhost", "m2"}}),
              Each(HasSubstr("two hosts")));
  // A node that lies about its host name, too, does not know the other machine's boot id.
  EXPECT_THAT(Refuse({{"h1", "", "n1", "m1"}, {"h1", "", "n1", "guess"}}), Each(HasSubstr("two hosts")));
}

TEST(NodeNamesTest, TwoNamesOfOneHostAreNone) {
  EXPECT_THAT(Refuse({{"h1", "", "n1", "m1"}, {"h1", "", "n2", "m1"}, {"h3", "", "n3", "m3"}}),
              ElementsAre("the host 'h1' has two node names: 'n1' and 'n2'",
                          "the host 'h1' has two node names: 'n1' and 'n2'", ""));
}

TEST(NodeNamesTest, AMissingNameNamesTheVariable) {
  EXPECT_THAT(Refuse({{"p1", "p1", "", "m1"}, {"p2", "p2", "n2", "m2"}}),
              ElementsAre(AllOf(HasSubstr("TASKD_NODE_NAME"), HasSubstr("spec.nodeName")), ""));
}

TEST(NodeNamesTest, NoTextIsAName) {
  EXPECT_THAT(Refuse({{"h1", "", "n1; rm\n", "m1"}}), ElementsAre(HasSubstr("'n1; rm\\n' is none")));
}

TEST(NodeNamesTest, OnlyNamesOfTheJobsList) {
  const std::set<std::string> listed = {"n1", "n2"};
  EXPECT_THAT(Refuse({{"h1", "", "n1", "m1"}, {"h3", "", "n3", "m3"}}, listed),
              ElementsAre("", "the node name 'n3' is not in the job's list of nodes"));
  EXPECT_THAT(Refuse({{"h1", "", "n1", "m1"}}, std::set<std::string>()), Each(HasSubstr("list")))
      << "a list that could not be read has no names";
}

}  // namespace
}  // namespace taskd::manager
