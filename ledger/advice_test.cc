#include "ledger/advice.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace taskd::ledger {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

// 100 h of 10 slots, all productive except for what is given.
Report JobOf(std::initializer_list<std::pair<Category, double>> lost_h, uint64_t failures = 0) {
  Report report;
  report.slots = 10;
  report.until_ns = int64_t{100} * 3600 * 1'000'000'000;
  report.rank_s = 100 * 3600 * 10;
  At(report.closed, Category::kProductive) = report.rank_s;
  for (const auto& [category, hours] : lost_h) {
    At(report.closed, category) += hours * 3600 * 10;
    At(report.closed, Category::kProductive) -= hours * 3600 * 10;
  }
  report.older.counts[static_cast<size_t>(IncidentKind::kNodeLost)] = failures;
  return report;
}

TEST(AdviceTest, TheBoundsAreThoseOfAPoissonProcess) {
  // 3 failures in 1 h mean 0.818 to 7.754 failures an hour (exact bounds of 90 %), so the interval varies by the root.
  const CheckpointInterval interval = YoungDaly(20, 3600, 3);
  EXPECT_NEAR(interval.best_s, std::sqrt(2 * 20 * 1200.0), 1e-9);
  EXPECT_NEAR(interval.low_s, std::sqrt(2 * 20 * 3600 / 7.754), 0.01 * interval.low_s);
  EXPECT_NEAR(interval.high_s, std::sqrt(2 * 20 * 3600 / 0.818), 0.01 * interval.high_s);
  const CheckpointInterval many = YoungDaly(20, 3600.0 * 1000, 3000);
  EXPECT_NEAR(many.low_s / many.best_s, 1, 0.02);
  EXPECT_NEAR(many.high_s / many.best_s, 1, 0.02);
}

TEST(AdviceTest, CheckpointsThatAreTooRare) {
  Report report = JobOf({}, 10);
  report.measured = {.starts = 11, .checkpoints = 20, .checkpoint_s = 20 * 60};  // a save every 5 h, of a minute
  const std::vector<Advice> advice = AdviceOf(report);
  ASSERT_EQ(advice.size(), 1u);
  EXPECT_EQ(advice[0].kind, "checkpoint_interval");
  // sqrt(2 * 60 s * 10 h) is 34.6 min; d/T + T/(2m) is 25.3 % at 5 h and 5.8 % there.
  EXPECT_THAT(advice[0].text, HasSubstr("every 35 min ("));
  EXPECT_THAT(advice[0].text,
              HasSubstr("not every 5.0 h: a save takes 60 s, and 10 failures came 10.0 h of training apart"));
  EXPECT_NEAR(advice[0].saves_rank_s, (0.25333 - 0.05774) * report.rank_s, 0.001 * report.rank_s);
}

TEST(AdviceTest, CheckpointsThatAreAsGoodAsAnyoneKnows) {
  Report report = JobOf({}, 10);
  report.measured = {.starts = 11, .checkpoints = 170, .checkpoint_s = 170 * 60};
  EXPECT_THAT(AdviceOf(report), IsEmpty());
}

TEST(AdviceTest, FewFailuresProveNothing) {
  Report report = JobOf({}, 2);
  report.measured = {.starts = 3, .checkpoints = 4, .checkpoint_s = 4 * 60};
  EXPECT_THAT(AdviceOf(report), IsEmpty());
  report = JobOf({}, 10);  // it has never saved
  report.measured.starts = 11;
  EXPECT_THAT(AdviceOf(report), IsEmpty());
}

TEST(AdviceTest, OrderedRestartsAreNoFailures) {
  Report report = JobOf({});
  report.measured = {.starts = 11, .checkpoints = 20, .checkpoint_s = 20 * 60};
  report.older.counts[static_cast<size_t>(IncidentKind::kOrdered)] = 10;
  for (uint64_t number = 1; number <= 3; ++number) {
    report.incidents.push_back({number, 0, IncidentKind::kHang, {}, {}, "", {}});
  }
  EXPECT_THAT(AdviceOf(report), IsEmpty());
  for (Incident& hang : report.incidents) At(hang.seconds, Category::kRestart) = 1;  // these hangs caused a restart
  EXPECT_EQ(AdviceOf(report).size(), 1u);
}

TEST(AdviceTest, SlowStarts) {
  Report report = JobOf({{Category::kLinkUp, 3}, {Category::kLaunch, 2}});
  report.measured.starts = 10;
  const std::vector<Advice> advice = AdviceOf(report);
  ASSERT_EQ(advice.size(), 2u);
  EXPECT_EQ(advice[0].kind, "link_up");
  EXPECT_THAT(advice[0].text, HasSubstr("took 18 min a start, in 10 starts"));
  EXPECT_NEAR(advice[0].saves_rank_s, (3 * 3600 - 10 * 10) * 10, 1e-6);
  EXPECT_EQ(advice[1].kind, "launch");
  EXPECT_NEAR(advice[1].saves_rank_s, (2 * 3600 - 10 * 10) * 10, 1e-6);
  report.measured.starts = 2000;  // 5.4 s each
  EXPECT_THAT(AdviceOf(report), IsEmpty());
}

TEST(AdviceTest, ADataLoaderThatAllWaitFor) {
  const std::vector<Advice> advice = AdviceOf(JobOf({{Category::kData, 8.2}}));
  ASSERT_EQ(advice.size(), 1u);
  EXPECT_EQ(advice[0].kind, "data");
  EXPECT_THAT(advice[0].text, HasSubstr("for 8.2 % of the time"));
  EXPECT_NEAR(advice[0].saves_rank_s, 8.2 * 3600 * 10, 1e-6);
  EXPECT_THAT(AdviceOf(JobOf({{Category::kData, 0.5}})), IsEmpty());
  EXPECT_THAT(advice[0].text, HasSubstr("time: its workers, or where the data lies"));
  Report one = JobOf({{Category::kData, 8.2}});
  one.incidents.push_back({3, 0, IncidentKind::kStraggler, {1}, {}, "rank 1 waits for its data loader", {}});
  At(one.incidents.back().seconds, Category::kData) = 8 * 3600 * 10;
  EXPECT_THAT(AdviceOf(one)[0].text, HasSubstr("time, most of it because of #3: rank 1 waits for its data loader"));
}

TEST(AdviceTest, TheStragglerThatCostsMost) {
  Report report = JobOf({{Category::kStraggler, 6}});
  for (uint64_t number = 1; number <= 3; ++number) {
    report.incidents.push_back(
        {number, 0, IncidentKind::kStraggler, {}, {}, absl::StrCat("rank ", number, " is slow"), {}});
    At(report.incidents.back().seconds, Category::kStraggler) = (number == 2 ? 4 : 1) * 3600 * 10;
  }
  const std::vector<Advice> advice = AdviceOf(report);
  ASSERT_EQ(advice.size(), 1u);
  EXPECT_THAT(advice[0].text, HasSubstr("#2: rank 2 is slow"));
  EXPECT_NEAR(advice[0].saves_rank_s, 4 * 3600 * 10, 1e-6);
}

TEST(AdviceTest, NothingOfNothing) { EXPECT_THAT(AdviceOf(Report()), IsEmpty()); }

}  // namespace
}  // namespace taskd::ledger
