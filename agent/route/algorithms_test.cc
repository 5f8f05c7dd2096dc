#include "agent/route/algorithms.h"

#include <numeric>
#include <string>
#include <vector>

#include "agent/route/testing/jobs.h"
#include "agent/route/topology_formats/formats.h"
#include "fmt/format.h"
#include "gtest/gtest.h"

namespace taskd::route {
namespace {

TEST(AlgorithmsTest, BothTreesConnectAllRanks) {
  for (int32_t ranks = 1; ranks < 70; ++ranks) {
    for (const auto parent_of : {FirstTreeParent, SecondTreeParent}) {
      int roots = 0;
      for (int32_t rank = 0; rank < ranks; ++rank) {
        int32_t at = rank;
        int steps = 0;
        while (parent_of(ranks, at) >= 0 && steps <= ranks) {
          at = parent_of(ranks, at);
          ASSERT_LT(at, ranks);
          ++steps;
        }
        ASSERT_LE(steps, ranks) << "a cycle";
        roots += steps == 0;
      }
      ASSERT_EQ(roots, 1) << ranks;
    }
  }
}

// `tors` groups of `per_tor`, as given contiguous or dealt out in turns.
AlgorithmReport Compare(int tors, int per_tor, bool contiguous) {
  std::string text = "node,level1\n";
  for (int i = 0; i < tors * per_tor; ++i) {
    fmt::format_to(std::back_inserter(text), "n{},s{}\n", i, contiguous ? i / per_tor : i % tors);
  }
  const auto topology = ReadTopology(text, TopologyFormat::kCsv);
  const auto nodes = NumberedJob(tors * per_tor);
  const auto plan = PlanRoutes(nodes, *topology, UnknownNodes::kLast);
  const auto report = CompareAlgorithms(nodes, *topology, *plan);
  EXPECT_TRUE(report.ok());
  return *report;
}

TEST(AlgorithmsTest, ContiguousPowersOfTwo) {
  struct Case {
    int tors, per_tor, tree, bound;
    double volume;
  };
  for (const Case& c : {Case{8, 8, 22, 14, 14}, Case{32, 16, 94, 62, 62}, Case{128, 32, 382, 254, 254}}) {
    const AlgorithmReport report = Compare(c.tors, c.per_tor, true);
    EXPECT_EQ(report.after.double_tree.cross_tor_flows, c.tree);
    EXPECT_EQ(report.double_tree_bound, c.bound);
    EXPECT_DOUBLE_EQ(report.after.halving_doubling_volume, c.volume);
    EXPECT_EQ(report.before.double_tree.cross_tor_flows, c.tree) << "an optimal order stays";
  }
}

TEST(AlgorithmsTest, InterleavedCostsMore) {
  const AlgorithmReport report = Compare(8, 8, false);
  EXPECT_GT(report.before.double_tree.cross_tor_flows, report.after.double_tree.cross_tor_flows);
  EXPECT_GT(report.before.double_tree.max_link_flows, report.after.double_tree.max_link_flows);
  EXPECT_DOUBLE_EQ(report.before.halving_doubling_volume, 112);  // distances 1, 2, 4 now cross
  EXPECT_DOUBLE_EQ(report.after.halving_doubling_volume, 14);
}

TEST(AlgorithmsTest, RanksAboveAPowerOfTwoFold) {
  // 3 nodes, each on its own ToR: rank 1 gives all to 0 and gets all; then 0 and 2 exchange halves twice.
  const AlgorithmReport report = Compare(3, 1, true);
  EXPECT_DOUBLE_EQ(report.after.halving_doubling_volume, 2 + 2 * 2 * 0.5);
}

TEST(AlgorithmsTest, FlowsBetweenToRsAreCountedAsByTheFullCost) {
  // A tree whose leaves are its ends, one with nodes below an inner switch, and rails.
  const std::string csv = "node,level1,level2\nn0,a,x\nn1,b,x\nn2,a,x\nn3,c,y\nn4,c,y\n";
  const std::string slurm = "SwitchName=a Nodes=n0\nSwitchName=b Nodes=n[1-2]\nSwitchName=t Switches=a,b\n";
  const std::string rails =
      R"({"server_list":[{"server_id":"n0","device":[{"tor_ip":"a"},{"tor_ip":"b"}]},
      {"server_id":"n1","device":[{"tor_ip":"a"},{"tor_ip":"c"}]}],"status":"completed"})";
  for (const std::string& text : {csv, slurm, rails}) {
    auto topology = ReadTopology(text, TopologyFormat::kAuto);
    ASSERT_TRUE(topology.ok()) << topology.status();
    std::vector<int32_t> node(topology->nodes.size());
    std::iota(node.begin(), node.end(), 0);
    const JobTree tree(*topology, node);
    std::vector<Flow> flows;
    for (const int32_t a : node) {
      for (const int32_t b : node) flows.emplace_back(a, b);
    }
    EXPECT_EQ(tree.CrossTorFlows(flows), tree.CostOf(tree.Crossings(flows)).cross_tor_flows) << text;
  }
}

}  // namespace
}  // namespace taskd::route
