#include "diagnosis/group_budget.h"

#include "gtest/gtest.h"

namespace taskd::diagnosis {
namespace {

constexpr GroupBudget::Limits kSmall = {.node = {100, 1000}, .all = {250, 2000}};

TEST(GroupBudget, ANodePaysForWhatItAloneHas) {
  GroupBudget budget(kSmall);
  GroupBudget::Charge one, other;
  EXPECT_TRUE(budget.Take(0, {60, 10}, &one));
  EXPECT_FALSE(budget.Take(0, {60, 10}, &other));
  EXPECT_FALSE(budget.Take(0, {1, 1000}, &other));
  EXPECT_TRUE(budget.Take(1, {60, 10}, &other)) << "the other node has its own share";
  budget.Share(0, &one);
  EXPECT_FALSE(budget.Take(0, {60, 10}, &other)) << "that was itself";
  budget.Share(1, &one);
  EXPECT_TRUE(budget.Take(0, {60, 10}, &other)) << "two have it now";
  EXPECT_EQ(budget.used().members, 180u);
}

TEST(GroupBudget, AllTogetherHaveALimit) {
  GroupBudget budget(kSmall);
  GroupBudget::Charge charge, last;
  EXPECT_TRUE(budget.Take(0, {100, 10}, &charge));
  EXPECT_TRUE(budget.Take(1, {100, 10}, &charge));
  EXPECT_FALSE(budget.Take(2, {51, 10}, &last));
  EXPECT_TRUE(budget.Take(2, {50, 10}, &last));
  EXPECT_FALSE(budget.Grow(&last, 1971));
  EXPECT_FALSE(budget.Grow(&last, 991)) << "more than the node's share";
  EXPECT_TRUE(budget.Grow(&last, 990));
  budget.Release(last);
  EXPECT_EQ(budget.used().members, 200u);
  EXPECT_EQ(budget.used().bytes, 20u);
  EXPECT_TRUE(budget.Take(2, {50, 1000}, &last));
}

TEST(GroupBudget, WhereTheNodeIsUnknownOnlyTheSumCounts) {
  GroupBudget budget(kSmall);
  GroupBudget::Charge charge;
  EXPECT_TRUE(budget.Take(-1, {200, 1500}, &charge));
  EXPECT_FALSE(budget.Take(-1, {51, 0}, &charge));
}

}  // namespace
}  // namespace taskd::diagnosis
