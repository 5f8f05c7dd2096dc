#include "diagnosis/measured.h"

#include <algorithm>

#include "gtest/gtest.h"

namespace taskd::diagnosis {
namespace {

TEST(Measured, IsThePlainMeanOfTheStepsThatItNames) {
  Measured measured;
  measured.Begin({10, 13, 4, 20, 100});
  double excess = 4 * 20, reference = 4 * 100;
  int steps = 4;
  for (int64_t step = 14; step < 14 + 50; ++step) {
    measured.Add(step, static_cast<double>(step), 90, false);
    excess += static_cast<double>(step);
    reference += 90;
    ++steps;
  }
  const Measured::Means means = measured.means();
  EXPECT_EQ(means.first_step, 10);
  EXPECT_EQ(means.last_step, 63);
  EXPECT_EQ(means.steps, steps);
  EXPECT_NEAR(means.excess, excess / steps, 1e-9);
  EXPECT_NEAR(means.reference, reference / steps, 1e-9);
  EXPECT_NEAR(means.value(), (excess + reference) / steps, 1e-9);
}

TEST(Measured, ForgetsWhatIsMoreThanTwoBlocksAgo) {
  Measured measured;
  for (int64_t step = 0; step < 1000; ++step) {
    measured.Add(step, step < 500 ? 1 : 3, 10, false);
    const Measured::Means means = measured.means();
    EXPECT_EQ(means.last_step, step);
    EXPECT_EQ(means.last_step - means.first_step + 1, means.steps);
    EXPECT_GE(means.steps, std::min<int64_t>(step + 1, Measured::kBlock));
    EXPECT_LT(means.steps, 2 * Measured::kBlock);
  }
  EXPECT_EQ(measured.means().excess, 3);
}

TEST(Measured, CountsStepsThatMayBeAfterTheEndOnceTheyAreNot) {
  Measured measured;
  for (int64_t step = 0; step < 10; ++step) measured.Add(step, 30, 10, false);
  for (int64_t step = 10; step < 15; ++step) measured.Add(step, 0, 10, true);
  EXPECT_EQ(measured.means().last_step, 9);
  EXPECT_EQ(measured.means().excess, 30);
  measured.Add(15, 30, 10, false);
  EXPECT_EQ(measured.means().last_step, 15);
  EXPECT_NEAR(measured.means().excess, 30 * 11.0 / 16, 1e-9);
}

TEST(Measured, BeginsAnew) {
  Measured measured;
  EXPECT_EQ(measured.means().steps, 0);
  for (int64_t step = 0; step < 100; ++step) measured.Add(step, 1, 1, step == 99);
  measured.Begin({200, 201, 2, 5, 6});
  measured.Add(202, 5, 6, false);
  EXPECT_EQ(measured.means().first_step, 200);
  EXPECT_EQ(measured.means().steps, 3);
  EXPECT_EQ(measured.means().excess, 5);
}

}  // namespace
}  // namespace taskd::diagnosis
