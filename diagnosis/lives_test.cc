#include "diagnosis/lives.h"

#include "gtest/gtest.h"

namespace taskd::diagnosis {
namespace {

TEST(Lives, CountsOnWhereTheJobGoesBackToACheckpoint) {
  Lives lives;
  EXPECT_EQ(lives.Add(100, true), 0);
  EXPECT_EQ(lives.Add(101, false), 1);
  EXPECT_EQ(lives.Add(105, false), 5) << "as far apart as the steps";
  EXPECT_EQ(lives.Add(60, true), 6);
  EXPECT_EQ(lives.Add(61, false), 7);
  EXPECT_EQ(lives.first(), 6);
  EXPECT_EQ(lives.FirstOf(5), 0);
  EXPECT_EQ(lives.FirstOf(7), 6);
  EXPECT_EQ(lives.PlaceOf(70), 16);
  EXPECT_EQ(lives.StepAt(0), 100);
  EXPECT_EQ(lives.StepAt(5), 105);
  EXPECT_EQ(lives.StepAt(6), 60);
  EXPECT_EQ(lives.StepAt(16), 70);
}

TEST(Lives, AStepThatDoesNotComeAfterTheLastBeginsOne) {
  Lives lives;
  lives.Add(7, true);
  lives.Add(8, false);
  EXPECT_EQ(lives.Add(8, false), 2);
  EXPECT_EQ(lives.first(), 2);
  EXPECT_EQ(lives.Add(3, false), 3);
  EXPECT_EQ(lives.StepAt(3), 3);
}

TEST(Lives, RemembersTheNewestOnly) {
  Lives lives;
  for (size_t i = 0; i < 2 * Lives::kMostLives; ++i) lives.Add(5, true);
  EXPECT_EQ(lives.StepAt(lives.first()), 5);
  EXPECT_EQ(lives.StepAt(lives.first() + 4), 9);
}

}  // namespace
}  // namespace taskd::diagnosis
