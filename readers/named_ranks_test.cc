#include "readers/named_ranks.h"

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"

namespace taskd::readers {
namespace {

using Ranks = std::vector<int>;

TEST(NamedRanks, NumberBehindTheWordRank) {
  EXPECT_EQ(RanksOfPaths({"d/rank_3.json", "d/rank4_trace.json", "d/r5.pt.trace.json", "d/step_200_rank_6.json"}),
            (Ranks{3, 4, 5, 6}));
  EXPECT_EQ(RanksOfPaths({"d/rank-0-epoch-3.json", "d/traceRank1_7.json", "rank2/trace_9.json", "d/GLOBAL_RANK.3"}),
            (Ranks{0, 1, 2, 3}));
  EXPECT_EQ(RanksOfPaths({"d/dp0_tp1_ep1_rank1.1713709.json", "d/dp0_tp2_ep2_rank2.1723709.json"}), (Ranks{1, 2}));
  EXPECT_EQ(RanksOfPaths({"run1/rank0.json", "run2/rank0.json"}), (Ranks{0, 0}));
}

TEST(NamedRanks, OnlyNumberOfAName) {
  EXPECT_EQ(RanksOfPaths({"d/trace_3.json"}), (Ranks{3}));
  EXPECT_EQ(RanksOfPaths({"d/alpha_0.json", "d/beta_1.json"}), (Ranks{0, 1}));
  EXPECT_EQ(RanksOfPaths({"node1/trace.json", "d/trace_200000.json", "d/trace.json", ""}), (Ranks{-1, -1, -1, -1}));
}

TEST(NamedRanks, PlacesInAPartOfTheJobAreNotTheRank) {
  std::vector<std::string> paths;
  for (int tensor : {0, 1}) {
    for (int data : {0, 1})
      paths.push_back(absl::StrCat("trace_tp_rank_", tensor, "_pp_rank_0_dp_rank_", data, ".json"));
  }
  EXPECT_EQ(RanksOfPaths(paths), (Ranks{-1, -1, -1, -1}));
  EXPECT_EQ(RanksOfPaths({"node0_local_rank_0", "node0_local_rank_1", "node1_local_rank_0", "node1_local_rank_1"}),
            (Ranks{-1, -1, -1, -1}));
  EXPECT_EQ(RanksOfPaths({"node0_gpu0", "node0_gpu1", "node1_gpu0", "node1_gpu1"}), (Ranks{-1, -1, -1, -1}));
}

TEST(NamedRanks, TheNumberThatDiffersInAllNames) {
  EXPECT_EQ(RanksOfPaths({"tp_rank_0_pp_rank_0.json", "tp_rank_1_pp_rank_0.json"}), (Ranks{0, 1}));
  EXPECT_EQ(RanksOfPaths({"node0_gpu0_worker4", "node0_gpu1_worker5", "node1_gpu0_worker6"}), (Ranks{4, 5, 6}));
  EXPECT_EQ(RanksOfPaths({"d/0/trace.json", "d/1/trace.json", "d/2/trace.json"}), (Ranks{0, 1, 2}));
  // Two numbers differ: the one that counts from 0 is the rank.
  EXPECT_EQ(RanksOfPaths({"w0_pid4711", "w1_pid4790", "w2_pid4712"}), (Ranks{0, 1, 2}));
  EXPECT_EQ(RanksOfPaths({"w4_pid4711", "w5_pid4790", "w6_pid4712"}), (Ranks{-1, -1, -1}));
}

TEST(NamedRanks, ProcessIdsAreNotRanks) {
  EXPECT_EQ(RanksOfPaths({"node1_4711.1700000000.pt.trace.json", "node1_4712.1700000001.pt.trace.json"}),
            (Ranks{-1, -1}));
  EXPECT_EQ(RanksOfPaths({"host_4711_20260101000000_ascend_pt", "host_4712_20260101000001_ascend_pt"}),
            (Ranks{-1, -1}));
  EXPECT_EQ(RanksOfPaths({"trace_0_1700000000.json", "trace_1_1700000003.json"}), (Ranks{0, 1}));
}

}  // namespace
}  // namespace taskd::readers
