#include "view/goodput_section.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace taskd::view {
namespace {

using ledger::Category;
using ::testing::HasSubstr;
using ::testing::Not;

ledger::Incident Exit(uint64_t number, double redone_s, std::string text) {
  ledger::Incident incident;
  incident.number = number;
  incident.time_ns = 1'700'000'000'000'000'000;
  incident.ranks = {3};
  incident.nodes = {0, 1};
  incident.text = std::move(text);
  At(incident.seconds, Category::kRedone) = redone_s;
  At(incident.seconds, Category::kRestart) = 1.25;
  return incident;
}

ledger::Report Job() {
  ledger::Report report;
  report.slots = 4;
  report.rank_s = 400;
  At(report.closed, Category::kProductive) = 300;
  At(report.closed, Category::kRedone) = 60;
  At(report.provisional, Category::kRedone) = 40;
  return report;
}

TEST(GoodputSectionTest, SaysAndShowsWhereTheTimeWent) {
  ledger::Report report = Job();
  report.incidents = {Exit(1, 20, ""), Exit(2, 180, "rank 3 was killed")};
  report.advice = {{"checkpoint_interval", "save every 12 min", 7200}};
  const std::string html = GoodputSection(report);
  EXPECT_THAT(html, HasSubstr("75.0 % of 400 rank-seconds were productive"));
  EXPECT_THAT(html, HasSubstr("<span class=\"share-redone\" style=\"flex-grow:0.250000\" title=\"redone 25.0 %\">"));
  EXPECT_THAT(html, HasSubstr("productive <b>75.0 %</b>"));
  EXPECT_THAT(html, Not(HasSubstr("share-hang"))) << "no share of it";
  EXPECT_THAT(html, HasSubstr("<td>2</td><td class=\"w\">2023-11-14 22:13:20 UTC</td><td class=\"w\">rank_exit</td>"
                              "<td>rank 3 was killed</td><td>181</td><td>restart 1.2, redone 180</td>"));
  EXPECT_THAT(html, HasSubstr("<td>rank 3; nodes 0, 1</td>")) << "without a text";
  EXPECT_LT(html.find("<td>2</td>"), html.find("<td>1</td>")) << "the dearest first";
  EXPECT_THAT(html, Not(HasSubstr("more</p>")));
  EXPECT_THAT(html, HasSubstr("save every 12 min <span class=\"quiet\">(up to 2.00 rank-hours)</span>"));
}

TEST(GoodputSectionTest, CountsWhatIsNotShown) {
  ledger::Report report = Job();
  for (uint64_t number = 1; number <= 12; ++number) report.incidents.push_back(Exit(number, 1, "again"));
  report.older.counts[static_cast<size_t>(ledger::IncidentKind::kHang)] = 5;
  EXPECT_THAT(GoodputSection(report), HasSubstr("and 7 more</p>"));
}

TEST(GoodputSectionTest, AJobWithoutTimeOrIncidentsSaysSo) {
  EXPECT_THAT(GoodputSection({}), HasSubstr("There is no time yet."));
  EXPECT_THAT(GoodputSection(Job()), HasSubstr("Nothing has interrupted the job."));
}

TEST(GoodputSectionTest, ForeignTextIsText) {
  ledger::Report report = Job();
  const std::string evil = "<script>alert(\"1\")</script>&\x1b\n";
  report.incidents = {Exit(1, 20, evil)};
  report.advice = {{evil, evil, 1}};
  const std::string html = GoodputSection(report);
  EXPECT_THAT(html, Not(HasSubstr("<script")));
  EXPECT_THAT(html, HasSubstr("<td>&lt;script&gt;alert(&quot;1&quot;)&lt;/script&gt;&amp;\\x1b\\n</td>"));
}

}  // namespace
}  // namespace taskd::view
