#include "view/rank_groups.h"

#include <numeric>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace taskd::view {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(RankGroupsTest, GivesWhatWasSetLast) {
  RankGroups groups;
  const GroupInfo tp = {"g1", "tp", CompressMembers({0, 1})}, dp = {"g2", "dp", CompressMembers({0, 2, 4})};
  groups.Set(0, 0, {tp, dp});
  groups.Set(0, 1, {tp});
  EXPECT_THAT(groups.Of(0), ElementsAre(tp, dp));
  EXPECT_THAT(groups.Of(1), ElementsAre(tp));
  EXPECT_THAT(groups.Of(2), IsEmpty());
  groups.Set(0, 0, {dp});
  EXPECT_THAT(groups.Of(0), ElementsAre(dp));
  EXPECT_THAT(groups.Of(1), ElementsAre(tp));
}

TEST(RankGroupsTest, OneNameMayBeSeveralGroups) {
  RankGroups groups;
  const GroupInfo one = {"pg", "tp", CompressMembers({0, 1})}, other = {"pg", "tp", CompressMembers({2, 3})};
  groups.Set(0, 0, {one});
  groups.Set(0, 2, {other});
  EXPECT_THAT(groups.Of(0), ElementsAre(one));
  EXPECT_THAT(groups.Of(2), ElementsAre(other));
}

TEST(RankGroupsTest, WhatNobodyHasIsGone) {
  RankGroups groups;
  for (int round = 0; round < 3; ++round) {
    for (int rank = 0; rank < 100; ++rank)
      groups.Set(rank / 8, rank, {{std::to_string(round), "dp", CompressMembers({0, 1, 2})}});
  }
  for (int rank = 0; rank < 100; ++rank) groups.Set(rank / 8, rank, {});
  EXPECT_EQ(groups.bytes(), 0u);
}

TEST(RankGroupsTest, SixteenThousandRanksShareTheirGroups) {
  RankGroups groups;
  std::vector<int> world(16384);
  std::iota(world.begin(), world.end(), 0);
  const std::vector<MemberRun> all = CompressMembers(world);
  for (int rank = 0; rank < 16384; ++rank) {
    const int first = rank / 8 * 8;
    groups.Set(rank / 8, rank,
               {{"world", "dp", all}, {std::to_string(first), "tp", CompressMembers({first, first + 1})}});
  }
  EXPECT_EQ(groups.Of(16383).size(), 2u);
  EXPECT_LT(groups.bytes(), size_t{2} << 20);
}

TEST(RankGroupsTest, IsBounded) {
  RankGroups groups(100'000);
  for (int rank = 0; rank < 1000; ++rank) {
    groups.Set(rank / 8, rank, {{std::to_string(rank) + std::string(1000, 'x'), "", {}}});
  }
  EXPECT_LE(groups.bytes(), 100'000u);
  EXPECT_EQ(groups.Of(0).size(), 1u);
  EXPECT_THAT(groups.Of(999), IsEmpty());
}

TEST(RankGroupsTest, OneNodeLeavesRoomForTheOthers) {
  RankGroups groups(100'000);
  for (int rank = 0; rank < 1000; ++rank) {
    groups.Set(7, rank, {{std::to_string(rank) + std::string(1000, 'x'), "", {}}});
  }
  EXPECT_LE(groups.bytes(), 25'000u);
  groups.Set(8, 2000, {{"mine", "", {}}});
  EXPECT_EQ(groups.Of(2000).size(), 1u);
}

}  // namespace
}  // namespace taskd::view
