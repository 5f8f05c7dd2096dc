#include "agent/route/plan.h"

#include <algorithm>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "agent/route/testing/jobs.h"
#include "agent/route/topology_formats/formats.h"
#include "fmt/format.h"
#include "gtest/gtest.h"

namespace taskd::route {
namespace {

Topology Csv(const std::string& text) {
  auto topology = ReadTopology(text, TopologyFormat::kCsv);
  EXPECT_TRUE(topology.ok()) << topology.status();
  return topology.ok() ? *std::move(topology) : Topology();
}

RoutePlan Plan(const std::vector<RouteNode>& nodes, const Topology& topology,
               UnknownNodes unknown = UnknownNodes::kLast) {
  auto plan = PlanRoutes(nodes, topology, unknown);
  EXPECT_TRUE(plan.ok()) << plan.status();
  return plan.ok() ? *std::move(plan) : RoutePlan();
}

// server_ids in the new order.
std::string Order(const std::vector<RouteNode>& nodes, const RoutePlan& plan) {
  std::string text;
  for (const int32_t index : plan.by_new_rank) text += (text.empty() ? "" : " ") + nodes[index].server_id;
  return text;
}

// The same nodes, numbered by the plan.
std::vector<RouteNode> Replanned(const std::vector<RouteNode>& nodes, const RoutePlan& plan) {
  std::vector<RouteNode> result = nodes;
  for (size_t rank = 0; rank < nodes.size(); ++rank) {
    result[plan.by_new_rank[rank]].device_ranks = {static_cast<int>(rank)};
  }
  return result;
}

TEST(PlanTest, InterleavedNodesBecomeContiguous) {
  const auto nodes = NumberedJob(6);
  const Topology topology = Csv("node,level1\nn0,a\nn1,b\nn2,a\nn3,b\nn4,a\nn5,b\nspare,c\n");
  const RoutePlan plan = Plan(nodes, topology);
  EXPECT_EQ(plan.outcome, RoutePlan::Outcome::kPlanned);
  EXPECT_EQ(Order(nodes, plan), "n0 n2 n4 n1 n3 n5");
  EXPECT_EQ(plan.before, (Cost{6, 3, 12}));
  EXPECT_EQ(plan.after, (Cost{2, 1, 4}));
  EXPECT_EQ(plan.bound, plan.after);
  EXPECT_EQ(plan.tors, 2);
  EXPECT_EQ(plan.moved, 4);
  EXPECT_EQ(plan.ignored, 1);
  EXPECT_EQ(plan.old_rank[plan.by_new_rank[1]], 2);
}

TEST(PlanTest, CyclicallyContiguousOrderStays) {
  const auto nodes = NumberedJob(4);
  const RoutePlan plan = Plan(nodes, Csv("node,level1\nn0,a\nn1,b\nn2,b\nn3,a\n"));
  EXPECT_EQ(plan.outcome, RoutePlan::Outcome::kIdentity);
  EXPECT_EQ(Order(nodes, plan), "n0 n1 n2 n3");
  EXPECT_EQ(plan.moved, 0);
}

TEST(PlanTest, OneTorIsIdentity) {
  const RoutePlan plan = Plan(NumberedJob(5), Csv("node,level1,level2\nn0,a,x\nn1,a,x\nn2,a,x\nn3,a,x\nn4,a,x\n"));
  EXPECT_EQ(plan.outcome, RoutePlan::Outcome::kIdentity);
  EXPECT_EQ(plan.tors, 1);
  EXPECT_EQ(plan.before, Cost());
  EXPECT_EQ(plan.bound, Cost());
}

TEST(PlanTest, UpperLevelsCount) {
  // Leaves are contiguous; pods x and y take turns.
  const auto nodes = NumberedJob(8);
  const RoutePlan plan =
      Plan(nodes, Csv("node,level1,level2\nn0,a,x\nn1,a,x\nn2,b,y\nn3,b,y\nn4,c,x\nn5,c,x\nn6,d,y\nn7,d,y\n"));
  EXPECT_EQ(Order(nodes, plan), "n0 n1 n4 n5 n2 n3 n6 n7");
  EXPECT_EQ(plan.before, (Cost{4, 2, 16}));  // a b c d once, x y twice
  EXPECT_EQ(plan.after, (Cost{4, 1, 12}));
}

TEST(PlanTest, FewerThanThreeNodesAreSkipped) {
  const RoutePlan plan = Plan(NumberedJob(2), Csv("node,level1\nn0,a\nn1,b\n"));
  EXPECT_EQ(plan.outcome, RoutePlan::Outcome::kSkipped);
  EXPECT_NE(plan.reason.find("nodes<3"), std::string::npos);
  EXPECT_EQ(plan.moved, 0);
}

TEST(PlanTest, UnknownNodes) {
  const auto nodes = NumberedJob(6);
  const Topology topology = Csv("node,level1\nn0,a\nn2,b\nn3,a\nn5,b\n");
  const RoutePlan plan = Plan(nodes, topology);
  EXPECT_EQ(Order(nodes, plan), "n0 n3 n2 n5 n1 n4");
  EXPECT_EQ(plan.unknown, (std::vector<int32_t>{1, 4}));
  EXPECT_EQ(plan.tors, 4);
  EXPECT_EQ(plan.after, (Cost{4, 1, 8}));
  EXPECT_EQ(plan.after, plan.bound);
  const RoutePlan fail = Plan(nodes, topology, UnknownNodes::kFail);
  EXPECT_EQ(fail.outcome, RoutePlan::Outcome::kSkipped);
  EXPECT_NE(fail.reason.find("\"n1\""), std::string::npos);
  EXPECT_EQ(Order(nodes, fail), "n0 n1 n2 n3 n4 n5");
  EXPECT_EQ(fail.after, fail.before);
}

TEST(PlanTest, UnknownMasterStaysFirst) {
  const auto nodes = NumberedJob(5);
  const RoutePlan plan = Plan(nodes, Csv("node,level1\nn1,a\nn2,b\nn3,a\n"));
  EXPECT_EQ(Order(nodes, plan), "n0 n1 n3 n2 n4");
}

TEST(PlanTest, UnknownNodesHangBelowTheOnlyRoot) {
  const RoutePlan plan = Plan(NumberedJob(4), Csv("node,level1,level2\nn0,a,x\nn1,b,x\nn2,a,x\n"));
  EXPECT_EQ(plan.bound, (Cost{3, 1, 6}));  // a, b and the leaf of n3; x has all nodes below
}

TEST(PlanTest, NamesOfANode) {
  std::vector<RouteNode> nodes = {{"id0", "job-worker-0", "10.0.0.1", "172.0.0.1", {0}},
                                  {"id1", "job-worker-1", "10.0.0.2", "172.0.0.2", {1}},
                                  {"id2", "job-worker-2", "10.0.0.3", "172.0.0.3", {2}},
                                  {"id3", "job-worker-3", "10.0.0.3", "id0", {3}}};
  // id3 shares its host with id2; its container_ip is somebody's server_id.
  const RoutePlan plan = Plan(nodes, Csv("node,level1\nid0,a\njob-worker-1,b\n10.0.0.3,a\nid1,b\n172.0.0.1,a\n"));
  EXPECT_TRUE(plan.unknown.empty());
  EXPECT_EQ(Order(nodes, plan), "id0 id1 id2 id3");
  const auto twice = PlanRoutes(nodes, Csv("node,level1\nid0,a\n10.0.0.1,b\n"), UnknownNodes::kLast);
  ASSERT_FALSE(twice.ok());
  EXPECT_NE(twice.status().message().find("node \"id0\" comes twice"), std::string::npos);
}

TEST(PlanTest, PodIndex) {
  std::vector<RouteNode> nodes = {
      {"x", "job-7", "", "", {4, 5}}, {"y", "job-3", "", "", {0, 1}}, {"z", "job-5", "", "", {2, 3}}};
  const RoutePlan plan = Plan(nodes, Csv("node,level1\nx,a\ny,a\nz,b\n"));
  EXPECT_EQ(plan.pod_index, (std::vector<int64_t>{7, 3, 5}));
  EXPECT_EQ(plan.master_index, 3);
  EXPECT_EQ(plan.old_rank, (std::vector<int32_t>{2, 0, 1}));
  nodes[2].pod_name = "job-7";
  EXPECT_EQ(Plan(nodes, Csv("node,level1\nx,a\ny,a\nz,b\n")).pod_index, (std::vector<int64_t>{2, 0, 1}));
  nodes[2].pod_name = "job-x7";
  EXPECT_EQ(Plan(nodes, Csv("node,level1\nx,a\ny,a\nz,b\n")).pod_index, (std::vector<int64_t>{2, 0, 1}));
}

TEST(PlanTest, DeviceRanks) {
  std::vector<RouteNode> nodes = {
      {"n0", "", "", "", {1, 0}}, {"n1", "", "", "", {2, 3}}, {"n2", "", "", "", {4}}, {"n3", "", "", "", {5, 6}}};
  const RoutePlan plan = Plan(nodes, Csv("node,level1\nn0,a\nn1,b\nn2,a\nn3,b\n"));
  EXPECT_EQ(Order(nodes, plan), "n0 n2 n1 n3");
  EXPECT_EQ(NewDeviceRanks(nodes, plan), (std::vector<int32_t>{0, 1, 3, 4, 2, 5, 6}));
}

TEST(PlanTest, RunsOfLocalIds) {
  EXPECT_EQ(SplitRuns({0, 1, 2, 0, 1, 1, 5, 6}), (std::vector<size_t>{3, 2, 3}));
  EXPECT_TRUE(SplitRuns({}).empty());
}

// `levels` random parents above each of `nodes` nodes, as csv lines without the header.
std::vector<std::string> RandomTree(std::mt19937& random, int nodes, int levels) {
  std::vector<std::vector<int>> parent(static_cast<size_t>(levels));
  int below = nodes;
  for (auto& level : parent) {
    const int width = 1 + static_cast<int>(random() % static_cast<unsigned>(below));
    for (int i = 0; i < below; ++i) level.push_back(static_cast<int>(random() % static_cast<unsigned>(width)));
    below = width;
  }
  std::vector<std::string> lines;
  for (int i = 0; i < nodes; ++i) {
    std::string line = fmt::format("n{}", i);
    int at = i;
    for (const auto& level : parent) line += fmt::format(",s{}", at = level[static_cast<size_t>(at)]);
    lines.push_back(line + "\n");
  }
  return lines;
}

Topology FromLines(const std::vector<std::string>& lines, int levels) {
  std::string text = "node";
  for (int i = 1; i <= levels; ++i) text += fmt::format(",level{}", i);
  return Csv(fmt::format("{}\n{}", text, fmt::join(lines, "")));
}

TEST(PlanTest, NoRingIsBetter) {
  std::mt19937 random(1);
  for (int n = 3; n <= 7; ++n) {
    for (int round = 0; round < (n == 7 ? 40 : 100); ++round) {
      const int levels = 1 + static_cast<int>(random() % 3);
      const auto lines = RandomTree(random, n, levels);
      const Topology topology = FromLines(lines, levels);
      const auto nodes = NumberedJob(n);
      const RoutePlan plan = Plan(nodes, topology);
      ASSERT_EQ(plan.after, plan.bound) << fmt::format("{}", fmt::join(lines, ""));
      std::vector<int32_t> entries(static_cast<size_t>(n));
      for (int i = 0; i < n; ++i) entries[i] = topology.node_by_name.at(nodes[i].server_id);
      const JobTree tree(topology, entries);
      std::vector<int32_t> order(static_cast<size_t>(n));
      std::iota(order.begin(), order.end(), 0);
      do {
        const Cost cost = tree.RingCost(order);
        ASSERT_GE(cost.cross_tor_flows, plan.after.cross_tor_flows);
        ASSERT_GE(cost.max_link_flows, plan.after.max_link_flows);
        ASSERT_GE(cost.total_hops, plan.after.total_hops);
      } while (std::next_permutation(order.begin() + 1, order.end()));
    }
  }
}

// Crossings by their definition.
TEST(PlanTest, CostsAreWhatTheyAreDefinedAs) {
  std::mt19937 random(2);
  for (int round = 0; round < 200; ++round) {
    const int n = 3 + static_cast<int>(random() % 30);
    const Topology topology = FromLines(RandomTree(random, n, 4), 4);
    const auto nodes = NumberedJob(n);
    const RoutePlan plan = Plan(nodes, topology);
    const size_t switches = topology.switch_parent.size();
    std::vector<std::vector<bool>> below(switches, std::vector<bool>(static_cast<size_t>(n), false));
    std::vector<bool> leaf(switches, false);
    for (int i = 0; i < n; ++i) {
      int32_t at = topology.LeavesOf(topology.node_by_name.at(nodes[i].server_id))[0];
      leaf[at] = true;
      for (; at >= 0; at = topology.switch_parent[at]) below[at][i] = true;
    }
    Cost cost;
    for (size_t s = 0; s < switches; ++s) {
      int64_t flows = 0;
      for (int i = 0; i < n; ++i) flows += below[s][i] && !below[s][(i + 1) % n];
      cost.cross_tor_flows += leaf[s] ? flows : 0;
      cost.max_link_flows = std::max(cost.max_link_flows, flows);
      cost.total_hops += 2 * flows;
    }
    ASSERT_EQ(plan.before, cost);
  }
}

TEST(PlanTest, InputOrderDoesNotMatterAndASecondRunChangesNothing) {
  std::mt19937 random(3);
  for (int round = 0; round < 100; ++round) {
    const int n = 3 + static_cast<int>(random() % 40);
    auto lines = RandomTree(random, n, 3);
    lines.resize(lines.size() - random() % 3);  // some are unknown
    if (lines.empty()) continue;
    auto nodes = NumberedJob(n);
    const RoutePlan plan = Plan(nodes, FromLines(lines, 3));
    const std::string order = Order(nodes, plan);
    EXPECT_EQ(plan.by_new_rank[0], 0);
    EXPECT_EQ(plan.after, plan.bound);
    const auto again = Replanned(nodes, plan);
    EXPECT_EQ(Plan(again, FromLines(lines, 3)).outcome, RoutePlan::Outcome::kIdentity);
    std::shuffle(lines.begin(), lines.end(), random);
    std::shuffle(nodes.begin(), nodes.end(), random);
    const RoutePlan shuffled = Plan(nodes, FromLines(lines, 3));
    ASSERT_EQ(Order(nodes, shuffled), order);
    ASSERT_EQ(shuffled.before, plan.before);
  }
}

std::string TorList(const std::vector<std::vector<std::string>>& tors) {
  std::vector<std::string> servers;
  for (size_t i = 0; i < tors.size(); ++i) {
    std::vector<std::string> devices;
    for (size_t k = 0; k < tors[i].size(); ++k) {
      devices.push_back(fmt::format(R"({{"device_id":"{}","tor_ip":"{}"}})", k, tors[i][k]));
    }
    servers.push_back(fmt::format(R"({{"server_id":"n{}","device":[{}]}})", i, fmt::join(devices, ",")));
  }
  return fmt::format(R"({{"status":"completed","server_list":[{}]}})", fmt::join(servers, ","));
}

Topology Rails(const std::vector<std::vector<std::string>>& tors) {
  auto topology = ReadTopology(TorList(tors), TopologyFormat::kTorList);
  EXPECT_TRUE(topology.ok()) << topology.status();
  return topology.ok() ? *std::move(topology) : Topology();
}

TEST(PlanTest, RailsThatGroupAlikeAreATree) {
  const auto nodes = NumberedJob(4);
  const RoutePlan plan = Plan(nodes, Rails({{"a0", "a1"}, {"b0", "b1"}, {"a0", "a1"}, {"b0", "b1"}}));
  EXPECT_EQ(Order(nodes, plan), "n0 n2 n1 n3");
  EXPECT_EQ(plan.before, (Cost{8, 2, 16}));
  EXPECT_EQ(plan.after, (Cost{4, 1, 8}));
  EXPECT_EQ(plan.tors, 4);
  EXPECT_EQ(plan.bound, plan.after);
}

TEST(PlanTest, RailsThatDivideEachOtherReachTheBound) {
  // Rail 0 has two groups, rail 1 four that divide them.
  const auto nodes = NumberedJob(8);
  const RoutePlan plan = Plan(
      nodes, Rails({{"a", "p"}, {"b", "r"}, {"a", "q"}, {"b", "s"}, {"a", "p"}, {"b", "r"}, {"a", "q"}, {"b", "s"}}));
  EXPECT_EQ(Order(nodes, plan), "n0 n4 n2 n6 n1 n5 n3 n7");
  EXPECT_EQ(plan.after, plan.bound);
}

TEST(PlanTest, RailsThatDifferAreNeverWorseAndStayPut) {
  std::mt19937 random(4);
  int better = 0;
  for (int round = 0; round < 300; ++round) {
    const int n = 3 + static_cast<int>(random() % 14);
    std::vector<std::vector<std::string>> tors;
    for (int i = 0; i < n; ++i) {
      tors.emplace_back();
      for (int rail = 0; rail < 3; ++rail) tors.back().push_back(fmt::format("r{}-{}", rail, random() % 3));
    }
    auto nodes = NumberedJob(n);
    const Topology topology = Rails(tors);
    const RoutePlan plan = Plan(nodes, topology);
    EXPECT_LE(plan.after.cross_tor_flows, plan.before.cross_tor_flows);
    EXPECT_LE(plan.after.max_link_flows, plan.before.max_link_flows);
    EXPECT_LE(plan.after.total_hops, plan.before.total_hops);
    EXPECT_GE(plan.after.cross_tor_flows, plan.bound.cross_tor_flows);
    EXPECT_EQ(plan.by_new_rank[0], 0);
    better += plan.after.cross_tor_flows < plan.before.cross_tor_flows;
    const auto again = Replanned(nodes, plan);
    EXPECT_EQ(Plan(again, topology).moved, 0);
  }
  EXPECT_GT(better, 200);
}

// 200,000 leaves on a chain of switches, visited in turns: quadratic if every step climbed to the meeting point.
TEST(PlanTest, DeepTreesAreNotQuadratic) {
  const int kLeaves = 200000;
  std::string text = "SwitchName=c0 Switches=l0\nSwitchName=l0 Nodes=n0\n";
  for (int i = 1; i < kLeaves; ++i) {
    fmt::format_to(std::back_inserter(text), "SwitchName=l{0} Nodes=n{1}\nSwitchName=c{0} Switches=c{2},l{0}\n", i,
                   i * int64_t{7919} % kLeaves, i - 1);
  }
  auto topology = ReadTopology(text, TopologyFormat::kSlurm, size_t{256} << 20);
  ASSERT_TRUE(topology.ok()) << topology.status();
  const RoutePlan plan = Plan(NumberedJob(kLeaves), *topology);
  EXPECT_EQ(plan.outcome, RoutePlan::Outcome::kPlanned);
  EXPECT_EQ(plan.after, plan.bound);
}

}  // namespace
}  // namespace taskd::route
