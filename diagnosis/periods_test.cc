#include "diagnosis/periods.h"

#include "gtest/gtest.h"

namespace taskd::diagnosis {
namespace {

// Steps 0 to 39 of 100 ns, from 40 to 49 of 130 ns; each ends at 1000 + step.
Periods SlowerFrom40() {
  Periods periods;
  for (int64_t step = 0; step < 50; ++step) {
    periods.Add(step, step < 40 ? 100 : 130, static_cast<uint64_t>(1000 + step));
  }
  return periods;
}

TEST(Periods, KnowsNothingOfNothing) {
  const Periods periods;
  EXPECT_EQ(periods.recent_ns(), 0);
  EXPECT_EQ(periods.LostSince(0).ns, Periods::kCannotTell);
  EXPECT_EQ(periods.MeanNs(0, 10), 0);
  EXPECT_EQ(periods.EndNs(0), 0u);
}

TEST(Periods, TellsWhatTheLastTenTake) {
  Periods periods;
  for (int64_t step = 0; step < 10; ++step) periods.Add(step, 100, 0);
  EXPECT_EQ(periods.recent_ns(), 100);
  // The lower median of ten is the fifth smallest: five of 130 are not enough, six are.
  for (int64_t step = 10; step < 15; ++step) periods.Add(step, 130, 0);
  EXPECT_EQ(periods.recent_ns(), 100);
  periods.Add(15, 130, 0);
  EXPECT_EQ(periods.recent_ns(), 130);
}

TEST(Periods, TellHowLongAgoAStepBegan) {
  Periods periods;
  EXPECT_EQ(periods.TimeSince(0), 0);
  // A pause of 400 ns in step 12.
  for (int64_t step = 10; step < 14; ++step) {
    periods.Add(step, step == 12 ? 500 : 100, static_cast<uint64_t>(1100 + 100 * (step - 10) + (step >= 12 ? 400 : 0)));
  }
  const struct {
    int64_t step;
    double since;
  } cases[] = {{13, 100}, {12, 600}, {11, 700}, {10, 800}, {3, 800}, {14, 0}};
  for (const auto& [step, since] : cases) EXPECT_EQ(periods.TimeSince(step), since) << step;
}

TEST(Periods, ComparesAfterWithBefore) {
  const struct {
    int64_t onset;
    double lost;
  } cases[] = {
      {40, 30},
      {45, 30},                    // the last 30 before it are 100 but for five
      {25, 0},                     // 15 of 100 and 10 of 130 since
      {4, Periods::kCannotTell},   // four before it are not enough
      {50, Periods::kCannotTell},  // nothing since
  };
  for (const auto& [onset, lost] : cases) EXPECT_EQ(SlowerFrom40().LostSince(onset).ns, lost) << onset;
}

TEST(Periods, ComparesWithStepsInWhichNobodyWasSlow) {
  Periods periods;
  for (int64_t step = 0; step < 80; ++step) {
    periods.Add(step, step < 20 ? 100 : 130, 0);
    periods.MarkSlow(step >= 20 && step < 60);
  }
  // From 60 on nobody is accused any more: 130 is normal from there on, and before that 100 was.
  EXPECT_EQ(periods.LostSince(60).ns, 30);
  EXPECT_EQ(periods.LostSince(70).ns, 30) << "ten of 130 and twenty of 100 before it";
}

TEST(Periods, TellsTheMeanOfSomeSteps) {
  const Periods periods = SlowerFrom40();
  EXPECT_EQ(periods.MeanNs(30, 39), 100);
  EXPECT_EQ(periods.MeanNs(40, 49), 130);
  EXPECT_EQ(periods.MeanNs(0, 49), 106);
  EXPECT_EQ(periods.MeanNs(-5, 4), 100) << "of those that are remembered";
  EXPECT_EQ(periods.MeanNs(60, 70), 0) << "there are none";
}

TEST(Periods, TellsWhenAStepEnded) {
  Periods periods;
  periods.Add(3, 100, 1003);
  periods.Add(7, 100, 1007);
  EXPECT_EQ(periods.EndNs(3), 1003u);
  EXPECT_EQ(periods.EndNs(4), 1007u) << "the next one that was judged";
  EXPECT_EQ(periods.EndNs(8), 0u);
}

TEST(Periods, ForgetsTheOldest) {
  Periods periods;
  for (int64_t step = 0; step <= static_cast<int64_t>(Periods::kHistory); ++step) {
    periods.Add(step, 100, static_cast<uint64_t>(1000 + step));
  }
  EXPECT_EQ(periods.EndNs(0), 1001u) << "step 0 is gone";
}

}  // namespace
}  // namespace taskd::diagnosis
