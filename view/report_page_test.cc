#include "view/report_page.h"

#include <regex>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace taskd::view {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr uint64_t kMs = 1'000'000;

// Steps of 100 ms, half of them communication; `slow` computes half as long again.
void AddSteps(int ranks, int64_t steps, int slow, History& history) {
  for (int64_t step = 1; step <= steps; ++step) {
    for (int rank = 0; rank < ranks; ++rank) {
      StepFold fold;
      fold.step = step;
      fold.process_id = 1;
      fold.previous_end_ns = 1'000'000 * kMs;
      fold.end_ns = fold.previous_end_ns + 100 * kMs;
      fold.covered_ns = (rank == slow ? 25 : 50) * kMs;
      fold.dataloaders = 1;
      fold.dataloader_ns = fold.dataloader_own_ns = 5 * kMs;
      history.Add(rank, fold);
    }
  }
}

diagnosis::Verdict SlowRank(int rank) {
  diagnosis::Verdict verdict;
  verdict.id = 1;
  verdict.ids = {rank};
  verdict.cause = diagnosis::Cause::kCompute;
  verdict.since_step = 12;
  verdict.cost_ms_per_step = 25;
  verdict.slowdown = 1.25;
  verdict.confidence = 0.99;
  verdict.evidence = {{"own_time", 75, 50, 3, 40, 12, 60}};
  verdict.text = absl::StrCat("rank ", rank, " computes 50 % longer than its peers since step 12");
  return verdict;
}

ReportPage SlowJob(int rank) {
  ReportPage page;
  page.job = "ns/job";
  page.source = "the test";
  page.version = "1.2.3";
  page.made_ns = 1'700'000'000'000'000'000;
  page.report.ranks = 4;
  page.report.first_step = 1;
  page.report.last_step = 60;
  page.report.step_ms = 100;
  page.report.state = diagnosis::JobState::kSlow;
  page.report.verdicts = {SlowRank(rank)};
  page.facts = {{"restarts", "1"}};
  page.events = {{1'700'000'000'000'000'000, "switch", "step on"}, {1'700'000'001'000'000'000, "started", "rank 3"}};
  return page;
}

TEST(ReportPageTest, SaysWhoIsSlowAndShowsIt) {
  History history;
  AddSteps(4, 60, 2, history);
  const std::string html = RenderReportPage(SlowJob(2), history);
  EXPECT_THAT(html, ContainsRegex("<h1>slow: rank 2 computes 50 % longer"));
  EXPECT_THAT(html, HasSubstr("<td>self time</td><td class=\"n\">75</td><td class=\"n\">50</td>"));
  EXPECT_THAT(html, HasSubstr("href=\"data:image/png;base64,iVBORw0KGgo"));
  EXPECT_THAT(html, HasSubstr(">rank 2</text>"));
  // The median of the others, and the rank's own.
  EXPECT_THAT(html, HasSubstr("<td>median of all</td><td class=\"n\">50</td><td class=\"n\">5</td>"));
  EXPECT_THAT(html, HasSubstr("<td>2</td><td class=\"n\">75</td><td class=\"n\">5</td><td class=\"n\">25</td>"));
  EXPECT_THAT(html, HasSubstr("2023-11-14 22:13:20 UTC"));
  EXPECT_LT(html.find("started"), html.find("step on")) << "newest first";
}

TEST(ReportPageTest, NeedsNothingFromElsewhere) {
  History history;
  AddSteps(4, 60, 2, history);
  const std::string html = RenderReportPage(SlowJob(2), history);
  EXPECT_THAT(html, Not(HasSubstr("<script")));
  EXPECT_THAT(html, Not(HasSubstr("http://")));
  EXPECT_THAT(html, Not(HasSubstr("https://")));
  EXPECT_LT(html.size(), 50'000U);
}

TEST(ReportPageTest, LargeJobsFit) {
  History history;
  AddSteps(4096, 700, 7, history);
  ReportPage page = SlowJob(7);
  for (int i = 0; i < 500; ++i) {
    page.report.verdicts.push_back(SlowRank(i));
    page.events.push_back({0, "verdict_opened", std::string(2000, 'x')});
  }
  const std::string html = RenderReportPage(page, history);
  EXPECT_LT(html.size(), size_t{1} << 20);
  EXPECT_THAT(html, HasSubstr("A cell is 16 ranks and 2 steps, and shows the largest of them."));
  EXPECT_THAT(html, HasSubstr("and 481 more"));
  EXPECT_THAT(html, HasSubstr("and 402 before them"));
  EXPECT_THAT(html, HasSubstr(">0-15</text>")) << "the row of rank 7";
}

TEST(ReportPageTest, BeforeTheFirstStepItSaysWhatToDo) {
  ReportPage page;
  const std::string html = RenderReportPage(page, History());
  EXPECT_THAT(html, HasSubstr("taskd switch step=on communication=on"));
  EXPECT_THAT(html, Not(HasSubstr("<svg")));
}

TEST(ReportPageTest, AHangComesFirst) {
  History history;
  AddSteps(2, 3, -1, history);
  ReportPage page;
  page.hang = "rank 1 is missing";
  page.stacks = "1 rank: 1\n  main (job.py:3) <lambda>\n";
  const std::string html = RenderReportPage(page, history);
  EXPECT_THAT(html, HasSubstr("<h1>hangs: rank 1 is missing</h1>"));
  EXPECT_THAT(html, HasSubstr("1 rank: 1\n  main (job.py:3) &lt;lambda&gt;\n</pre>"));
}

TEST(ReportPageTest, ForeignTextIsText) {
  const std::string evil = "<script>alert(\"1\")</script>&\x1b\n";
  ReportPage page = SlowJob(2);
  page.job = page.source = page.version = evil;
  page.report.verdicts[0].text = page.report.verdicts[0].evidence[0].feature = evil;
  page.report.notes = {{diagnosis::NoteKind::kShort, evil}};
  page.report.nearest = {evil};
  page.facts = {{evil, evil}};
  page.events = {{0, evil, evil}};
  page.stacks = page.hang = evil;
  const std::string html = RenderReportPage(page, History());
  EXPECT_THAT(html, Not(HasSubstr("<script")));
  EXPECT_THAT(html, Not(HasSubstr("\x1b")));
  EXPECT_THAT(html, HasSubstr("&lt;script&gt;alert(&quot;1&quot;)&lt;/script&gt;&amp;\\x1b\\n"));
}

}  // namespace
}  // namespace taskd::view
