#include "manager/ledger/job_ledger.h"

#include <signal.h>

#include <thread>

#include "common/realtime.h"
#include "common/testing/deadline.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace taskd::manager {
namespace {

using ledger::Category;
using ledger::IncidentKind;
using ::testing::ElementsAre;

using Kind = SupervisionEvent::Kind;

SupervisionEvent Event(Kind kind, int round = 0) {
  SupervisionEvent event;
  event.kind = kind;
  event.round = round;
  event.time_ns = RealtimeNs();
  return event;
}

StepFold Fold(int64_t step, bool follows) {
  StepFold fold;
  fold.step = step;
  fold.process_id = 7;
  fold.end_ns = static_cast<uint64_t>(RealtimeNs());
  fold.start_ns = fold.end_ns - 1'000'000;
  if (follows) fold.previous_end_ns = fold.start_ns;
  return fold;
}

void ExpectSum(const ledger::Report& report) {
  EXPECT_NEAR(ledger::Sum(report.seconds()), report.rank_s, 1e-3 * report.rank_s);
  // What was kept is rounded to a microsecond a category.
  EXPECT_NEAR(report.rank_s, report.slots * report.wall_s(), 1e-3 * report.rank_s + 1e-6 * ledger::kCategories);
}

// Until so much of this is there; false: never.
bool Await(const JobLedger& ledger, Category category) {
  return taskd::testing::WaitUntil([&] { return taskd::ledger::At(ledger.report()->seconds(), category) > 0; });
}

TEST(JobLedgerTest, AnIncidentSaysOnceThatItIsAHang) {
  JobLedger ledger({.job = "default/job", .task = "", .slots = 2, .launched = true, .save = {}}, "");
  ledger.OnEvent(Event(Kind::kStarted));
  SupervisionEvent hang = Event(Kind::kHang);
  hang.message = "hang: rank 1 has made no step for 60 s";
  ledger.OnEvent(hang);
  const auto report = ledger.report();
  ASSERT_EQ(report->incidents.size(), 1u);
  EXPECT_EQ(report->incidents[0].kind, IncidentKind::kHang);
  EXPECT_EQ(report->incidents[0].text, "rank 1 has made no step for 60 s");
}

TEST(JobLedgerTest, CausesDecideTheKindOfAnIncident) {
  using Cause = SupervisionEvent::Cause;
  EXPECT_EQ(KindOfRestart(Cause::kNodeLost), IncidentKind::kNodeLost);
  EXPECT_EQ(KindOfRestart(Cause::kRankExit), IncidentKind::kRankExit);
  EXPECT_EQ(KindOfRestart(Cause::kTerminated), IncidentKind::kEviction);
  for (const Cause cause : {Cause::kInterrupted, Cause::kNodeJoined, Cause::kOrdered, Cause::kUnknown}) {
    EXPECT_EQ(KindOfRestart(cause), IncidentKind::kOrdered);
  }
  EXPECT_EQ(KindOfNext(Cause::kTerminated), IncidentKind::kEviction);
  EXPECT_EQ(KindOfNext(Cause::kInterrupted), IncidentKind::kOrdered);
  for (const Cause cause : {Cause::kRankExit, Cause::kNodeLost, Cause::kOrdered, Cause::kUnknown}) {
    EXPECT_EQ(KindOfNext(cause), IncidentKind::kRequeue);
  }
  EXPECT_EQ(CauseOfEnd(SIGTERM), Cause::kTerminated);
  EXPECT_EQ(CauseOfEnd(SIGINT), Cause::kInterrupted);
  EXPECT_EQ(CauseOfEnd(0), Cause::kUnknown);
}

// The text of an event decides nothing, whatever words it has.
TEST(JobLedgerTest, TextsDecideNothing) {
  for (const char* text : {"rank 1 (host) left: SIGTERM", "node 1 (b) left: SIGINT", "nodes 1, 2 were lost: x", ""}) {
    JobLedger ledger({"ns/job", "", 2, true, nullptr}, "");
    ledger.OnEvent(Event(Kind::kStarted));
    SupervisionEvent restarting = Event(Kind::kRestarting);
    restarting.message = text;
    restarting.cause = SupervisionEvent::Cause::kTerminated;
    ledger.OnEvent(restarting);
    ASSERT_EQ(ledger.report()->incidents.size(), 1u);
    EXPECT_EQ(ledger.report()->incidents[0].kind, IncidentKind::kEviction) << text;
  }
}

TEST(JobLedgerTest, FollowsTheLifeOfAJob) {
  JobLedger ledger({"ns/job", "", 2, true, nullptr}, "");
  ledger.OnWaits("nodes 1 (1 of 2 here)");
  ASSERT_TRUE(Await(ledger, Category::kWaiting));
  ledger.OnWaits("");
  ledger.OnEvent(Event(Kind::kStarted));
  ASSERT_TRUE(Await(ledger, Category::kLaunch));
  for (int rank : {0, 1}) ledger.OnPresence(rank, true);
  ASSERT_TRUE(Await(ledger, Category::kLinkUp));
  for (int64_t step = 0; step < 5; ++step) {
    for (int rank : {0, 1}) ledger.OnStep(rank, Fold(step, step > 0));
  }
  ASSERT_TRUE(Await(ledger, Category::kProductive));
  SupervisionEvent exited = Event(Kind::kExited);
  exited.rank = 1;
  exited.node = 0;
  exited.signal = 9;
  exited.code = 137;
  ledger.OnEvent(exited);
  SupervisionEvent restarting = Event(Kind::kRestarting);
  restarting.message = "rank 1 on node 0 (a) was killed by SIGKILL";
  ledger.OnEvent(restarting);
  ASSERT_TRUE(Await(ledger, Category::kRestart));
  ledger.OnEvent(Event(Kind::kStarted, 1));
  const ledger::Report report = *ledger.report();
  ExpectSum(report);
  ASSERT_EQ(report.incidents.size(), 1u);
  EXPECT_EQ(report.incidents[0].kind, IncidentKind::kRankExit);
  EXPECT_EQ(report.incidents[0].text, restarting.message);
  EXPECT_THAT(report.incidents[0].ranks, ElementsAre(1));
  EXPECT_THAT(report.incidents[0].nodes, ElementsAre(0));
}

TEST(JobLedgerTest, ARoundSaysHowManyRanksItHas) {
  JobLedger ledger({"ns/job", "", 0, true, nullptr}, "");
  for (const auto& [round, world_size] : {std::pair(0, 4), std::pair(1, 2), std::pair(2, 3)}) {
    if (round > 0) ledger.OnEvent(Event(Kind::kRestarting));
    SupervisionEvent started = Event(Kind::kStarted, round);
    started.world_size = world_size;
    ledger.OnEvent(started);
    EXPECT_EQ(ledger.report()->slots, world_size);
  }
  ledger.OnPresence(3, true);  // one of the first round: it is away, or nobody's
  EXPECT_EQ(ledger.report()->slots, 3);
}

TEST(JobLedgerTest, WithoutSupervisionAJobRunsWhenNobodyWaits) {
  JobLedger ledger({"ns/job", "", 2, true, nullptr}, "");
  ledger.OnWaits("nodes 1 (1 of 2 here)");
  ledger.OnWaits("");
  EXPECT_TRUE(Await(ledger, Category::kLaunch));
}

TEST(JobLedgerTest, ASwitchedOffStepIsUnmarked) {
  JobLedger ledger({"ns/job", "", 1, true, nullptr}, "");
  ledger.OnEvent(Event(Kind::kStarted));
  ledger.OnStep(0, Fold(0, false));
  ledger.Changed(SwitchState{});
  EXPECT_TRUE(Await(ledger, Category::kUnmarked));
}

// A launcher that was suspended for a day, or whose clock was set, tells of times that are not this life's.
TEST(JobLedgerTest, EventsOfAnotherTimeHappenNow) {
  constexpr int64_t kDayNs = int64_t{86400} * 1'000'000'000;
  for (const int64_t off_ns : {-kDayNs, -365 * kDayNs, 365 * kDayNs}) {
    JobLedger ledger({"ns/job", "", 2, true, nullptr}, "");
    for (const Kind kind : {Kind::kStarted, Kind::kExited, Kind::kStarted, Kind::kEnded}) {
      SupervisionEvent event = Event(kind, ledger.report()->incidents.empty() ? 0 : 1);
      event.time_ns += off_ns;
      event.code = kind == Kind::kExited ? 1 : 0;
      ledger.OnEvent(event);
    }
    const ledger::Report report = *ledger.report();
    ExpectSum(report);
    EXPECT_LT(report.wall_s(), 3600);
    ASSERT_EQ(report.incidents.size(), 1u);
    EXPECT_NEAR(static_cast<double>(report.incidents[0].time_ns - report.since_ns), 0, 3600e9);
    EXPECT_NEAR(static_cast<double>(report.attempts[0].until_ns - report.until_ns), 0, 1e9);
  }
}

TEST(JobLedgerTest, IsKeptWithEachIncident) {
  std::string state;
  int saves = 0;
  const JobLedger::Options options = {"ns/job", "", 2, true, [&](std::string text) {
                                        state = std::move(text);
                                        ++saves;
                                      }};
  const auto verdicts = std::make_shared<const diagnosis::Report>();
  ledger::Report before;
  {
    JobLedger ledger(options, "");
    ledger.OnEvent(Event(Kind::kStarted));
    ledger.OnStep(0, Fold(5, false));
    ledger.KeepUp(verdicts);
    EXPECT_EQ(saves, 1);
    ledger.KeepUp(verdicts);
    EXPECT_EQ(saves, 1);  // not due
    SupervisionEvent exited = Event(Kind::kExited);
    exited.rank = 1;
    exited.code = 3;
    ledger.OnEvent(exited);
    ledger.KeepUp(verdicts);
    EXPECT_EQ(saves, 2);
    before = *ledger.report();
  }
  JobLedger next(options, state);
  ASSERT_TRUE(Await(next, Category::kUnknown));
  const ledger::Report report = *next.report();
  ExpectSum(report);
  ASSERT_EQ(report.incidents.size(), 1u);
  EXPECT_EQ(report.incidents[0].text, "rank 1 ended with code 3");
  EXPECT_EQ(report.attempts.size(), 1u);
  EXPECT_NEAR(static_cast<double>(report.since_ns - before.since_ns), 0, 1e9);
  EXPECT_GE(report.rank_s, before.rank_s - 1e-2);
}

TEST(JobLedgerTest, WhatWasKeptUnderAnotherLauncherIsAnotherAttempt) {
  std::string state;
  const JobLedger::Options options = {"ns/job", "", 2, true, [&](std::string text) { state = std::move(text); }};
  {
    JobLedger ledger(options, "");
    ledger.OnEvent(Event(Kind::kStarted));
    ASSERT_TRUE(Await(ledger, Category::kLaunch));
    ledger.SaveNow();
  }
  const std::string parent = "\"parent\":";
  const size_t at = state.find(parent);
  ASSERT_NE(at, std::string::npos);
  state.insert(at + parent.size(), "1");
  JobLedger next(options, state);
  next.OnEvent(Event(Kind::kStarted));
  ASSERT_TRUE(Await(next, Category::kQueue));
  const ledger::Report report = *next.report();
  ExpectSum(report);
  ASSERT_EQ(report.attempts.size(), 2u);
  EXPECT_EQ(report.attempts[0].outcome, "its launcher was lost");
}

TEST(JobLedgerTest, WhatWasKeptMayBeKnownLate) {
  std::string state;
  JobLedger::Options options = {"ns/job", "task", 2, true, [&](std::string text) { state = std::move(text); }};
  {
    JobLedger ledger(options, "");
    ledger.OnEvent(Event(Kind::kStarted));
    ASSERT_TRUE(Await(ledger, Category::kLaunch));
    SupervisionEvent ended = Event(Kind::kEnded);
    ended.code = 143;
    ended.message = "node 0 (a) left: SIGTERM";
    ended.cause = SupervisionEvent::Cause::kTerminated;
    ledger.OnEvent(ended);
    ledger.SaveNow();
  }
  const std::string former = state;
  JobLedger next(options, "");
  next.OnEvent(Event(Kind::kStarted));
  next.Precede(former);
  next.Precede("x");  // a line of the log
  const ledger::Report report = *next.report();
  ExpectSum(report);
  ASSERT_EQ(report.attempts.size(), 2u);
  ASSERT_EQ(report.incidents.size(), 1u);
  EXPECT_EQ(report.incidents[0].kind, IncidentKind::kEviction);
  EXPECT_EQ(report.incidents[0].text, "the job was started again after: code 143: node 0 (a) left: SIGTERM");
}

TEST(JobLedgerTest, TwoManagersBesideEachOtherAreTwoAttempts) {
  std::string state;
  const JobLedger::Options options = {"ns/job", "task", 2, false, [&](std::string text) { state = std::move(text); }};
  JobLedger first(options, ""), second(options, "");
  for (JobLedger* ledger : {&first, &second}) ledger->OnEvent(Event(Kind::kStarted));
  ASSERT_TRUE(Await(first, Category::kLaunch));
  first.SaveNow();
  second.Precede(state);
  ExpectSum(*second.report());
  EXPECT_EQ(second.report()->attempts.size(), 2u);
  EXPECT_EQ(ledger::At(second.report()->seconds(), Category::kQueue), 0);
}

// Whoever asks while a report is new gets that one, unless a launcher has told something since.
TEST(JobLedgerTest, ManyWhoAskShareAReport) {
  JobLedger ledger({"ns/job", "", ledger::Ledger::kMaxSlots, true, nullptr}, "");
  ledger.OnEvent(Event(Kind::kStarted));
  bool shared = false;
  for (int i = 0; i < 100 && !shared; ++i) {  // on a busy machine this thread may be away for longer
    const std::shared_ptr<const ledger::Report> one = ledger.report();
    shared = ledger.report() == one;
  }
  EXPECT_TRUE(shared);
  ledger.OnEvent(Event(Kind::kEnded));
  EXPECT_EQ(ledger.report()->attempts[0].outcome, "ended");
}

TEST(JobLedgerTest, WhatCannotBeReadIsLeftOut) {
  for (const char* kept :
       {"x", "{}", R"({"schema":9})", R"({"schema":1,"report":"{}"})", R"({"schema":1,"report":3})"}) {
    JobLedger ledger({"ns/job", "", 2, true, nullptr}, kept);
    EXPECT_TRUE(Await(ledger, Category::kUnknown)) << kept;
    EXPECT_EQ(ledger.report()->attempts.size(), 1u);
  }
}

}  // namespace
}  // namespace taskd::manager
