#include "ledger/render.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace taskd::ledger {
namespace {

using ::testing::HasSubstr;

Report Example() {
  Report report;
  report.since_ns = 1'700'000'000'000'000'000;
  report.until_ns = report.since_ns + 3'600'000'000'000;
  report.slots = 2;
  report.rank_s = 7200;
  At(report.closed, Category::kProductive) = 6000;
  At(report.closed, Category::kRedone) = 700;
  At(report.provisional, Category::kUnknown) = 500;
  report.attempts.push_back({1, report.since_ns, 0, 2, ""});
  Incident incident;
  incident.number = 4;
  incident.time_ns = report.since_ns + 1'000'000'000;
  incident.kind = IncidentKind::kRankExit;
  incident.ranks = {1};
  incident.nodes = {0};
  incident.text = "rank 1 \x1b was killed";
  At(incident.seconds, Category::kRedone) = 700;
  report.incidents.push_back(incident);
  report.advice = {{"data", "all wait \x1b for it", 1800}};
  report.waited_for = {{7, 12.5}};
  report.older.counts[1] = 3;
  report.older.seconds[1][0] = 30;
  return report;
}

TEST(RenderTest, JsonHasEveryCategory) {
  const nlohmann::json json = nlohmann::json::parse(RenderJson(Example(), "default/job"));
  EXPECT_EQ(json["schema"], 1);
  EXPECT_EQ(json["job"], "default/job");
  EXPECT_EQ(json["since"], "2023-11-14T22:13:20.000Z");
  EXPECT_EQ(json["until"], "2023-11-14T23:13:20.000Z");
  EXPECT_EQ(json["wall_s"], 3600);
  EXPECT_EQ(json["rank_s"], 7200);
  EXPECT_EQ(json["seconds"].size(), kCategories);
  EXPECT_EQ(json["seconds"]["redone"], 700);
  EXPECT_NEAR(json["goodput"], 6000.0 / 6700, 1e-6);
  EXPECT_NEAR(json["goodput_low"], 6000.0 / 7200, 1e-6);
  EXPECT_NEAR(json["goodput_high"], 6500.0 / 7200, 1e-6);
  EXPECT_TRUE(json["attempts"][0]["until"].is_null());
  EXPECT_EQ(json["incidents"][0]["rank_s"], 700);
  EXPECT_EQ(json["incidents"][0]["seconds"].size(), 1u);
  EXPECT_EQ(json["advice"],
            nlohmann::json::parse(R"([{"kind":"data","text":"all wait \u001b for it","saves_rank_s":1800}])"));
  EXPECT_EQ(nlohmann::json::parse(RenderJson(Report(), "j"))["advice"], nlohmann::json::array());
}

TEST(RenderTest, HopsComeInTheOrderInWhichTheyHappened) {
  Report report = Example();
  for (size_t i = 0; i < kCategories; ++i) report.incidents[0].seconds[i] = 1 + static_cast<double>(i);
  EXPECT_EQ(Hops(report.incidents[0].seconds).size(), kCategories);
  report.incidents[0].seconds = {};
  for (Category category : {Category::kLinkUp, Category::kRedone, Category::kRestart, Category::kWarmUp,
                            Category::kWaiting, Category::kLaunch}) {
    At(report.incidents[0].seconds, category) = 2;
  }
  EXPECT_THAT(
      RenderText(report, "j", 5),
      HasSubstr("12.0 rank-seconds: restart 2.0, waiting 2.0, launch 2.0, link_up 2.0, warm_up 2.0, redone 2.0\n"));
  EXPECT_THAT(
      RenderJson(report, "j"),
      HasSubstr(R"("seconds":{"restart":2.0,"waiting":2.0,"launch":2.0,"link_up":2.0,"warm_up":2.0,"redone":2.0})"));
}

TEST(RenderTest, WhatWasWrittenIsReadAgain) {
  const Report report = Example();
  std::string job;
  const absl::StatusOr<Report> read = ReadJson(RenderJson(report, "default/job"), &job);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(job, "default/job");
  EXPECT_EQ(read->closed, report.seconds());
  EXPECT_EQ(read->incidents, report.incidents);
  EXPECT_EQ(read->attempts, report.attempts);
  EXPECT_EQ(read->older, report.older);
  EXPECT_EQ(read->waited_for, report.waited_for);
  EXPECT_EQ(read->advice, report.advice);
  EXPECT_EQ(read->since_ns, report.since_ns);
  EXPECT_EQ(read->slots, 2);
}

TEST(RenderTest, WhatIsNoReportIsRefused) {
  std::string job;
  for (const char* text :
       {"", "[]", "{}", R"({"schema":2})", R"({"schema":1,"slots":"x"})", R"({"schema":1,"seconds":{"data":[]}})",
        R"({"schema":1,"incidents":[{"kind":"rank_exit"}]})", R"({"schema":1,"attempts":[3]})"}) {
    EXPECT_FALSE(ReadJson(text, &job).ok()) << text;
  }
}

TEST(RenderTest, TheSentenceNamesWhatCostMost) {
  EXPECT_EQ(Sentence(Example()),
            "83.3 % of 2.00 rank-hours were productive; most was lost to redone steps (9.7 %: 3 restarts); of 6.9 % "
            "nobody can tell")
      << "no process was started after the one that is listed";
  Report restarted = Example();
  At(restarted.incidents[0].seconds, Category::kLaunch) = 1;
  EXPECT_THAT(Sentence(restarted), HasSubstr("(9.7 %: 4 restarts)"));
  EXPECT_EQ(Sentence(Report()), "no rank has lived yet");
}

TEST(RenderTest, TheSentenceBeginsWithWhatNobodyCanTellIfThatIsMost) {
  Report report;
  At(report.closed, Category::kLaunch) = 5;
  At(report.closed, Category::kUnmarked) = 95;
  EXPECT_EQ(Sentence(report),
            "of 95.0 % of 100 rank-seconds nobody can tell: steps were not marked (taskd switch all=on, or taskd run "
            "--marks all); 0.0 % were productive; of the rest most was lost to starting processes (5.0 %)");
  std::swap(At(report.closed, Category::kUnmarked), At(report.closed, Category::kUnknown));
  EXPECT_THAT(Sentence(report), HasSubstr("nobody can tell: no rank has marked a step (docs/marks.md); 0.0 %"));
}

TEST(RenderTest, WhomTheRanksWaitForIsNamedWhereThatIsMostOfIt) {
  Report report = Example();
  At(report.closed, Category::kOther) = 800;
  EXPECT_THAT(Sentence(report), HasSubstr("most was lost to time between steps (10.0 %)"));
  report.waited_for = {{0, 300}, {3, 400}};
  EXPECT_THAT(Sentence(report), HasSubstr("(10.0 %: the ranks wait for ranks 3, 0)"));
  EXPECT_THAT(RenderText(report, "j", 0), HasSubstr("  the ranks wait for ranks 3, 0\n"));
  for (int rank = 10; rank < 20; ++rank) report.waited_for[rank] = 1;
  EXPECT_THAT(Sentence(report), HasSubstr("the ranks wait for ranks 3, 0, 10, 11 and others)"));
}

TEST(RenderTest, TextForPeople) {
  const std::string text = RenderText(Example(), "default/job", 5);
  EXPECT_THAT(text, HasSubstr("productive           6000.0   83.3 %  #########################\n"));
  EXPECT_THAT(text, HasSubstr("sum                  7200.0\n"));
  EXPECT_THAT(text, HasSubstr("\nwhat would pay:\n* all wait \\x1b for it (up to 0.50 rank-hours)\n"));
  EXPECT_THAT(
      text,
      HasSubstr(
          "#4 2023-11-14T22:13:21.000Z rank_exit: rank 1 \\x1b was killed\n   700.0 rank-seconds: redone 700.0\n"));
  EXPECT_THAT(RenderText(Example(), "default/job", 0), ::testing::Not(HasSubstr("#4")));
}

}  // namespace
}  // namespace taskd::ledger
