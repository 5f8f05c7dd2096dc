#include "diagnosis/members.h"

#include <algorithm>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace taskd::diagnosis {
namespace {

TEST(Members, AreThoseOfTheListThatTheyWereMadeOf) {
  for (const std::vector<int>& ranks : {std::vector<int>{},
                                        {7},
                                        {0, 1, 2, 3},
                                        {3, 11, 19},
                                        {9, 6, 3, 0},
                                        {0, 1, 8, 9, 16, 17},
                                        {5, 5},
                                        {4, 1, 65535}}) {
    const Members members(CompressMembers(ranks));
    EXPECT_EQ(members.Expand(), ranks);
    EXPECT_EQ(static_cast<size_t>(members.size()), ranks.size());
    EXPECT_EQ(members.empty(), ranks.empty());
    std::vector<int> visited;
    members.ForEach([&](int rank) { visited.push_back(rank); });
    EXPECT_EQ(visited, ranks);
    for (size_t i = 0; i < ranks.size(); ++i) EXPECT_EQ(members.At(static_cast<int>(i)), ranks[i]);
    for (int rank = -1; rank < 25; ++rank) {
      EXPECT_EQ(members.Contains(rank), std::count(ranks.begin(), ranks.end(), rank) > 0) << rank;
    }
    EXPECT_EQ(members.At(-1), -1);
    EXPECT_EQ(members.At(members.size()), -1);
  }
}

TEST(Members, AStrideBehindTheLastOneIsNoRankAndNoTrouble) {
  const std::vector<MemberRun> runs = {{65535, 2147483647, 1}, {3, -2147483648, 1}};
  ASSERT_TRUE(Members::IsUsable(runs));
  EXPECT_THAT(Members(runs).Expand(), ::testing::ElementsAre(65535, 3));
}

TEST(Members, AreNeighboursWhereEachFollowsTheOther) {
  EXPECT_TRUE(Members(CompressMembers({4, 5, 6})).AreNeighbours());
  EXPECT_TRUE(Members({{0, 1, 4}, {4, 7, 1}, {5, 1, 2}}).AreNeighbours());
  EXPECT_TRUE(Members(CompressMembers({4})).AreNeighbours());
  EXPECT_FALSE(Members(CompressMembers({4, 6})).AreNeighbours());
  EXPECT_FALSE(Members(CompressMembers({0, 1, 3})).AreNeighbours());
  EXPECT_FALSE(Members(CompressMembers({1, 0})).AreNeighbours());
}

}  // namespace
}  // namespace taskd::diagnosis
