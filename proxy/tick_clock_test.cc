#include "proxy/tick_clock.h"

#include "gtest/gtest.h"

namespace taskd::proxy {
namespace {

TEST(TickLine, GoesThroughBothAnchorsAndBeyond) {
  TickLine line({1000, 5000}, {3000, 6000});
  EXPECT_EQ(line.MonotonicNs(1000), 5000u);
  EXPECT_EQ(line.MonotonicNs(2000), 5500u);
  EXPECT_EQ(line.MonotonicNs(3000), 6000u);
  EXPECT_EQ(line.MonotonicNs(5000), 7000u);
  EXPECT_EQ(line.MonotonicNs(0), 4500u);
}

TEST(TickLine, BrokenAnchorsGiveAConstant) {
  EXPECT_EQ(TickLine({3000, 5000}, {1000, 6000}).MonotonicNs(123), 6000u);
  EXPECT_EQ(TickLine({UINT64_MAX, UINT64_MAX}, {1000, 6000}).MonotonicNs(1), 6000u);
}

// A day between the anchors: still exact to a microsecond.
TEST(TickLine, HoldsOverADay) {
  constexpr uint64_t kDayNs = 86'400'000'000'000;
  TickLine line({0, 0}, {kDayNs * 23 / 10, kDayNs});
  EXPECT_NEAR(static_cast<double>(line.MonotonicNs(kDayNs * 23 / 20)), static_cast<double>(kDayNs) / 2, 1000.0);
}

TEST(ReadAnchor, LiesBetweenTwoReadingsOfTheClock) {
  uint64_t before_ns = ReadMonotonicNs();
  uint64_t before = ReadCounter();
  TickAnchor anchor = ReadAnchor();
  uint64_t after = ReadCounter();
  EXPECT_GE(anchor.monotonic_ns, before_ns);
  EXPECT_LE(anchor.monotonic_ns, ReadMonotonicNs());
  EXPECT_GE(anchor.ticks, before);
  EXPECT_LE(anchor.ticks, after);
}

}  // namespace
}  // namespace taskd::proxy
