#include "agent/route/plan_report.h"

#include <string>
#include <vector>

#include "agent/route/testing/jobs.h"
#include "agent/route/topology_formats/formats.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace taskd::route {
namespace {

class ReportTest : public ::testing::Test {
 protected:
  void SetUp() override {
    nodes_ = {{"n0", "job-worker-4", "", "", {0, 1}},
              {"n1", "job-worker-5", "", "", {2, 3}},
              {"n2", "job-worker-6", "", "", {4, 5}},
              {"n3", "job-worker-7", "", "", {6, 7}}};
    auto topology = ReadTopology("node,level1\nn0,a\nn1,b\nn2,a\nx,c\n", TopologyFormat::kCsv);
    ASSERT_TRUE(topology.ok());
    auto plan = PlanRoutes(nodes_, *topology, UnknownNodes::kLast);
    ASSERT_TRUE(plan.ok());
    plan_ = *plan;
  }

  std::vector<RouteNode> nodes_;
  RoutePlan plan_;
};

TEST_F(ReportTest, Json) {
  // printf 'n0\nn2\nn1\nn3\n' | sha256sum
  const char kDigest[] = "774577b1511b0d1a186f697d925732e5d97f61c0991e613231bf0c2b1f968736";
  EXPECT_EQ(PlanDigest(nodes_, plan_), kDigest);
  const auto json = nlohmann::json::parse(PlanJson(nodes_, plan_));
  const auto expected = nlohmann::json::parse(R"({"status":"planned","nodes":4,"tors":3,"moved":2,"unknown":["n3"],
    "ignored":1,"master_index":4,"cost":{
      "before":{"cross_tor_flows":4,"max_link_flows":2,"total_hops":8},
      "after":{"cross_tor_flows":3,"max_link_flows":1,"total_hops":6},
      "bound":{"cross_tor_flows":3,"max_link_flows":1,"total_hops":6}},
    "mapping":[{"node":"n0","pod_index":4,"old_rank":0,"new_rank":0},{"node":"n2","pod_index":6,"old_rank":2,"new_rank":1},
               {"node":"n1","pod_index":5,"old_rank":1,"new_rank":2},{"node":"n3","pod_index":7,"old_rank":3,"new_rank":3}]})");
  for (const auto& [key, value] : expected.items()) EXPECT_EQ(json[key], value) << key;
  EXPECT_EQ(json["digest"], kDigest);
  EXPECT_FALSE(json["reason"].get<std::string>().empty());
}

TEST_F(ReportTest, Algorithms) {
  AlgorithmReport report;
  report.after.double_tree.cross_tor_flows = 22;
  report.after.halving_doubling_volume = 14.5;
  const auto json = nlohmann::json::parse(PlanJson(nodes_, plan_, {.algorithms = &report}));
  EXPECT_EQ(json["algorithms"]["after"]["double_tree"]["cross_tor_flows"], 22);
  EXPECT_EQ(json["algorithms"]["after"]["halving_doubling_volume"], 14.5);
  EXPECT_EQ(json["mapping"].size(), 4U);
}

TEST_F(ReportTest, NamesThatNeedEscapes) {
  nodes_[0].server_id = "a\"\n\xff";
  const auto json = nlohmann::json::parse(PlanJson(nodes_, plan_));
  EXPECT_EQ(json["mapping"][0]["node"], "a\"\n\xEF\xBF\xBD");
  EXPECT_EQ(PlanJson(nodes_, plan_).find('\n'), std::string::npos);
}

TEST_F(ReportTest, Skipped) {
  const RoutePlan plan = SkippedPlan(nodes_, "no /x/y after 300 s");
  const auto json = nlohmann::json::parse(PlanJson(nodes_, plan));
  EXPECT_EQ(json["status"], "skipped");
  EXPECT_EQ(json["reason"], "no /x/y after 300 s");
  EXPECT_EQ(json["moved"], 0);
  EXPECT_EQ(json["mapping"][1]["node"], "n1");
  EXPECT_EQ(nlohmann::json::parse(FailedJson("why")), nlohmann::json::parse(R"({"status":"failed","reason":"why"})"));
}

TEST_F(ReportTest, Files) {
  EXPECT_EQ(RankAfterAcc(plan_, 1), "2\n");
  EXPECT_EQ(RankAfterAcc(plan_, 2), "1\n");
  EXPECT_EQ(MasterIndex(plan_), "4\n");
  EXPECT_EQ(RankMapping(plan_), "0-4,1-6,2-5,3-7");
  EXPECT_EQ(Hostfile(nodes_, plan_),
            "job-worker-4 slots=2\njob-worker-6 slots=2\njob-worker-5 slots=2\njob-worker-7 slots=2\n");
  nodes_[0].pod_name.clear();
  EXPECT_EQ(Rankfile(nodes_, plan_).substr(0, 61), "rank 0=n0 slot=0\nrank 1=n0 slot=1\nrank 2=job-worker-6 slot=0\n");
}

TEST_F(ReportTest, NodesAreFoundByAnyName) {
  EXPECT_EQ(FindNode(nodes_, plan_.by_old_rank, "n2"), 2);
  EXPECT_EQ(FindNode(nodes_, plan_.by_old_rank, "job-worker-7"), 3);
  EXPECT_FALSE(FindNode(nodes_, plan_.by_old_rank, "").has_value());
  EXPECT_FALSE(FindNode(nodes_, plan_.by_old_rank, "n").has_value());
}

TEST_F(ReportTest, RankMapping) {
  const auto json = nlohmann::json::parse(PlanJson(nodes_, plan_, {.rank_mapping = true}));
  EXPECT_EQ(json["rank_mapping"], RankMapping(plan_));
}

TEST_F(ReportTest, Text) {
  AlgorithmReport algorithms;
  algorithms.before = {{8, 4}, 6};
  algorithms.after = {{4, 2}, 6};
  const std::string text = PlanText(nodes_, plan_, {.algorithms = &algorithms});
  const auto line_has = [&](const std::string& begin, const std::string& word) {
    const size_t at = text.find("\n" + begin);
    return at != std::string::npos &&
           text.substr(at + 1, text.find('\n', at + 1) - at - 1).find(word) != std::string::npos;
  };
  EXPECT_EQ(text.rfind("planned: ", 0), 0u) << text;
  EXPECT_TRUE(line_has("unknown to the topology: 1 node", "\"n3\"")) << text;
  EXPECT_TRUE(line_has("halving-doubling", "no gain")) << text;
  EXPECT_FALSE(line_has("ring: flows between ToRs", "no gain")) << text;
  EXPECT_FALSE(line_has("double binary tree", "no gain")) << text;
}

TEST(Sha256Test, KnownText) {
  EXPECT_EQ(Sha256("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

}  // namespace
}  // namespace taskd::route
