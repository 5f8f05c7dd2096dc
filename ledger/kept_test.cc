#include "ledger/kept.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace taskd::ledger {
namespace {

using ::testing::HasSubstr;
using ::testing::MatchesRegex;

KeptLedger Example() {
  KeptLedger ledger;
  ledger.job = "ns/job \"x\"";
  ledger.task = "task";
  ledger.writer = {"boot", 17, 23, 4711};
  ledger.kept.report.since_ns = 1'700'000'000'000'000'000;
  ledger.kept.report.until_ns = 1'700'000'010'000'000'000;
  ledger.kept.report.slots = 2;
  At(ledger.kept.report.closed, Category::kProductive) = 20;
  ledger.kept.report.rank_s = 20;
  ledger.kept.report.attempts = {{1, 1'700'000'000'000'000'000, 0, 2, ""}};
  ledger.kept.report.measured = {3, 5, 7.5};
  ledger.kept.done_until = 12;
  ledger.kept.saved_step = 10;
  ledger.kept.base = 3;
  ledger.kept.round = 2;
  ledger.kept.ended = true;
  ledger.kept.next = IncidentKind::kEviction;
  return ledger;
}

TEST(KeptTest, ComesBackAsItWas) {
  const KeptLedger ledger = Example();
  absl::StatusOr<KeptLedger> read = ReadKept(RenderKept(ledger));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->job, ledger.job);
  EXPECT_EQ(read->task, ledger.task);
  EXPECT_EQ(read->writer, ledger.writer);
  EXPECT_EQ(read->kept.report.seconds(), ledger.kept.report.seconds());
  EXPECT_EQ(read->kept.report.attempts, ledger.kept.report.attempts);
  EXPECT_EQ(read->kept.report.since_ns, ledger.kept.report.since_ns);
  EXPECT_EQ(read->kept.report.until_ns, ledger.kept.report.until_ns);
  EXPECT_EQ(read->kept.report.measured, ledger.kept.report.measured);
  EXPECT_EQ(read->kept.done_until, 12);
  EXPECT_EQ(read->kept.saved_step, 10);
  EXPECT_EQ(read->kept.base, 3);
  EXPECT_EQ(read->kept.round, 2);
  EXPECT_TRUE(read->kept.ended);
  EXPECT_EQ(read->kept.next, IncidentKind::kEviction);
}

TEST(KeptTest, StepsThatNoJobHasAreClamped) {
  KeptLedger ledger = Example();
  ledger.kept.saved_step = ledger.kept.base = 1'000'000'000'000;
  absl::StatusOr<KeptLedger> read = ReadKept(RenderKept(ledger));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->kept.saved_step, 13) << "the step after the last that was done";
  EXPECT_EQ(read->kept.base, 13);
  ledger.kept.done_until = INT64_MAX;
  ledger.kept.saved_step = ledger.kept.base = ledger.kept.round = -7;
  read = ReadKept(RenderKept(ledger));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->kept.done_until, Ledger::kMostStep);
  EXPECT_EQ(read->kept.saved_step, -1);
  EXPECT_EQ(read->kept.base, 0);
  EXPECT_EQ(read->kept.round, -1);
}

TEST(KeptTest, ALaterReleaseIsToldApartFromWhatIsBroken) {
  const absl::Status later = ReadKept(R"({"schema":9,"report":[[[1]]]})").status();
  EXPECT_TRUE(absl::IsFailedPrecondition(later)) << later;
  EXPECT_THAT(later.message(), HasSubstr("a later release (schema 9)"));
  const std::string whole = RenderKept(Example());
  for (const std::string& text :
       {std::string(), std::string("x"), std::string("{}"), std::string("[]"), whole.substr(0, whole.size() - 2),
        std::string(R"({"schema":"1"})"), std::string(R"({"schema":1})"), std::string(R"({"schema":1,"report":3})"),
        std::string(R"({"schema":1,"report":"{}"})"), std::string(kMaxKeptBytes + 1, ' ')}) {
    EXPECT_TRUE(absl::IsInvalidArgument(ReadKept(text).status())) << text.substr(0, 50);
  }
}

TEST(KeptTest, TheLargestFitsWellIntoWhatIsRead) {
  KeptLedger ledger = Example();
  Report& report = ledger.kept.report;
  report.incidents.clear();
  for (size_t i = 0; i < Report::kMaxIncidents; ++i) {
    Incident incident = {i + 1, 1'700'000'000'000'000'000, IncidentKind::kStraggler, {}, {}, "", {}};
    incident.ranks.assign(Ledger::kMaxNames, 131'071);
    incident.nodes.assign(Ledger::kMaxNames, 131'071);
    incident.text.assign(Ledger::kMaxTextBytes, '\x1b');
    incident.seconds.fill(123'456'789.123456);
    report.incidents.push_back(incident);
  }
  report.attempts.assign(Report::kMaxAttempts, {1, 1'700'000'000'000'000'000, 1'700'000'000'000'000'000, 131'072,
                                                std::string(Ledger::kMaxTextBytes, '\x1b')});
  const std::string text = RenderKept(ledger);
  EXPECT_LE(text.size(), kMaxKeptBytes);
  EXPECT_TRUE(ReadKept(text).ok());
}

TEST(KeptTest, EachJobAndTaskHasANameOfItsOwn) {
  EXPECT_THAT(KeptName("ns/job", "task-1"), MatchesRegex("ns_job.task-1-[0-9a-f]{8}"));
  EXPECT_THAT(KeptName("../x\n", ""), MatchesRegex("_._x_-[0-9a-f]{8}"));
  EXPECT_EQ(KeptName("ns/job", "a"), KeptName("ns/job", "a"));
  EXPECT_NE(KeptName("ns/job", "a"), KeptName("ns_job", "a"));
  EXPECT_NE(KeptName("ns/job", "a"), KeptName("ns/job", "b"));
  EXPECT_LE(KeptName(std::string(5000, 'j'), std::string(5000, 't')).size(), 200u);
  EXPECT_NE(KeptName(std::string(5000, 'j'), "t"), KeptName(std::string(5001, 'j'), "t"));
}

}  // namespace
}  // namespace taskd::ledger
