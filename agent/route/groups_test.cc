#include "agent/route/groups.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "agent/route/group_blocks.h"
#include "agent/route/group_pattern.h"
#include "agent/route/testing/jobs.h"
#include "agent/route/topology_formats/formats.h"
#include "fmt/format.h"
#include "gtest/gtest.h"

namespace taskd::route {
namespace {

std::vector<RouteNode> JobWithDevices(int nodes, int devices) {
  std::vector<RouteNode> job = NumberedJob(nodes);
  for (int i = 0; i < nodes; ++i) {
    job[i].device_ranks.resize(static_cast<size_t>(devices));
    std::iota(job[i].device_ranks.begin(), job[i].device_ranks.end(), i * devices);
  }
  return job;
}

// Path from the leaf switch upwards, by node.
using Paths = std::vector<std::vector<std::string>>;

Topology TopologyOf(const Paths& paths) {
  std::string text = "node";
  for (size_t level = 1; level <= paths[0].size(); ++level) text += fmt::format(",level{}", level);
  for (size_t node = 0; node < paths.size(); ++node) {
    text += fmt::format("\nn{}", node);
    for (const std::string& name : paths[node]) text += "," + name;
  }
  auto topology = ReadTopology(text, TopologyFormat::kCsv);
  EXPECT_TRUE(topology.ok()) << topology.status();
  return *std::move(topology);
}

Paths RandomPaths(int nodes, int levels, std::mt19937& random) {
  Paths paths(static_cast<size_t>(nodes));
  const int tops = std::uniform_int_distribution(1, 3)(random);
  for (auto& path : paths) {
    std::string name = fmt::format("s{}", std::uniform_int_distribution(1, tops)(random));
    for (int level = 0; level < levels; ++level) {
      path.insert(path.begin(), name);
      name += fmt::format(".{}", std::uniform_int_distribution(1, 3)(random));
    }
  }
  return paths;
}

// The cost as the header words it, told from nothing but the paths and the sizes: every group, ring by ring.
int64_t CostByHand(const Paths& paths, const GroupSizes& sizes, int devices, const std::vector<int>& order) {
  const auto hops = [&](int rank, int other) {
    const auto& a = paths[order[rank / devices]];
    const auto& b = paths[order[other / devices]];
    int64_t links = 0;
    for (size_t level = 0; level < a.size() && a[level] != b[level]; ++level) links += 2;
    return links;
  };
  int64_t cost = 0;
  const auto ring = [&](const std::vector<int>& ranks, int64_t weight) {
    for (size_t i = 0; i < ranks.size(); ++i) cost += weight * hops(ranks[i], ranks[(i + 1) % ranks.size()]);
  };
  const auto rank = [&](int t, int d, int p) { return t + sizes.tp * (d + sizes.dp * p); };
  for (int p = 0; p < sizes.pp; ++p) {
    for (int d = 0; d < sizes.dp; ++d) {
      std::vector<int> group;
      for (int t = 0; t < sizes.tp; ++t) group.push_back(rank(t, d, p));
      ring(group, GroupWeights::kTp);
    }
    for (int t = 0; t < sizes.tp; ++t) {
      std::vector<int> group;
      for (int d = 0; d < sizes.dp; ++d) group.push_back(rank(t, d, p));
      ring(group, GroupWeights::kDp);
      for (int e = 0; e < sizes.dp; e += sizes.ep) {
        ring(std::vector<int>(group.begin() + e, group.begin() + e + sizes.ep), GroupWeights::kEp);
      }
    }
  }
  for (int t = 0; t < sizes.tp; ++t) {
    for (int d = 0; d < sizes.dp; ++d) {
      std::vector<int> group;
      for (int p = 0; p < sizes.pp; ++p) group.push_back(rank(t, d, p));
      ring(group, GroupWeights::kPp);
    }
  }
  return cost;
}

int64_t BestByHand(const Paths& paths, const GroupSizes& sizes, int devices) {
  std::vector<int> order(paths.size());
  std::iota(order.begin(), order.end(), 0);
  int64_t best = CostByHand(paths, sizes, devices, order);
  while (std::next_permutation(order.begin() + 1, order.end())) {
    best = std::min(best, CostByHand(paths, sizes, devices, order));
  }
  return best;
}

struct Result {
  GroupReport report;
  RoutePlan plan;
  std::vector<int> order;  // nodes by new rank
};

Result Plan(const std::vector<RouteNode>& nodes, const Topology& topology, const GroupSizes& sizes) {
  Result result;
  auto plan = PlanRoutes(nodes, topology, UnknownNodes::kLast);
  auto checked = CheckGroups(nodes, sizes);
  EXPECT_TRUE(plan.ok() && checked.ok()) << plan.status() << checked.status();
  result.plan = *plan;
  auto report = PlanGroups(nodes, topology, *checked, result.plan);
  EXPECT_TRUE(report.ok()) << report.status();
  result.report = *report;
  result.order.assign(result.plan.by_new_rank.begin(), result.plan.by_new_rank.end());
  return result;
}

// All sizes that fit.
std::vector<GroupSizes> AllSizes(int ranks) {
  std::vector<GroupSizes> all;
  for (const int tp : Divisors(ranks)) {
    for (const int pp : Divisors(ranks / tp)) {
      for (const int ep : Divisors(ranks / tp / pp)) all.push_back({tp, pp, ep, ranks / tp / pp});
    }
  }
  return all;
}

TEST(GroupsTest, StagesBelowOneSwitchOrPipelines) {
  // 4 nodes of 2 devices, 2 ToRs. One stage of 4 ranks is 2 nodes: 0 and 1, 2 and 3.
  const Paths paths = {{"a"}, {"b"}, {"a"}, {"b"}};
  const auto nodes = JobWithDevices(4, 2);
  // Data parallel rings of two: 4 of weight 1 between the nodes of a stage, pipelines of two: 4.
  const Result even = Plan(nodes, TopologyOf(paths), {1, 2, 1, 0});
  EXPECT_EQ(even.report.before, CostByHand(paths, {1, 2, 1, 4}, 2, {0, 1, 2, 3}));
  // With expert parallelism over the stage it has to be together.
  const Result experts = Plan(nodes, TopologyOf(paths), {1, 2, 4, 0});
  EXPECT_EQ(experts.order, (std::vector<int>{0, 2, 1, 3}));
  EXPECT_EQ(experts.plan.outcome, RoutePlan::Outcome::kPlanned);
  EXPECT_EQ(experts.plan.moved, 2);
  EXPECT_LT(experts.report.after, experts.report.before);
}

TEST(GroupsTest, WithinTenPercentOfTheBestOrder) {
  std::mt19937 random(7);
  int64_t cases = 0;
  for (int nodes = 3; nodes <= 6; ++nodes) {
    for (const int devices : {1, 2, 4}) {
      for (const GroupSizes& sizes : AllSizes(nodes * devices)) {
        const Paths paths = RandomPaths(nodes, std::uniform_int_distribution(1, 3)(random), random);
        const Result result = Plan(JobWithDevices(nodes, devices), TopologyOf(paths), sizes);
        const int64_t best = BestByHand(paths, sizes, devices);
        SCOPED_TRACE(
            fmt::format("nodes {} devices {} tp {} pp {} ep {}", nodes, devices, sizes.tp, sizes.pp, sizes.ep));
        ASSERT_EQ(result.report.after, CostByHand(paths, sizes, devices, result.order));
        ASSERT_LE(static_cast<double>(result.report.after), 1.1 * static_cast<double>(best));
        ASSERT_LE(result.report.bound, best);
        ASSERT_EQ(result.order[0], 0);
        ++cases;
      }
    }
  }
  EXPECT_GT(cases, 100);
}

TEST(GroupsTest, WithinTenPercentOfTheBestOrderOf8) {
  std::mt19937 random(8);
  for (const int devices : {1, 2}) {
    for (const GroupSizes& sizes : AllSizes(8 * devices)) {
      const Paths paths = RandomPaths(8, std::uniform_int_distribution(1, 3)(random), random);
      const Result result = Plan(JobWithDevices(8, devices), TopologyOf(paths), sizes);
      ASSERT_LE(static_cast<double>(result.report.after), 1.1 * static_cast<double>(BestByHand(paths, sizes, devices)))
          << sizes.tp << " " << sizes.pp << " " << sizes.ep;
    }
  }
}

TEST(GroupsTest, NeverWorseThanGivenOrDepthFirstAndStable) {
  std::mt19937 random(9);
  for (int round = 0; round < 40; ++round) {
    const int nodes = std::uniform_int_distribution(9, 100)(random);
    const int devices = round % 3 == 0 ? 8 : 2;
    const Paths paths = RandomPaths(nodes, 1 + round % 3, random);
    const Topology topology = TopologyOf(paths);
    const auto all = AllSizes(nodes * devices);
    const GroupSizes sizes = all[std::uniform_int_distribution<size_t>(0, all.size() - 1)(random)];
    SCOPED_TRACE(fmt::format("nodes {} devices {} tp {} pp {} ep {}", nodes, devices, sizes.tp, sizes.pp, sizes.ep));
    std::vector<RouteNode> job = JobWithDevices(nodes, devices);
    const Result result = Plan(job, topology, sizes);
    std::vector<int> given(static_cast<size_t>(nodes));
    std::iota(given.begin(), given.end(), 0);
    ASSERT_EQ(result.report.before, CostByHand(paths, sizes, devices, given));
    ASSERT_EQ(result.report.after, CostByHand(paths, sizes, devices, result.order));
    ASSERT_LE(result.report.bound, result.report.after);
    ASSERT_LE(result.report.after, result.report.before);
    auto ring = PlanRoutes(job, topology, UnknownNodes::kLast);
    const std::vector<int> depth_first(ring->by_new_rank.begin(), ring->by_new_rank.end());
    ASSERT_LE(result.report.after, CostByHand(paths, sizes, devices, depth_first));
    ASSERT_EQ(result.order[0], 0);
    ASSERT_TRUE(std::is_permutation(result.order.begin(), result.order.end(), given.begin()));
    // The second run, on the job as the first one numbered it.
    const std::vector<int32_t> new_rank = NewDeviceRanks(job, result.plan);
    for (RouteNode& node : job) {
      for (int& rank : node.device_ranks) rank = new_rank[rank];
    }
    const Result again = Plan(job, topology, sizes);
    ASSERT_EQ(again.plan.moved, 0);
    ASSERT_EQ(again.report.after, result.report.after);
  }
}

TEST(GroupsTest, RailsAndUnknownNodes) {
  auto topology = ReadTopology(R"({"status":"completed","server_list":[
    {"server_id":"n0","device":[{"tor_ip":"a"},{"tor_ip":"c"}]},{"server_id":"n1","device":[{"tor_ip":"b"},{"tor_ip":"c"}]},
    {"server_id":"n2","device":[{"tor_ip":"a"},{"tor_ip":"d"}]},{"server_id":"n3","device":[{"tor_ip":"b"},{"tor_ip":"d"}]}]})",
                               TopologyFormat::kTorList);
  ASSERT_TRUE(topology.ok()) << topology.status();
  const Result result = Plan(JobWithDevices(6, 2), *topology, {1, 2, 3, 0});
  EXPECT_LE(result.report.after, result.report.before);
  EXPECT_LE(result.report.bound, result.report.after);
  EXPECT_EQ(result.plan.unknown.size(), 2u);
}

TEST(GroupsTest, WhatDoesNotFit) {
  const auto nodes = JobWithDevices(4, 2);
  const auto message = [&](const GroupSizes& sizes) {
    const absl::Status status = CheckGroups(nodes, sizes).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status));
    return std::string(status.message());
  };
  EXPECT_NE(message({3, 1, 1, 0}).find("--tp 3"), std::string::npos);
  EXPECT_NE(message({1, 1, 3, 0}).find("--ep 3"), std::string::npos);
  EXPECT_NE(message({2, 2, 1, 4}).find("--dp 4"), std::string::npos);
  EXPECT_EQ(CheckGroups(nodes, {2, 2, 1, 0})->dp, 2);
  auto odd = nodes;
  odd[2].device_ranks.pop_back();
  EXPECT_NE(std::string(CheckGroups(odd, {}).status().message()).find("n2"), std::string::npos);
}

TEST(GroupBlocksTest, BlocksLieAsLowAsTheyCan) {
  // Leaves of 3, 5 and 4 nodes; blocks of 4: one each of the last two, and 3 + 1.
  Paths paths;
  for (const auto& [name, count] : {std::pair("a", 3), std::pair("b", 5), std::pair("c", 4)}) {
    for (int i = 0; i < count; ++i) paths.push_back({name});
  }
  std::vector<int32_t> node(paths.size());
  std::iota(node.begin(), node.end(), 0);
  EXPECT_EQ(BlockOrder(JobTree(TopologyOf(paths), node), 4),
            (std::vector<int32_t>{0, 1, 2, 7, 3, 4, 5, 6, 8, 9, 10, 11}));
  EXPECT_EQ(TilePositions(2, 4, 2, 2, false), (std::vector<int32_t>{0, 1, 4, 5, 2, 3, 6, 7}));
  EXPECT_EQ(TilePositions(2, 4, 1, 2, true), (std::vector<int32_t>{0, 1, 4, 5, 2, 3, 6, 7}));
}

}  // namespace
}  // namespace taskd::route
