#include "common/rank_list.h"

#include "gtest/gtest.h"

namespace taskd {
namespace {

TEST(RankListTest, Runs) {
  EXPECT_EQ(RankList({}), "");
  EXPECT_EQ(RankList({7}), "7");
  EXPECT_EQ(RankList({0, 1, 2, 5, 8, 9}), "0-2, 5, 8-9");
  EXPECT_EQ(RankList({0, 2, 3}, ","), "0,2-3");
}

}  // namespace
}  // namespace taskd
