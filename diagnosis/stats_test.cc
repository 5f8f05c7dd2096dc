#include "diagnosis/stats.h"

#include <algorithm>
#include <cmath>
#include <random>

#include "gtest/gtest.h"

namespace taskd::diagnosis {
namespace {

TEST(MedianOfOthers, IsThatOfTheOthers) {
  std::mt19937 random(3);
  for (size_t size = 1; size < 12; ++size) {
    std::vector<double> values(size);
    for (double& value : values) value = static_cast<double>(random() % 7);  // equal ones among them
    const std::vector<double> all = values;
    const MedianOfOthers median(values);
    EXPECT_EQ(median.of_all(), LowerMedian(values));
    for (size_t i = 0; i < size; ++i) {
      std::vector<double> others = all;
      if (size > 1) others.erase(others.begin() + static_cast<std::ptrdiff_t>(i));
      std::sort(others.begin(), others.end());
      const double expected = (others[(others.size() - 1) / 2] + others[others.size() / 2]) / 2;
      EXPECT_EQ(median.Without(all[i]), expected) << i << " of " << size;
    }
  }
}

TEST(LowerMedian, IsAHealthyPeerWhileHalfAreSlow) {
  std::vector<double> values = {9, 5};
  EXPECT_EQ(LowerMedian(values), 5);
  values = {9, 1, 8, 2};
  EXPECT_EQ(LowerMedian(values), 2);
  values = {3, 1, 2};
  EXPECT_EQ(LowerMedian(values), 2);
  values = {};
  EXPECT_EQ(LowerMedian(values), 0);
}

TEST(CusumThreshold, AgreesWithSiegmund) {
  // Worked out by hand from ARL = (exp(2kb) - 2kb - 1) / 2k^2.
  EXPECT_NEAR(CusumThreshold(1e7, 1), 7.2, 0.1);
  EXPECT_NEAR(CusumThreshold(1.5e10, 1), 10.9, 0.1);
  EXPECT_NEAR(CusumThreshold(1e9, 0.5), 18.9, 0.2);
}

TEST(LogBinomialTail, AgreesWithSmallCases) {
  EXPECT_NEAR(std::exp(LogBinomialTail(3, 2, 0.5)), 0.5, 1e-12);
  EXPECT_NEAR(std::exp(LogBinomialTail(10, 10, 0.1)), 1e-10, 1e-20);
  EXPECT_EQ(LogBinomialTail(10, 0, 0.1), 0);
  EXPECT_TRUE(std::isinf(LogBinomialTail(10, 11, 0.1)));
}

TEST(NoisePool, IsNotMovedByALevelShift) {
  NoisePool pool;
  EXPECT_FALSE(pool.ready());
  for (int i = 0; i < 200; ++i) pool.Add(0, i % 2 == 0 ? 0.01 : 0.02);
  pool.Add(0, 5);
  pool.Update();
  EXPECT_NEAR(pool.sigma(), 1.4826 * 0.015 / std::sqrt(2.0), 0.006);
}

TEST(NoisePool, SeesTailsThatTheMedianDoesNot) {
  NoisePool pool;
  for (int i = 0; i < 200; ++i) pool.Add(i % 4, i % 5 == 0 ? 0.2 : 0.003);
  pool.Update();
  EXPECT_NEAR(pool.sigma(), 0.2 / 1.645 / std::sqrt(2.0), 1e-9);
}

TEST(NoisePool, LeavesARankOut) {
  NoisePool pool;
  for (int i = 0; i < 200; ++i) pool.Add(i % 4, i % 4 == 2 ? 0.3 : 0.01);
  pool.Update();
  EXPECT_GT(pool.sigma(), 0.1);
  EXPECT_NEAR(pool.SigmaWithout(2), 1.4826 * 0.01 / std::sqrt(2.0), 1e-9);
}

TEST(CusumClip, KeepsTheRateOfFalseAlarms) {
  EXPECT_EQ(CusumClip({0.001, 0.001, 0.001}), 4);
  // 0.1 * exp(2 (clip - 1)) <= 0.8: clip <= 2.04
  EXPECT_NEAR(CusumClip({0.1, 0.1, 0.1}), 2.0, 0.05);
  // Those that are only little outside count for less: 0.03 * exp(3) = 0.6.
  EXPECT_EQ(CusumClip({0.03, 0, 0}), 4);
  EXPECT_NEAR(CusumClip({0.9, 0.9, 0.9}), 1.3, 1e-9);
  EXPECT_EQ(StepsBeyondChance(0.001), 3);
  EXPECT_EQ(StepsBeyondChance(0.05), 7);
}

TEST(BlockNoise, CountsWhatGoesTogetherOnce) {
  // Ten values in a row are alike: means of ten are as far apart as the values. Averages over 100 such streams.
  std::minstd_rand random(7);
  std::normal_distribution<double> normal(0, 0.2);
  double together_sigma = 0;
  double apart_sigma = 0;
  for (int stream = 0; stream < 100; ++stream) {
    BlockNoise together(10);
    BlockNoise apart(10);
    for (int block = 0; block < 40; ++block) {
      const double value = normal(random);
      for (int i = 0; i < 10; ++i) {
        together.Add(value);
        apart.Add(normal(random));
      }
    }
    together_sigma += together.sigma() / 100;
    apart_sigma += apart.sigma() / 100;
  }
  EXPECT_NEAR(together_sigma, 0.2, 0.02);
  EXPECT_NEAR(apart_sigma, 0.2 / std::sqrt(10.0), 0.006);
}

TEST(BlockNoise, ALevelThatChangesIsNoNoise) {
  BlockNoise noise(10);
  for (int i = 0; i < 60; ++i) noise.Add(i % 20 < 10 ? 0.01 : -0.01);
  ASSERT_TRUE(noise.ready());
  const double before = noise.sigma();
  noise.Restart();
  for (int i = 0; i < 20; ++i) noise.Add(5 + (i < 10 ? 0.01 : -0.01));
  EXPECT_NEAR(noise.sigma(), before, 1e-9);
}

}  // namespace
}  // namespace taskd::diagnosis
