#include "common/observed_clock.h"

#include <gtest/gtest.h>

namespace taskd {
namespace {

constexpr int64_t kS = 1'000'000'000;
constexpr int64_t kBoot = 5'000 * kS;  // what a steady clock says at first is nobody's

TEST(ObservedClockTest, TimeBetweenLooksCounts) {
  ObservedClock clock(kS);
  const int64_t begin = clock.Look(kBoot);
  for (int i = 1; i <= 60; ++i) EXPECT_EQ(clock.Look(kBoot + i * kS), begin + i * kS);
  EXPECT_EQ(clock.Look(kBoot + 62 * kS), begin + 62 * kS) << "late, as on a busy machine";
  EXPECT_EQ(clock.time_ns(), begin + 62 * kS);
}

TEST(ObservedClockTest, TimeInWhichNobodyLookedDoesNot) {
  ObservedClock clock(kS);
  const int64_t begin = clock.Look(kBoot);
  EXPECT_EQ(clock.Look(kBoot + 8 * kS), begin + 2 * kS);
  EXPECT_EQ(clock.Look(kBoot + 9 * kS), begin + 3 * kS);
}

TEST(ObservedClockTest, AnEarlierTimeIsNoLook) {
  ObservedClock clock(kS);
  const int64_t begin = clock.Look(kBoot);
  EXPECT_EQ(clock.Look(kBoot - kS), begin);
  EXPECT_EQ(clock.Look(kBoot + kS), begin + kS);
}

TEST(ObservedClockTest, TheNextLookIsNeverLaterThanTheInterval) {
  ObservedClock clock(kS);
  const int64_t begin = clock.Look(kBoot);
  EXPECT_EQ(clock.NextLook(begin + 60 * kS), kBoot + kS);
  EXPECT_EQ(clock.NextLook(begin + kS / 2), kBoot + kS / 2);
  EXPECT_EQ(clock.NextLook(begin - kS), kBoot);
}

}  // namespace
}  // namespace taskd
