#include "policy/price.h"

#include "gtest/gtest.h"

namespace taskd::policy {
namespace {

using ledger::At;
using ledger::Category;
using ledger::Incident;
using ledger::IncidentKind;

Incident RestartOf(IncidentKind kind, double restart_s, double hang_s = 0) {
  Incident incident;
  incident.kind = kind;
  At(incident.seconds, Category::kRestart) = restart_s;
  At(incident.seconds, Category::kHang) = hang_s;
  return incident;
}

TEST(PriceTest, IsTheMeanOfTheJobsRestarts) {
  ledger::Report report;
  report.incidents = {RestartOf(IncidentKind::kRankExit, 100), RestartOf(IncidentKind::kHang, 300, 5000),
                      RestartOf(IncidentKind::kStraggler, 9999), RestartOf(IncidentKind::kHang, 0, 5000)};
  EXPECT_EQ(PriceOfRestart(report, 1000, 1), (Price{200, 2}))
      << "without the wait for a hang's detection, without stragglers, without a hang that resolved by itself";
  const auto ordered = static_cast<size_t>(IncidentKind::kOrdered);
  report.older.counts[ordered] = 2;
  At(report.older.seconds[ordered], Category::kRedone) = 800;
  EXPECT_EQ(PriceOfRestart(report, 1000, 1), (Price{300, 4})) << "older ones count, too";
}

TEST(PriceTest, BeforeTheFirstItIsWhatTheStartTookAndTheUnsavedSteps) {
  ledger::Report report;
  report.slots = 8;
  At(report.closed, Category::kLaunch) = 80;
  At(report.closed, Category::kLinkUp) = 40;
  At(report.provisional, Category::kWarmUp) = 8;
  At(report.closed, Category::kProductive) = 1e6;
  EXPECT_EQ(PriceOfRestart(report, 100, 0.5), (Price{128 + 8 * 50 + 8 * 60, 0}));
  EXPECT_EQ(PriceOfRestart(report, -1, 0.5), (Price{128 + 8 * 60, 0})) << "nothing to be done twice";
}

}  // namespace
}  // namespace taskd::policy
