#include "view/history.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace taskd::view {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr int64_t kAll = INT64_MAX;
constexpr uint64_t kMs = 1'000'000;

// A step of `period_ms`, of which communication covers a part. It ends `at_s` after an epoch of the test's.
StepFold FoldOf(int64_t step, uint64_t period_ms, uint64_t covered_ms = 0, uint32_t process = 1) {
  StepFold fold;
  fold.step = step;
  fold.process_id = process;
  fold.previous_end_ns = 1'000'000 * kMs;
  fold.end_ns = fold.previous_end_ns + period_ms * kMs;
  fold.covered_ns = covered_ms * kMs;
  return fold;
}

std::vector<int> Bytes(const History::Heatmap& map) {
  std::vector<int> bytes;
  for (char cell : map.cells) bytes.push_back(static_cast<unsigned char>(cell));
  return bytes;
}

std::vector<int64_t> StepsOf(const History::Heatmap& map) {
  std::vector<int64_t> steps;
  for (const History::StepSummary& step : map.steps) steps.push_back(step.id.step);
  return steps;
}

TEST(HistoryTest, ACellIsTheRatioToTheStepsMedian) {
  History history;
  for (int rank = 0; rank < 3; ++rank) history.Add(rank, FoldOf(7, 100, rank == 2 ? 0 : 50));
  const History::Heatmap own = history.Draw(History::Value::kOwnTime, 0, kAll, 100, 512);
  EXPECT_THAT(StepsOf(own), ElementsAre(7));
  EXPECT_FLOAT_EQ(own.steps[0].median_ms, 50);
  EXPECT_THAT(Bytes(own), ElementsAre(85, 85, 169));  // 1 and 2 of 3 in 254 parts
  const History::Heatmap period = history.Draw(History::Value::kPeriod, 0, kAll, 100, 512);
  EXPECT_THAT(Bytes(period), ElementsAre(85, 85, 85));
}

TEST(HistoryTest, WhatIsMissingIsAGapAndNotFast) {
  History history;
  history.Add(0, FoldOf(1, 100));
  history.Add(2, FoldOf(1, 100));
  StepFold first = FoldOf(1, 100);
  first.previous_end_ns = 0;  // nobody knows how long it took
  history.Add(3, first);
  EXPECT_THAT(Bytes(history.Draw(History::Value::kPeriod, 0, kAll, 100, 512)), ElementsAre(85, 255, 85, 255));
  EXPECT_THAT(Bytes(history.Draw(History::Value::kDataloader, 0, kAll, 100, 512)), ElementsAre(255, 255, 255, 255));
}

TEST(HistoryTest, ANodeWhoseStepsComeLateLeavesNoGap) {
  History history;
  const auto add = [&](int node, int64_t step) {
    for (int rank = 8 * node; rank < 8 * node + 8; ++rank) history.Add(rank, FoldOf(step, 100));
  };
  for (int node = 0; node < 2; ++node) add(node, 0);
  for (int node = 0; node < 2; ++node) {
    for (int64_t step = 1; step < 200; ++step) add(node, step);
  }
  const History::Heatmap map = history.Draw(History::Value::kPeriod, 0, kAll, 1000, 512);
  EXPECT_THAT(map.steps, SizeIs(200));
  EXPECT_THAT(Bytes(map), Each(85));
}

TEST(HistoryTest, OneSlowRankOf16384IsSeenInItsRow) {
  History history;
  for (int rank = 0; rank < 16384; ++rank) history.Add(rank, FoldOf(1, rank == 9000 ? 300 : 100));
  const History::Heatmap map = history.Draw(History::Value::kOwnTime, 0, kAll, 100, 512);
  EXPECT_EQ(map.ranks, 16384);
  EXPECT_EQ(map.ranks_per_row, 32);
  ASSERT_THAT(map.cells, SizeIs(512));
  for (int row = 0; row < 512; ++row) {
    EXPECT_EQ(Bytes(map)[static_cast<size_t>(row)], row == 9000 / 32 ? 254 : 85) << row;
  }
}

TEST(HistoryTest, RowsAreNeverMoreThanAsked) {
  History history;
  for (int rank = 0; rank < 10; ++rank) history.Add(rank, FoldOf(1, 100));
  const History::Heatmap map = history.Draw(History::Value::kOwnTime, 0, kAll, 100, 4);
  EXPECT_EQ(map.ranks_per_row, 3);
  EXPECT_THAT(map.cells, SizeIs(4));
}

TEST(HistoryTest, ARankThatReportsLateIsComparedWithTheMedianThatWas) {
  History history;
  for (int step = 1; step <= 40; ++step) history.Add(0, FoldOf(step, 100));
  history.Add(1, FoldOf(3, 200));
  const History::Heatmap map = history.Draw(History::Value::kPeriod, 3, 3, 100, 512);
  EXPECT_THAT(Bytes(map), ElementsAre(85, 169));
}

TEST(HistoryTest, AStepThatNobodyElseKnowsAnyMoreIsLeftOut) {
  History history;
  for (int step = 100; step <= 140; ++step) {
    for (int rank = 0; rank < 3; ++rank) history.Add(rank, FoldOf(step, 100));
  }
  history.Add(3, FoldOf(5, 200));
  EXPECT_THAT(history.Draw(History::Value::kPeriod, 0, 50, 100, 512).steps, IsEmpty());
}

TEST(HistoryTest, StepsThatAreDoneAgainAfterARestartStandRightOfTheFirst) {
  History history;
  for (int step = 1; step <= 5; ++step) {
    for (int rank = 0; rank < 2; ++rank) history.Add(rank, FoldOf(step, 100, 0, 1));
  }
  for (int step = 3; step <= 4; ++step) {
    for (int rank = 0; rank < 2; ++rank) history.Add(rank, FoldOf(step, 200, 0, 2));
  }
  const History::Heatmap map = history.Draw(History::Value::kPeriod, 0, kAll, 100, 512);
  EXPECT_THAT(StepsOf(map), ElementsAre(1, 2, 3, 4, 5, 3, 4));
  EXPECT_EQ(map.steps[4].id.run, 0u);
  EXPECT_EQ(map.steps[5].id.run, 1u);
  EXPECT_EQ(map.steps[5].ranks, 2);
  EXPECT_FLOAT_EQ(map.steps[5].median_ms, 200);
}

TEST(HistoryTest, ARankThatIsNewJoinsTheNewestRun) {
  History history;
  history.Add(0, FoldOf(5, 100, 0, 1));
  history.Add(0, FoldOf(1, 100, 0, 2));
  history.Add(1, FoldOf(1, 100, 0, 3));
  const History::Heatmap map = history.Draw(History::Value::kPeriod, 1, 1, 100, 512);
  ASSERT_THAT(map.steps, SizeIs(1));
  EXPECT_EQ(map.steps[0].ranks, 2);
}

TEST(HistoryTest, AStepNumberThatJumpsLeavesNoColumnsInBetween) {
  History history;
  history.Add(0, FoldOf(1, 100));
  history.Add(0, FoldOf(1'000'000'000'000, 100));
  EXPECT_THAT(StepsOf(history.Draw(History::Value::kPeriod, 0, kAll, 100, 512)), ElementsAre(1, 1'000'000'000'000));
}

TEST(HistoryTest, AClockThatWasSetBackIsAGap) {
  History history;
  StepFold fold = FoldOf(1, 100);
  fold.end_ns = fold.previous_end_ns - 5 * kMs;
  history.Add(0, fold);
  EXPECT_THAT(Bytes(history.Draw(History::Value::kPeriod, 0, kAll, 100, 512)), ElementsAre(255));
  fold = FoldOf(2, 100, 400);  // operations cannot cover more than there is
  history.Add(0, fold);
  EXPECT_THAT(Bytes(history.Draw(History::Value::kOwnTime, 2, 2, 100, 512)), ElementsAre(0));
}

TEST(HistoryTest, KeepsTheNewestSteps) {
  History history({.steps = 20, .bytes = History::kMaxBytes});
  for (int step = 0; step < 100; ++step) history.Add(0, FoldOf(step, 100));
  const History::Heatmap map = history.Draw(History::Value::kPeriod, 0, kAll, 1000, 512);
  EXPECT_THAT(map.steps, SizeIs(20));
  EXPECT_EQ(map.steps.front().id.step, 80);
  EXPECT_THAT(StepsOf(history.Draw(History::Value::kPeriod, 0, kAll, 3, 512)), ElementsAre(97, 98, 99));
}

TEST(HistoryTest, ARankWhoseNumbersJumpCostsTheOthersNoStep) {
  History history({.steps = 60, .bytes = History::kMaxBytes});
  for (int step = 0; step < 30; ++step) {
    for (int rank = 0; rank < 8; ++rank) history.Add(rank, FoldOf(step, 100));
  }
  for (int jump = 1; jump < 1000; ++jump) history.Add(8, FoldOf(jump * 1'000'000, 100));
  EXPECT_THAT(history.Draw(History::Value::kPeriod, 0, 29, 1000, 512).steps, SizeIs(30));
}

TEST(HistoryTest, MemoryIsBounded) {
  History history({.steps = History::kMaxSteps, .bytes = 4 << 20});
  for (int step = 0; step < 300; ++step) {
    for (int rank = 0; rank < 4096; ++rank) history.Add(rank, FoldOf(step, 100, 10));
    ASSERT_LE(history.bytes(), size_t{4} << 20);
  }
  // Two values of the four were never seen, and take nothing.
  EXPECT_GT(history.Draw(History::Value::kOwnTime, 0, kAll, 10000, 1).steps.size(), 150u);
}

TEST(HistoryTest, RanksThatCannotBeAreIgnored) {
  History history;
  history.Add(-1, FoldOf(1, 100));
  history.Add(History::kMaxRanks, FoldOf(1, 100));
  history.Add(0, FoldOf(-1, 100));
  EXPECT_FALSE(history.newest().has_value());
  history.Add(History::kMaxRanks - 1, FoldOf(1, 100));
  EXPECT_EQ(history.Draw(History::Value::kPeriod, 0, kAll, 10, 512).ranks, History::kMaxRanks);
}

TEST(HistoryTest, PhasesMakeUpThePeriod) {
  History history;
  StepFold fold = FoldOf(1, 100, 40);
  fold.dataloaders = 1;
  fold.dataloader_ns = 20 * kMs;
  fold.dataloader_own_ns = 15 * kMs;
  fold.checkpoints = 1;
  fold.checkpoint_ns = fold.checkpoint_own_ns = 5 * kMs;
  history.Add(0, fold);
  const History::StepSummary step = history.Draw(History::Value::kPeriod, 0, kAll, 10, 512).steps.at(0);
  EXPECT_FLOAT_EQ(step.dataloader_ms, 15);
  EXPECT_FLOAT_EQ(step.compute_ms, 40);
  EXPECT_FLOAT_EQ(step.communication_ms, 40);
  EXPECT_FLOAT_EQ(step.checkpoint_ms, 5);
}

TEST(HistoryTest, ARanksLastStepsHaveTheirNumbers) {
  History history;
  for (int step = 1; step <= 30; ++step) history.Add(3, FoldOf(step, static_cast<uint64_t>(step), 1));
  const std::vector<History::RankStep> steps = history.RecentSteps(3);
  ASSERT_THAT(steps, SizeIs(History::kRecentSteps));
  EXPECT_EQ(steps.back().id.step, 30);
  EXPECT_FLOAT_EQ(steps.back().period_ms, 30);
  EXPECT_FLOAT_EQ(steps.back().communication_ms, 1);
  EXPECT_LT(steps.back().dataloader_ms, 0);
  EXPECT_THAT(history.RecentSteps(2), IsEmpty());
  EXPECT_THAT(history.RecentSteps(99), IsEmpty());
}

TEST(HistoryTest, TotalsCountEachRankOnce) {
  History history;
  for (int rank = 0; rank < 2; ++rank) {
    for (int64_t step = 1; step <= 40; ++step) history.Add(rank, FoldOf(step, rank == 0 ? 100 : 300, 60));
  }
  const History::Totals totals = history.totals();
  EXPECT_NEAR(totals.duration_s, 16, 1e-6);
  EXPECT_THAT(totals.durations, ElementsAre(0, 0, 0, 40, 0, 40, 0, 0, 0, 0, 0, 0, 0));  // up to 0.1 s, up to 0.5 s
  EXPECT_NEAR(totals.phases_s[1], 40 * 0.28, 1e-6);
  EXPECT_NEAR(totals.phases_s[2], 80 * 0.06, 1e-6);
  EXPECT_NEAR(totals.productive_s, 4, 1e-6);  // each step once, as its first rank saw it
}

TEST(HistoryTest, WhatIsDoneAgainAfterARestartIsNotProductive) {
  History history;
  for (int rank = 0; rank < 2; ++rank) {
    for (int64_t step = 1; step <= 20; ++step) history.Add(rank, FoldOf(step, 100));
  }
  history.Add(1, FoldOf(1'000'000, 100));  // a number that jumps: left out
  for (int rank = 0; rank < 2; ++rank) {
    for (int64_t step = 11; step <= 25; ++step) history.Add(rank, FoldOf(step, 100, 0, 2));
  }
  EXPECT_NEAR(history.totals().productive_s, 2.5, 1e-6);
  EXPECT_NEAR(history.totals().duration_s, 7.0, 1e-6);
}

TEST(HistoryTest, TheSlowestRankIsThatOfAWholeStep) {
  History history;
  EXPECT_EQ(history.slowest_ratio(), std::nullopt);
  for (int rank = 0; rank < 3; ++rank) history.Add(rank, FoldOf(7, 100, rank == 2 ? 0 : 50));
  history.Add(0, FoldOf(8, 100));  // the others are not there yet
  ASSERT_TRUE(history.slowest_ratio().has_value());
  EXPECT_FLOAT_EQ(static_cast<float>(*history.slowest_ratio()), 2);
}

constexpr int64_t kOdd = int64_t{1} << 62;

// Eight ranks; `odd`: what another one says after each of their steps.
template <typename Odd>
History::Heatmap DrawWith(History& history, int64_t first, int64_t last, Odd odd, uint64_t step_ns = 1'000'000'000) {
  for (int64_t step = first; step <= last; ++step) {
    const uint64_t now_ns = static_cast<uint64_t>(step) * step_ns + 1;
    for (int rank = 0; rank < 8; ++rank) history.Add(rank, FoldOf(step, 100), now_ns);
    odd(step, now_ns);
  }
  return history.Draw(History::Value::kPeriod, 0, kAll, 100, 512);
}

void ExpectOnly(const History::Heatmap& map, const History& history, int64_t last) {
  ASSERT_FALSE(map.steps.empty());
  EXPECT_EQ(history.newest()->step, last);
  EXPECT_EQ(history.newest_at_ns(), static_cast<uint64_t>(last) * 1'000'000'000 + 1);
  for (size_t i = 0; i < 10; ++i) {
    const History::StepSummary& step = map.steps[map.steps.size() - 1 - i];
    EXPECT_EQ(step.id.step, last - static_cast<int64_t>(i));
    EXPECT_GE(step.ranks, 8);
  }
  EXPECT_NEAR(history.totals().productive_s, 0.1 * static_cast<double>(last + 1), 1e-4);
}

TEST(HistoryTest, OneOddStepIsNoColumnAndHidesNobody) {
  for (int64_t odd : {kOdd, INT64_MAX, StepFold::kMaxStep, int64_t{-1}, INT64_MIN}) {
    History history;
    const History::Heatmap map = DrawWith(history, 0, 60, [&](int64_t step, uint64_t now_ns) {
      if (step == 20) history.Add(8, FoldOf(odd, 900'000), now_ns);
    });
    ExpectOnly(map, history, 60);
  }
}

TEST(HistoryTest, ARankWithItsOwnNumbersHidesNobody) {
  History history;
  const History::Heatmap map = DrawWith(history, 0, 60, [&](int64_t step, uint64_t now_ns) {
    for (int i = 0; i < 20; ++i) history.Add(8, FoldOf(kOdd + step * 20 + i, 900'000), now_ns);
  });
  ExpectOnly(map, history, 60);
}

TEST(HistoryTest, AnOddFirstStepHidesNobody) {
  History history;
  for (int64_t i = 0; i < 30; ++i) history.Add(8, FoldOf(kOdd + i, 100), 0);
  const History::Heatmap map =
      DrawWith(history, 0, 60, [&](int64_t step, uint64_t now_ns) { history.Add(8, FoldOf(step, 100), now_ns); });
  EXPECT_EQ(map.steps.back().id.step, 60);
  EXPECT_EQ(map.steps.back().ranks, 9) << "it is used again";
  EXPECT_EQ(history.newest()->step, 60);
  EXPECT_THAT(map.steps, SizeIs(61));
}

TEST(HistoryTest, ARankThatIsStartedAgainAloneBeginsNoRun) {
  History history;
  const History::Heatmap map = DrawWith(history, 0, 60, [&](int64_t step, uint64_t now_ns) {
    history.Add(8, FoldOf(step % 7, 100, 0, static_cast<uint32_t>(1000 + step)), now_ns);
  });
  EXPECT_EQ(history.newest()->step, 60);
  EXPECT_EQ(history.newest()->run, 0u);
  history.Add(9, FoldOf(61, 100), 61'000'000'001);
  EXPECT_EQ(history.RecentSteps(9).back().id.run, 0u);
}

TEST(HistoryTest, OneStepAgainAndAgainCountsOnce) {
  History history({.steps = 60, .bytes = History::kMaxBytes});
  const History::Heatmap map = DrawWith(history, 0, 50, [&](int64_t step, uint64_t now_ns) {
    for (int i = 0; i < 100; ++i) history.Add(8, FoldOf(step, 100), now_ns);
  });
  EXPECT_THAT(map.steps, SizeIs(51));
  EXPECT_EQ(map.steps.back().ranks, 9);
  EXPECT_NEAR(history.totals().duration_s, 51 * 9 * 0.1, 1e-4);
}

TEST(HistoryTest, WhatIsProductiveNoSingleRankSays) {
  History history;
  for (int64_t step = 0; step <= 40; ++step) {
    if (step > 0) history.Add(8, FoldOf(step, 900'000), static_cast<uint64_t>(step) * 1'000'000'000 + 1);
    for (int rank = 0; rank < 8; ++rank) {
      history.Add(rank, FoldOf(step, 100), static_cast<uint64_t>(step) * 1'000'000'000 + 1);
    }
  }
  EXPECT_LE(history.totals().productive_s, 4.2);
}

TEST(HistoryTest, ValuesHaveNames) {
  for (const char* name : {"own_time", "period", "dataloader", "communication"}) {
    ASSERT_TRUE(HistoryValueFromName(name).has_value());
    EXPECT_EQ(Name(*HistoryValueFromName(name)), name);
  }
  EXPECT_FALSE(HistoryValueFromName("").has_value());
}

}  // namespace
}  // namespace taskd::view
