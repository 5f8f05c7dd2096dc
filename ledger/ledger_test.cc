#include "ledger/ledger.h"

#include <algorithm>
#include <cmath>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "ledger/render.h"

namespace taskd::ledger {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int64_t kUnix = 1'700'000'000'000'000'000;

int64_t Ns(double s) { return std::llround(s * 1e9); }

// A job on a clock that begins at 0 and that its nodes share. The sum is checked after each event.
class Job {
 public:
  explicit Job(int slots, bool launched = true)
      : slots_(slots), ledger_({.now_ns = 0, .unix_offset_ns = kUnix, .slots = slots, .launched = launched}) {}

  Ledger& at(double s) {
    now_ns_ = std::max(now_ns_, Ns(s));
    Check();
    return ledger_;
  }
  int64_t now_ns() const { return now_ns_; }

  // All ranks end this step at `end_s`; it is reported `delay_s` later.
  void Step(int64_t step, double start_s, double end_s, double previous_s = 0, uint32_t process = 1, double data_s = 0,
            double checkpoint_s = 0, double delay_s = 0.2) {
    for (int rank = 0; rank < slots_; ++rank) {
      StepFold fold;
      fold.step = step;
      fold.process_id = process * 1000 + static_cast<uint32_t>(rank);
      fold.start_ns = static_cast<uint64_t>(kUnix + Ns(start_s));
      fold.end_ns = static_cast<uint64_t>(kUnix + Ns(end_s));
      if (previous_s > 0) fold.previous_end_ns = static_cast<uint64_t>(kUnix + Ns(previous_s));
      fold.dataloader_own_ns = static_cast<uint64_t>(Ns(data_s));
      fold.checkpoint_own_ns = static_cast<uint64_t>(Ns(checkpoint_s));
      fold.checkpoints = checkpoint_s > 0 && rank == 0 ? 1 : 0;
      at(end_s + delay_s).Step(rank, fold, Ns(end_s + delay_s));
    }
    Check();
  }
  // The steps follow each other and take a second each.
  void Steps(int64_t first, int64_t last, double begin_s, uint32_t process = 1, bool goes_on = false) {
    for (int64_t step = first; step <= last; ++step, begin_s += 1) {
      const bool follows = goes_on || step > first;
      Step(step, begin_s, begin_s + 1, follows ? begin_s : 0, process);
      ledger_.Advance(now_ns_);
    }
  }
  void Launch(int round, double start_s, double seen_s) {
    at(start_s).Started(round, Ns(start_s), now_ns_);
    for (int rank = 0; rank < slots_; ++rank) at(seen_s).Seen(rank, true, Ns(seen_s), now_ns_);
  }

  double Of(Category category) {
    Check();
    return At(ledger_.report().seconds(), category);
  }
  Report report(double s) {
    at(s).Advance(now_ns_);
    Check();
    return ledger_.report();
  }

  void Check() {
    const Report report = ledger_.report();
    ASSERT_NEAR(Sum(report.seconds()), report.rank_s, 1e-6 * (1 + report.rank_s));
    ASSERT_NEAR(report.rank_s, report.slots * report.wall_s(), 1e-6 * (1 + report.rank_s));
    for (size_t i = 0; i < kCategories; ++i) {
      ASSERT_GE(report.closed[i], closed_[i]);
      ASSERT_GE(report.provisional[i], 0);
    }
    closed_ = report.closed;
  }

 private:
  const int slots_;
  int64_t now_ns_ = 0;
  Ledger ledger_;
  Seconds closed_{};
};

TEST(LedgerTest, AJobFromItsStartToItsEnd) {
  Job job(4);
  job.at(0.5).Waits(true, Ns(0.5), Ns(0.5));
  job.Launch(0, 2, 5);
  job.Step(0, 7, 11);  // a usual step of it is work
  job.Steps(1, 10, 11, 1, true);
  job.at(23).Ended(0, "", Ns(23), Ns(23));
  const Report report = job.report(60);
  const Seconds seconds = report.seconds();
  EXPECT_NEAR(At(seconds, Category::kWaiting), 4 * 2, 1e-6);
  EXPECT_NEAR(At(seconds, Category::kLaunch), 4 * 3, 1e-6);
  EXPECT_NEAR(At(seconds, Category::kLinkUp), 4 * 2, 1e-6);
  EXPECT_NEAR(At(seconds, Category::kWarmUp), 4 * 3, 1e-6);
  EXPECT_NEAR(At(seconds, Category::kProductive), 4 * 11, 1e-6);
  EXPECT_NEAR(At(seconds, Category::kOther), 4 * 2, 1e-6);
  EXPECT_NEAR(report.rank_s, 4 * 23, 1e-6);
  EXPECT_THAT(report.incidents, ::testing::IsEmpty());
  ASSERT_EQ(report.attempts.size(), 1u);
  EXPECT_EQ(report.attempts[0].outcome, "ended");
  EXPECT_EQ(report.attempts[0].until_ns, kUnix + Ns(23));
  const Report later = job.report(300);  // by then all time is closed
  EXPECT_EQ(Sum(later.provisional), 0);
  EXPECT_NEAR(At(later.closed, Category::kProductive), 4 * 11, 1e-6);
}

TEST(LedgerTest, AKilledRankIsOneIncidentWhoseHopsAddUp) {
  Job job(4);
  job.Launch(0, 1, 2);
  job.Steps(0, 9, 3);  // until 13
  job.at(14.5).Exited({.rank = 2, .node = 1, .failed = true, .text = "signal 9"}, Ns(13.5), Ns(14.5));
  job.at(14.6).Exited({.rank = 0, .node = 0, .failed = true, .text = "signal 15"}, Ns(14.2), Ns(14.6));
  job.at(14.6).Restarting(IncidentKind::kRankExit, "rank 2 on node 1 was killed", Ns(14), Ns(14.6));
  job.at(15).Waits(true, Ns(15), Ns(15));
  job.Launch(1, 17, 19);
  job.Step(5, 20, 22, 0, 2);
  job.Steps(6, 15, 22, 2, true);  // until 32
  const Report report = job.report(32.3);
  ASSERT_EQ(report.incidents.size(), 1u);
  const Incident& incident = report.incidents[0];
  EXPECT_EQ(incident.kind, IncidentKind::kRankExit);
  EXPECT_THAT(incident.ranks, ElementsAre(2));
  EXPECT_THAT(incident.nodes, ElementsAre(1));
  EXPECT_EQ(incident.text, "rank 2 on node 1 was killed");
  EXPECT_EQ(incident.time_ns, kUnix + Ns(13.5));
  EXPECT_NEAR(At(incident.seconds, Category::kRestart), 4 * 1.5, 1e-6);  // 13.5 to 15
  EXPECT_NEAR(At(incident.seconds, Category::kWaiting), 4 * 2, 1e-6);
  EXPECT_NEAR(At(incident.seconds, Category::kLaunch), 4 * 2, 1e-6);
  EXPECT_NEAR(At(incident.seconds, Category::kLinkUp), 4 * 1, 1e-6);
  EXPECT_NEAR(At(incident.seconds, Category::kWarmUp), 4 * 1, 1e-6);
  EXPECT_NEAR(At(incident.seconds, Category::kRedone), 4 * (0.5 + 5), 1e-6);  // the step under way, then 5 to 9
  EXPECT_NEAR(Sum(incident.seconds), 4 * 13, 1e-6);
  EXPECT_NEAR(At(report.seconds(), Category::kProductive), 4 * (10 + 6 + 0.3), 1e-6);
}

TEST(LedgerTest, NumbersThatBeginAnewGoOnFromTheCheckpoint) {
  Job job(2);
  job.Launch(0, 1, 2);
  job.Steps(0, 5, 3);
  job.Step(6, 9, 10, 9, 1, 0, 0.5);  // saves the result of step 5
  job.Steps(7, 9, 10, 1, true);      // until 13
  job.at(13).Exited({.rank = 1, .failed = true}, Ns(13), Ns(13));
  job.Launch(1, 14, 15);
  job.Steps(0, 9, 16, 2);  // 6 to 15
  const Report report = job.report(26.2);
  EXPECT_NEAR(At(report.seconds(), Category::kRedone), 2 * 4, 1e-6);
  EXPECT_NEAR(At(report.seconds(), Category::kCheckpoint), 2 * 0.5, 1e-6);
  EXPECT_NEAR(At(report.seconds(), Category::kProductive), 2 * (9.5 + 6 + 0.2), 1e-6);
}

// The time of steps that are redone after a failure. If `named` is a step, one rank of four has named it before the
// failure.
double RedoneAfterAFailure(int64_t named, bool saves) {
  Job job(4);
  job.Launch(0, 1, 2);
  job.Steps(0, 9, 3);  // until 13
  if (named >= 0) {
    StepFold fold;
    fold.step = named;
    fold.process_id = 1003;
    fold.start_ns = static_cast<uint64_t>(kUnix + Ns(13));
    fold.end_ns = static_cast<uint64_t>(kUnix + Ns(13.1));
    fold.checkpoints = saves ? 1 : 0;
    job.at(13.2).Step(3, fold, Ns(13.2));
  }
  EXPECT_EQ(job.at(13.3).done_until(), 9);
  EXPECT_EQ(job.at(13.3).saved_step(), -1);
  job.at(14).Exited({.rank = 2, .failed = true, .text = "signal 9"}, Ns(14), Ns(14));
  job.Launch(1, 15, 16);
  job.Steps(0, 19, 17, 2);  // ten again, and ten new ones
  job.report(200);
  EXPECT_EQ(job.at(200).done_until(), 19);
  return job.Of(Category::kRedone);
}

TEST(LedgerTest, ARankThatNamesAStepFarAheadChangesItsOwnTimeAlone) {
  constexpr int64_t kFar = 1'000'000'000'000;
  const double honest_s = RedoneAfterAFailure(-1, false);
  EXPECT_GE(honest_s, 40);
  EXPECT_NEAR(RedoneAfterAFailure(kFar, false), honest_s, 20) << "its own new steps, and what it does since";
  EXPECT_NEAR(RedoneAfterAFailure(kFar, true), honest_s, 20);
}

TEST(LedgerTest, ASaveCountsInTheStepThatMostDo) {
  Job job(4);
  job.Launch(0, 1, 2);
  job.Steps(0, 9, 3);
  job.at(13.5).Saved(0, {.step = 10, .ns = 1000}, Ns(13.5));
  EXPECT_EQ(job.at(14).saved_step(), 10);
  job.at(14).Saved(1, {.step = 5000, .ns = 1000}, Ns(14));
  EXPECT_EQ(job.at(14).saved_step(), 10);
}

TEST(LedgerTest, WhatWasSavedInTheStepOfAFailureIsNotLost) {
  Job job(2);
  job.Launch(0, 1, 2);
  job.Steps(0, 9, 3);                                                // until 13
  job.at(13.7).Saved(0, {.step = 10, .ns = 500'000'000}, Ns(13.7));  // the result of step 9
  job.at(13.7).Saved(1, {.step = 4, .ns = 500'000'000}, Ns(13.7));   // that step has ended
  job.at(14).Exited({.rank = 1, .failed = true}, Ns(14), Ns(14));
  job.at(14.2).Saved(0, {.step = 10, .ns = 500'000'000}, Ns(14.2));  // its process is gone
  job.Launch(1, 15, 16);
  job.Steps(0, 5, 17, 2);  // 10 to 15
  const Report report = job.report(23);
  EXPECT_NEAR(At(report.seconds(), Category::kCheckpoint), 2 * 0.5, 1e-6);
  EXPECT_NEAR(At(report.seconds(), Category::kRedone), 2 * 0.5, 1e-6) << "the step under way, and no other one";
  EXPECT_NEAR(At(report.seconds(), Category::kProductive), 2 * 16.2, 1e-6);
}

TEST(LedgerTest, WhatAFormerProcessHasSavedIsNoneOfTheNextOne) {
  Job job(2, false);
  job.Step(0, 1, 2);
  job.Steps(1, 9, 2, 1, true);  // until 11
  job.at(11.6).Saved(0, {.step = 10, .ns = 500'000'000}, Ns(11.6));
  EXPECT_NEAR(job.Of(Category::kCheckpoint), 2 * 0.5, 1e-6);
  job.Step(5, 20, 21, 0, 2);  // from an older save
  job.Step(6, 21, 22, 21, 2);
  const double before_s = job.Of(Category::kCheckpoint);
  EXPECT_NEAR(At(job.report(22.7).seconds(), Category::kCheckpoint), before_s, 1e-6);
}

TEST(LedgerTest, WhatIsSavedAfterTheLastStepIsACheckpoint) {
  Job job(2);
  job.Launch(0, 1, 2);
  job.Steps(0, 9, 3);  // until 13
  job.at(15).Saved(1, {.step = 10, .ns = 1'500'000'000}, Ns(15));
  job.at(16).Ended(0, "", Ns(16), Ns(16));
  const Report report = job.report(40);
  EXPECT_NEAR(At(report.seconds(), Category::kCheckpoint), 2 * 1.5, 1e-6);
  EXPECT_NEAR(At(report.seconds(), Category::kOther), 2 * 1.5, 1e-6);
}

TEST(LedgerTest, FoldsThatComeAfterTheFailureStillCount) {
  Job job(2);
  job.Launch(0, 1, 2);
  job.Steps(0, 4, 3);
  job.at(9.9).Exited({.rank = 0, .failed = true}, Ns(9.8), Ns(9.9));
  job.Step(5, 8, 9, 8, 1, 0, 0, 2.5);  // ended at 9, reported at 11.5
  EXPECT_NEAR(job.Of(Category::kProductive), 2 * 6, 1e-6);
  const Report report = job.report(30);
  EXPECT_NEAR(At(report.seconds(), Category::kRestart), 2 * (30 - 9.8), 1e-6);
}

TEST(LedgerTest, AHangEndsWithTheRestart) {
  Job job(2);
  job.Launch(0, 1, 2);
  job.Steps(0, 9, 3);  // until 13
  job.at(45).Hang(Ns(13), {1}, "rank 1 hangs", Ns(45));
  EXPECT_NEAR(job.Of(Category::kHang), 2 * 32, 1e-6);
  job.at(50).Restarting(IncidentKind::kOrdered, "rank 1 hangs", Ns(50), Ns(50));
  job.Launch(1, 52, 53);
  job.Steps(10, 12, 54, 2);
  const Report report = job.report(57.5);
  ASSERT_EQ(report.incidents.size(), 1u);
  EXPECT_EQ(report.incidents[0].kind, IncidentKind::kHang);
  EXPECT_NEAR(At(report.incidents[0].seconds, Category::kHang), 2 * 37, 1e-6);
  EXPECT_NEAR(At(report.incidents[0].seconds, Category::kRestart), 2 * 2, 1e-6);
  EXPECT_NEAR(At(report.incidents[0].seconds, Category::kLaunch), 2 * 1, 1e-6);
}

TEST(LedgerTest, AHangThatGoesOnAgainIsTakenOutOfItsStep) {
  Job job(2);
  job.Launch(0, 1, 2);
  job.Steps(0, 9, 3);  // until 13
  job.at(45).Hang(Ns(13), {}, "no progress", Ns(45));
  job.at(47).Resumed(Ns(46), Ns(47));
  job.Step(10, 13, 46.5, 13);
  EXPECT_NEAR(job.Of(Category::kHang), 2 * 33, 1e-6);
  EXPECT_NEAR(job.Of(Category::kUnknown), 0, 1e-6);
}

TEST(LedgerTest, SuspendedProcessesDidNothing) {
  Job job(2);
  job.Launch(0, 1, 2);
  job.Steps(0, 9, 3);  // until 13
  // Suspensions are reported every second, and when the ranks go on.
  for (int rank = 0; rank < 2; ++rank) job.at(13.7).Suspended(rank, Ns(13.2), Ns(13.7), Ns(13.7));
  for (int s = 14; s < 28; ++s) {
    for (int rank = 0; rank < 2; ++rank) job.at(s + 0.7).Suspended(rank, Ns(s - 0.3), Ns(s + 0.7), Ns(s + 0.7));
  }
  EXPECT_NEAR(At(job.report(28).seconds(), Category::kSuspended), 2 * 14.5, 1e-6);
  EXPECT_NEAR(job.Of(Category::kUnknown), 0, 1e-6);
  for (int rank = 0; rank < 2; ++rank) job.at(28.2).Suspended(rank, Ns(27.7), Ns(28.2), Ns(28.2));
  job.Step(10, 13, 29, 13);
  EXPECT_NEAR(job.Of(Category::kSuspended), 2 * 15, 1e-6);
  EXPECT_NEAR(job.Of(Category::kProductive), 2 * (11 + 0.2), 1e-6);
  EXPECT_NEAR(job.Of(Category::kUnknown), 0, 1e-6);
}

TEST(LedgerTest, OneSuspendedRankIsOneRanksTime) {
  Job job(2);
  job.Launch(0, 1, 2);
  job.Steps(0, 9, 3);
  job.at(18).Suspended(1, Ns(13), Ns(18), Ns(18));
  EXPECT_NEAR(job.Of(Category::kSuspended), 5, 1e-6);
}

TEST(LedgerTest, WhoEndsAStepWasNotSuspended) {
  Job job(2);
  job.Launch(0, 1, 2);
  job.Steps(0, 9, 3);  // until 13
  // The observer did not run, and takes the ranks for suspended.
  for (int rank = 0; rank < 2; ++rank) job.at(18).Suspended(rank, Ns(13), Ns(18), Ns(18));
  job.Steps(10, 15, 13, 1, true);
  EXPECT_NEAR(job.Of(Category::kSuspended), 0, 1e-6);
  EXPECT_NEAR(job.Of(Category::kProductive), 2 * (16 + 0.2), 1e-6);
}

TEST(LedgerTest, ASuspensionTakesItsTimeOutOfAHang) {
  Job job(2);
  job.Launch(0, 1, 2);
  job.Steps(0, 9, 3);  // until 13
  job.at(45).Hang(Ns(13), {1}, "no progress", Ns(45));
  for (int rank = 0; rank < 2; ++rank) job.at(45).Suspended(rank, Ns(20), Ns(45), Ns(45));
  EXPECT_NEAR(job.Of(Category::kHang), 2 * 7, 1e-6);
  EXPECT_NEAR(job.Of(Category::kSuspended), 2 * 25, 1e-6);
}

TEST(LedgerTest, WithoutStepMarksNobodyCanTell) {
  Job job(2);
  job.Launch(0, 1, 2);
  job.Steps(0, 9, 3);  // until 13
  job.at(13.2).SetStepsOn(false, Ns(13.2));
  EXPECT_NEAR(job.report(19).seconds()[static_cast<size_t>(Category::kUnmarked)], 2 * 5.8, 1e-6);
  job.at(19).SetStepsOn(true, Ns(19));
  job.Step(16, 19, 20);  // the time before it was not marked
  EXPECT_NEAR(job.Of(Category::kUnmarked), 2 * 6, 1e-6);
  job.Step(18, 21, 22, 21);  // 17 was lost
  EXPECT_NEAR(job.Of(Category::kUnmarked), 2 * 7, 1e-6);
}

TEST(LedgerTest, AProcessThatIsSeenWasLaunchedWithOrWithoutStepMarks) {
  Job job(2);
  job.at(0.5).SetStepsOn(false, Ns(0.5));
  job.Launch(0, 1, 4);
  const Report report = job.report(30);
  EXPECT_NEAR(At(report.seconds(), Category::kLaunch), 2 * 3, 1e-6);
  EXPECT_NEAR(At(report.seconds(), Category::kUnmarked), 2 * 26, 1e-6);
}

TEST(LedgerTest, ALongLaunchWithoutStepMarksIsUnmarked) {
  Job job(2);
  job.at(0.5).SetStepsOn(false, Ns(0.5));
  // observed when marks are switched on, or because the launch took so long: the ledger cannot know
  job.Launch(0, 1, 301);
  const Report report = job.report(400);
  EXPECT_NEAR(At(report.seconds(), Category::kLaunch), 2 * 60, 1e-6);
  EXPECT_NEAR(At(report.seconds(), Category::kUnmarked), 2 * (240 + 99), 1e-6);
}

TEST(LedgerTest, KnowsThatMarksDoNotCome) {
  const auto lacks = [](double switched_on_s, double asked_s, double seen_s, double ended_s) {
    Job job(2);
    job.at(0).SetStepsOn(switched_on_s == 0, 0);
    job.at(1).Started(0, Ns(1), Ns(1));
    if (switched_on_s > 0) job.at(switched_on_s).SetStepsOn(true, Ns(switched_on_s));
    if (seen_s > 0) job.at(seen_s).Seen(1, true, Ns(seen_s), Ns(seen_s));
    if (ended_s > 0) job.at(ended_s).Ended(0, "", Ns(ended_s), Ns(ended_s));
    job.report(asked_s);
    return job.at(asked_s).lacks_marks();
  };
  EXPECT_FALSE(lacks(0, 180, 0, 0));
  EXPECT_TRUE(lacks(0, 181, 0, 0));
  EXPECT_FALSE(lacks(100, 279, 0, 0));
  EXPECT_TRUE(lacks(100, 280, 0, 0));
  EXPECT_FALSE(lacks(0, 1000, 100, 0)) << "it loads a model";
  EXPECT_FALSE(lacks(-1, 1000, 0, 0)) << "they are off";
  EXPECT_TRUE(lacks(0, 11, 0, 11));
  EXPECT_FALSE(lacks(0, 1000, 0, 10)) << "it was too short to tell";
}

TEST(LedgerTest, TimeBetweenStepsIsOtherUnlessItIsMarked) {
  Job job(2);
  job.Launch(0, 1, 2);
  job.Steps(0, 9, 3);
  job.Step(10, 16, 17, 13, 1, 1, 0.5);
  EXPECT_NEAR(job.Of(Category::kData), 2 * 1, 1e-6);
  EXPECT_NEAR(job.Of(Category::kCheckpoint), 2 * 0.5, 1e-6);
  EXPECT_NEAR(job.Of(Category::kOther), 2 * 1.5, 1e-6);
}

TEST(LedgerTest, AStragglerIsAnIncidentWithWhatItCosts) {
  Job job(2);
  job.Launch(0, 1, 2);
  job.Steps(0, 9, 3);
  std::vector<Ledger::Straggler> stragglers(1);
  stragglers[0].cost = {.verdict = 5, .since_step = 6, .cost_s = 0.25};
  stragglers[0].ranks = {1};
  stragglers[0].text = "rank 1 is slow";
  job.at(13.5).SetStragglers(stragglers, Ns(13.5));
  job.at(13.6).SetStragglers(stragglers, Ns(13.6));
  const Report report = job.report(13.6);
  ASSERT_EQ(report.incidents.size(), 1u);
  EXPECT_EQ(report.incidents[0].kind, IncidentKind::kStraggler);
  EXPECT_NEAR(At(report.incidents[0].seconds, Category::kStraggler), 4 * 2 * 0.25, 1e-6);
  EXPECT_NEAR(At(report.seconds(), Category::kStraggler), 4 * 2 * 0.25, 1e-6);
}

// A diagnosis lists open verdicts before cleared ones, and each kind by cost. So a cheap cleared verdict is the last
// one.
TEST(LedgerTest, ACheapVerdictKeepsItsStepsAndItsIncidentBesideManyOthers) {
  constexpr uint64_t kCheap = 1;
  constexpr uint64_t kOthers = 160;
  Job job(2);
  job.Launch(0, 1, 2);
  job.Steps(0, 9, 3);
  Ledger::Straggler cheap;
  cheap.cost = {.verdict = kCheap, .since_step = 6, .cost_s = 0.125};
  std::vector<Ledger::Straggler> stragglers;
  for (uint64_t i = 1; i <= kOthers; ++i) {
    Ledger::Straggler other;
    other.cost = {.verdict = kCheap + i, .since_step = 1000, .cost_s = 0.5};
    stragglers.push_back(other);
  }
  stragglers.push_back(cheap);
  job.at(13.5).SetStragglers(stragglers, Ns(13.5));
  for (Ledger::Straggler& straggler : stragglers) {
    straggler.cost.open = false;
    straggler.cost.last_step = straggler.cost.verdict == kCheap ? 8 : 1001;
  }
  job.at(13.6).SetStragglers(stragglers, Ns(13.6));
  EXPECT_NEAR(job.Of(Category::kStraggler), 3 * 2 * 0.125, 1e-6);
  // The verdict opens again under its id, so it is the same incident.
  std::rotate(stragglers.begin(), stragglers.end() - 1, stragglers.end());
  stragglers[0].cost.open = true;
  job.at(13.7).SetStragglers(stragglers, Ns(13.7));
  const Report report = job.report(13.7);
  EXPECT_EQ(report.incidents.size(), kOthers + 1);
  EXPECT_NEAR(At(report.seconds(), Category::kStraggler), 4 * 2 * 0.125, 1e-6);
}

TEST(LedgerTest, ARankThatTheOthersWaitForInABarrierIsNamed) {
  Job job(4);
  job.Launch(0, 1, 2);
  job.Steps(0, 9, 3);  // until 13
  for (int rank = 0; rank < 4; ++rank) {
    StepFold fold;
    fold.step = 10;
    fold.process_id = 1000 + static_cast<uint32_t>(rank);
    fold.start_ns = fold.previous_end_ns = static_cast<uint64_t>(kUnix + Ns(13));
    fold.end_ns = static_cast<uint64_t>(kUnix + Ns(34));  // 20 s of the step are an evaluation of rank 0
    fold.covered_ns = static_cast<uint64_t>(Ns(rank == 0 ? 0.5 : 20.5));
    fold.ops.push_back({.op = CommOp::kAllReduce, .duration_ns = static_cast<uint64_t>(Ns(0.5))});
    fold.ops.push_back({.op = CommOp::kBarrier, .duration_ns = static_cast<uint64_t>(Ns(rank == 0 ? 0.001 : 20))});
    job.at(34.2).Step(rank, fold, Ns(34.2));
  }
  const Report report = job.report(34.3);
  EXPECT_NEAR(At(report.seconds(), Category::kOther), 4 * 19.5, 0.01);
  EXPECT_NEAR(At(report.seconds(), Category::kHang), 0, 1e-6);
  ASSERT_EQ(report.waited_for.size(), 1u);
  EXPECT_NEAR(report.waited_for.at(0), 4 * 19.5, 0.01);
  Ledger::Kept kept;
  kept.report = report;
  Ledger next({.now_ns = Ns(40), .unix_offset_ns = kUnix});
  next.Resume(kept, Ns(40));
  EXPECT_EQ(next.report().waited_for, report.waited_for);
}

TEST(LedgerTest, AVerdictIsNotOnStepsOfANextProcessWithTheSameNumbers) {
  Job job(2);
  job.Launch(0, 1, 2);
  job.Step(0, 2, 3, 0, 1, 0, 0.1);  // with a checkpoint save
  job.Steps(1, 9, 3, 1, true);
  std::vector<Ledger::Straggler> stragglers(1);
  stragglers[0].cost = {.verdict = 5, .since_step = 4, .cost_s = 0.25};
  job.at(12.5).SetStragglers(stragglers, Ns(12.5));
  stragglers[0].cost.open = false;
  stragglers[0].cost.last_step = 7;
  job.at(12.6).SetStragglers(stragglers, Ns(12.6));
  job.at(13).Restarting(IncidentKind::kOrdered, "", Ns(13), Ns(13));
  job.Launch(1, 14, 15);
  job.Steps(0, 19, 15, 2);  // steps 1 to 20 of the job; 1 to 9 are redone
  EXPECT_NEAR(job.Of(Category::kRedone), 2 * (9 + 2), 1e-6)
      << "and what was under way, and time without steps until 13";
  EXPECT_NEAR(job.Of(Category::kStraggler), 2 * 4 * 0.25, 1e-6);
}

TEST(LedgerTest, AManagerAloneKnowsNothingOfLaunchAndRestart) {
  Job job(2, false);
  for (int rank = 0; rank < 2; ++rank) job.at(4).Seen(rank, true, Ns(4), Ns(4));
  job.Step(0, 5, 6);
  job.Steps(1, 9, 6, 1, true);  // until 15
  job.Steps(5, 12, 20, 2);      // other processes
  const Seconds seconds = job.report(28.2).seconds();
  EXPECT_NEAR(At(seconds, Category::kLaunch) + At(seconds, Category::kWaiting), 0, 1e-6);
  EXPECT_NEAR(At(seconds, Category::kLinkUp), 2 * 1, 1e-6);
  EXPECT_NEAR(At(seconds, Category::kUnknown), 2 * (4 + 5), 1e-6);
  EXPECT_NEAR(At(seconds, Category::kRedone), 2 * 5, 1e-6);
}

TEST(LedgerTest, AManagerThatWaitedForAJobDoesNotCountThat) {
  Job job(2, false);
  job.at(3600).Waits(true, Ns(3600), Ns(3600));
  const Report report = job.report(3610);
  EXPECT_NEAR(report.rank_s, 2 * 10, 1e-6);
  EXPECT_NEAR(At(report.seconds(), Category::kWaiting), 2 * 10, 1e-6);
}

TEST(LedgerTest, ClocksOfNodesMayBeWrong) {
  for (double off_s : {-1e6, -3.0, 7200.0, 1e8}) {
    Job job(2);
    job.Launch(0, 1, 2);
    for (int64_t step = 0; step < 10; ++step) {
      for (int rank = 0; rank < 2; ++rank) {
        StepFold fold;
        fold.step = step;
        fold.process_id = 1;
        const double begin_s = 3 + static_cast<double>(step);
        fold.start_ns = static_cast<uint64_t>(kUnix + Ns(begin_s + off_s));
        fold.end_ns = static_cast<uint64_t>(kUnix + Ns(begin_s + 1 + off_s));
        if (step > 0) fold.previous_end_ns = fold.start_ns;
        job.at(begin_s + 1.1).Step(rank, fold, Ns(begin_s + 1.1));
      }
    }
    EXPECT_NEAR(job.Of(Category::kProductive), 2 * 10, 2 * 3.2) << off_s;
  }
}

TEST(LedgerTest, AClockThatIsSetBackAYearMovesNothing) {
  const double year_s = 365 * 86400.0;
  Job job(2);
  job.Launch(0, 1, 2);
  job.Steps(0, 9, 3);  // until 13
  job.at(13).Exited({.rank = 0, .failed = true}, Ns(13 - year_s), Ns(13.2));
  job.at(15).Started(1, Ns(15 - year_s), Ns(15));
  for (int rank : {0, 1}) job.at(16).Seen(rank, true, Ns(16), Ns(16));
  for (int64_t step = 10; step < 20; ++step) {
    const double end_s = 8 + static_cast<double>(step);  // from 17 on, reported at once
    for (int rank : {0, 1}) {
      StepFold fold;
      fold.step = step;
      fold.process_id = 2;
      fold.start_ns = static_cast<uint64_t>(kUnix + Ns(end_s - 1 - year_s));
      fold.end_ns = static_cast<uint64_t>(kUnix + Ns(end_s - year_s));
      if (step > 10) fold.previous_end_ns = fold.start_ns;
      job.at(end_s).Step(rank, fold, Ns(end_s));
    }
  }
  const Report report = job.report(27);
  EXPECT_EQ(report.since_ns, kUnix);
  EXPECT_NEAR(report.wall_s(), 27, 1e-6);
  EXPECT_NEAR(At(report.seconds(), Category::kProductive), 2 * 20, 1e-6);
  EXPECT_NEAR(At(report.seconds(), Category::kUnknown), 0, 1e-6);
  ASSERT_EQ(report.incidents.size(), 1u);
  EXPECT_GE(report.incidents[0].time_ns, kUnix);
  EXPECT_LE(report.incidents[0].time_ns, kUnix + Ns(13.2));
}

TEST(LedgerTest, ANodeThatStandsStillForADay) {
  const double day_s = 86400;
  Job job(2);
  job.Launch(0, 1, 2);
  job.Steps(0, 9, 3);  // until 13
  for (double s = 14; s < 13 + day_s; s += 3600) {
    for (int rank : {0, 1}) job.at(s).Suspended(rank, Ns(13), Ns(s), Ns(s));
    job.report(s);
  }
  for (int rank : {0, 1}) job.at(13 + day_s).Suspended(rank, Ns(13), Ns(13 + day_s), Ns(13 + day_s));
  // The launcher's report is a day old.
  job.at(13 + day_s).Started(0, Ns(1), job.now_ns());
  job.Step(10, 13 + day_s, 14 + day_s, 13);
  job.Steps(11, 20, 14 + day_s, 1, true);
  EXPECT_NEAR(job.Of(Category::kSuspended), 2 * day_s, 1e-3);
  EXPECT_NEAR(job.Of(Category::kProductive), 2 * (21 + 0.2), 1e-3);
  EXPECT_TRUE(job.report(25 + day_s).incidents.empty());
}

TEST(LedgerTest, AJobOfOneRank) {
  Job job(1);
  job.Launch(0, 1, 2);
  job.Steps(0, 9, 3);  // until 13
  job.at(13).Exited({.rank = 0, .node = 0, .failed = true, .text = "code 1"}, Ns(13), Ns(13));
  job.Launch(1, 14, 15);
  job.Steps(8, 17, 16, 2);  // until 26
  job.at(26.5).Ended(0, "", Ns(26.5), Ns(26.5));
  const Report report = job.report(60);
  EXPECT_NEAR(report.rank_s, 26.5, 1e-6);
  EXPECT_NEAR(At(report.seconds(), Category::kRedone), 2, 1e-6);
  EXPECT_NEAR(At(report.seconds(), Category::kProductive), 18, 1e-6);
  EXPECT_NEAR(At(report.seconds(), Category::kOther), 0.5, 1e-6);
  ASSERT_EQ(report.incidents.size(), 1u);
  EXPECT_NEAR(Sum(report.incidents[0].seconds), 1 + 1 + 1 + 2, 1e-6);
}

// Time before an incarnation's first step is attributed once the next incarnation has begun.
TEST(LedgerTest, ALifeWithoutAStepKeepsItsLinkUp) {
  Job job(2);
  for (int round = 0; round < 3; ++round) {
    const double begin_s = 6 * round;
    job.Launch(round, begin_s, begin_s + 2);
    if (round == 2) break;
    // The node's proxy is away for a moment, and then the ranks are gone.
    for (int rank : {0, 1}) {
      job.at(begin_s + 3).Seen(rank, false, Ns(begin_s + 3), job.now_ns());
      job.at(begin_s + 4).Seen(rank, true, Ns(begin_s + 4), job.now_ns());
    }
    job.at(begin_s + 5).Exited({.rank = 0, .failed = true, .text = "x"}, Ns(begin_s + 5), job.now_ns());
    for (int rank : {0, 1}) job.at(begin_s + 5.5).Seen(rank, false, Ns(begin_s + 5.5), job.now_ns());
  }
  EXPECT_NEAR(job.Of(Category::kLaunch), 2 * 3 * 2, 1e-6);
  EXPECT_NEAR(job.Of(Category::kLinkUp), 2 * 2 * 3, 1e-6);
  job.Step(0, 15, 16, 0, 3);
  const Report report = job.report(60);
  EXPECT_NEAR(At(report.seconds(), Category::kLaunch), 2 * 3 * 2, 1e-6);
  EXPECT_NEAR(At(report.seconds(), Category::kLinkUp), 2 * (2 * 3 + 1), 1e-6);
  EXPECT_NEAR(At(report.seconds(), Category::kRestart), 2 * 2 * 1, 1e-6);
}

TEST(LedgerTest, UnsizedJobsHaveTheRanksThatAreSeen) {
  Ledger ledger({.now_ns = 0, .unix_offset_ns = kUnix, .launched = true});
  EXPECT_EQ(ledger.report().slots, 0);
  ledger.Started(0, Ns(2), Ns(2));
  for (int rank = 0; rank < 3; ++rank) ledger.Seen(rank, true, Ns(3 + rank), Ns(3 + rank));
  const Report report = ledger.report();
  EXPECT_EQ(report.slots, 3);
  EXPECT_NEAR(report.rank_s, 3 * 5, 1e-6);
  EXPECT_NEAR(Sum(report.seconds()), 3 * 5, 1e-6);
  EXPECT_NEAR(At(report.seconds(), Category::kWaiting), 3 * 2, 1e-6);
}

TEST(LedgerTest, AWorldThatShrinksAndGrows) {
  Ledger ledger({.now_ns = 0, .unix_offset_ns = kUnix, .slots = 4, .launched = true});
  ledger.Started(0, 0, 0);
  ledger.SetSlots(2, Ns(10), Ns(10));
  ledger.SetSlots(6, Ns(20), Ns(20));
  ledger.Advance(Ns(30));
  const Report report = ledger.report();
  EXPECT_EQ(report.slots, 6);
  EXPECT_NEAR(report.rank_s, 4 * 10 + 2 * 10 + 6 * 10, 1e-6);
  EXPECT_NEAR(Sum(report.seconds()), report.rank_s, 1e-6);
}

TEST(LedgerTest, AnotherAttemptOfTheSameJob) {
  Job job(2);
  job.Launch(0, 1, 2);
  job.Steps(0, 9, 3);
  job.at(14).Ended(1, "rank 1 failed", Ns(14), Ns(14), IncidentKind::kEviction);
  job.at(20).Waits(true, Ns(20), Ns(20));
  job.Launch(0, 22, 23);
  job.Steps(8, 12, 24, 2);
  const Report report = job.report(29.1);
  ASSERT_EQ(report.attempts.size(), 2u);
  EXPECT_THAT(report.attempts[0].outcome, HasSubstr("rank 1 failed"));
  EXPECT_EQ(report.attempts[1].until_ns, 0);
  EXPECT_NEAR(At(report.seconds(), Category::kQueue), 2 * 6, 1e-6);
  EXPECT_NEAR(At(report.seconds(), Category::kWaiting), 2 * (1 + 2), 1e-6);
  ASSERT_EQ(report.incidents.size(), 1u);
  EXPECT_EQ(report.incidents[0].kind, IncidentKind::kEviction);
  EXPECT_EQ(report.incidents[0].text, "the job was started again after: code 1: rank 1 failed");
  EXPECT_NEAR(At(report.incidents[0].seconds, Category::kRedone), 2 * 2, 1e-6);
}

TEST(LedgerTest, TheFirstStartIsNoRestartWhereAnotherLedgerStoppedBeforeIt) {
  Job job(2);
  const Report before = job.report(0.3);
  Ledger next({.now_ns = Ns(0.4), .unix_offset_ns = kUnix, .slots = 2, .launched = true});
  next.Resume({.report = before, .dead_ns = Ns(0.1)}, Ns(0.4));
  next.Started(0, Ns(0.5), Ns(0.5));
  EXPECT_TRUE(next.report().incidents.empty());
  next.Started(1, Ns(9), Ns(9));
  ASSERT_EQ(next.report().incidents.size(), 1u);
  EXPECT_EQ(next.report().incidents[0].text, "the ranks were started again");
}

TEST(LedgerTest, GoesOnWhereAnotherStopped) {
  Job job(2);
  job.Launch(0, 1, 2);
  job.Steps(0, 9, 3);  // until 13
  job.at(13.5).Exited({.rank = 1, .failed = true, .text = "signal 9"}, Ns(13.5), Ns(13.5));
  job.Launch(1, 14, 15);
  job.Steps(10, 14, 16, 2);  // until 21
  const Report before = job.report(21.5);
  std::string name;
  absl::StatusOr<Report> kept = ReadJson(RenderJson(before, "default/job"), &name);
  ASSERT_TRUE(kept.ok()) << kept.status();

  // Four seconds later, on another clock.
  const int64_t shift = Ns(1000);
  Ledger next({.now_ns = Ns(25.5) + shift, .unix_offset_ns = kUnix - shift, .slots = 2, .launched = true});
  next.Resume({.report = *kept, .done_until = 14, .round = 1, .dead_ns = Ns(4)}, Ns(25.5) + shift);
  next.Started(1, Ns(14) + shift, Ns(25.6) + shift);  // reported once more
  auto step = [&](int64_t number, double start_s, double end_s) {
    for (int rank = 0; rank < 2; ++rank) {
      StepFold fold;
      fold.step = number;
      fold.process_id = 2000 + static_cast<uint32_t>(rank);
      fold.start_ns = static_cast<uint64_t>(kUnix + Ns(start_s));
      fold.previous_end_ns = fold.start_ns;
      fold.end_ns = static_cast<uint64_t>(kUnix + Ns(end_s));
      next.Step(rank, fold, Ns(26) + shift);
    }
  };
  step(15, 21, 22);  // from the time without a manager: half of it is kept already
  step(16, 22, 23);
  step(19, 25, 26);  // 17 and 18 are lost
  next.Advance(Ns(26) + shift);
  const Report report = next.report();
  EXPECT_NEAR(report.wall_s(), 26, 1e-3);
  EXPECT_NEAR(report.rank_s, 2 * 26, 1e-2);
  EXPECT_NEAR(Sum(report.seconds()), report.rank_s, 1e-6);
  EXPECT_NEAR(At(report.seconds(), Category::kProductive) - At(before.seconds(), Category::kProductive), 2 * 2.5, 1e-3);
  EXPECT_NEAR(At(report.seconds(), Category::kUnmarked), 2 * 2, 1e-3);
  ASSERT_EQ(report.incidents.size(), 1u);
  EXPECT_EQ(report.incidents[0].text, "signal 9");
  for (size_t i = 0; i < kCategories; ++i) EXPECT_GE(report.seconds()[i], before.seconds()[i] - 1e-3);
}

// Ten seconds of two slots, with an incident.
Ledger::Kept FormerAttempt(bool ended) {
  Ledger::Kept kept;
  kept.report.since_ns = kUnix - Ns(100);
  kept.report.until_ns = kUnix - Ns(90);
  kept.report.slots = 2;
  At(kept.report.closed, Category::kProductive) = 20;
  kept.report.attempts = {{4, kUnix - Ns(100), ended ? kUnix - Ns(90) : 0, 2, ended ? "code 1" : ""}};
  kept.report.incidents = {{7, kUnix - Ns(95), IncidentKind::kRankExit, {1}, {}, "rank 1 was killed", {}}};
  kept.done_until = 4;
  kept.ended = ended;
  return kept;
}

TEST(LedgerTest, WhatWasBeforeMayBeKnownLate) {
  Job job(2);
  job.Launch(0, 1, 2);
  job.at(2.5).Exited({.rank = 0, .failed = true, .text = "signal 9"}, Ns(2.5), Ns(2.5));
  job.Launch(1, 2.6, 2.8);
  Ledger::Kept former = FormerAttempt(true);
  former.dead_ns = Ns(93);
  job.at(3).Precede(former, Category::kQueue, Ns(3));
  job.at(3).Precede(former, Category::kQueue, Ns(3));  // only the first call counts
  job.Steps(3, 9, 3);                                  // 3 and 4 had been done
  const Report report = job.report(10.2);
  EXPECT_NEAR(report.rank_s, 20 + 2 * 90 + 2 * 10.2, 1e-6);
  EXPECT_EQ(report.since_ns, kUnix - Ns(100));
  EXPECT_NEAR(At(report.seconds(), Category::kQueue), 2 * 90, 1e-6);
  EXPECT_NEAR(At(report.seconds(), Category::kRedone), 2 * 2, 1e-6);
  EXPECT_NEAR(At(report.seconds(), Category::kProductive), 20 + 2 * 5.2, 1e-6);
  ASSERT_EQ(report.attempts.size(), 2u);
  EXPECT_EQ(report.attempts[0].outcome, "code 1");
  EXPECT_EQ(report.attempts[1].number, 5);
  EXPECT_EQ(report.attempts[1].since_ns, kUnix);
  ASSERT_EQ(report.incidents.size(), 3u);
  EXPECT_THAT(
      (std::vector<uint64_t>{report.incidents[0].number, report.incidents[1].number, report.incidents[2].number}),
      ElementsAre(7, 8, 9));
  EXPECT_EQ(report.incidents[1].kind, IncidentKind::kRequeue);
  EXPECT_NEAR(At(report.incidents[1].seconds, Category::kQueue), 2 * 90, 1e-6);
  EXPECT_NEAR(At(report.incidents[1].seconds, Category::kWaiting), 2 * 1, 1e-6);
  EXPECT_EQ(report.incidents[2].text, "signal 9");
  EXPECT_NEAR(At(report.incidents[2].seconds, Category::kRestart), 2 * 0.1, 1e-6);
}

TEST(LedgerTest, AnAttemptMayGoOnLate) {
  Job job(2);
  job.Launch(0, 1, 2);
  Ledger::Kept former = FormerAttempt(false);
  former.dead_ns = Ns(3 + 4);
  job.at(3).Precede(former, Category::kUnknown, Ns(3));
  const Report report = job.report(3);
  EXPECT_NEAR(At(report.seconds(), Category::kUnknown), 2 * 4, 1e-6);
  ASSERT_EQ(report.attempts.size(), 1u);
  EXPECT_EQ(report.attempts[0].number, 4);
  EXPECT_EQ(report.attempts[0].since_ns, kUnix - Ns(100));
  ASSERT_EQ(report.incidents.size(), 1u);
}

TEST(LedgerTest, ALostAttemptHasThatAsItsOutcome) {
  Job job(2);
  Ledger::Kept former = FormerAttempt(false);
  former.dead_ns = Ns(90);
  job.at(0).Precede(former, Category::kQueue, 0);
  const Report report = job.report(1);
  ASSERT_EQ(report.attempts.size(), 2u);
  EXPECT_EQ(report.attempts[0].outcome, Ledger::kLostLauncher);
  EXPECT_EQ(report.attempts[0].until_ns, kUnix - Ns(90));
}

TEST(LedgerTest, IncidentsStayBoundedOverAttempts) {
  Job job(2);
  job.Launch(0, 0, 0);
  Ledger::Kept former = FormerAttempt(true);
  former.report.incidents.clear();
  for (uint64_t number = 501; number <= 1400; ++number) {
    former.report.incidents.push_back({number, kUnix, IncidentKind::kHang, {}, {}, "", {}});
  }
  former.report.older.counts[static_cast<size_t>(IncidentKind::kHang)] = 500;
  job.at(1).Precede(former, Category::kQueue, Ns(1));
  double at_s = 1;
  for (int round = 1; round <= 300; ++round, at_s += 3) {
    job.at(at_s).Exited({.rank = 0, .failed = true}, Ns(at_s), Ns(at_s));
    job.at(at_s + 1).Started(round, Ns(at_s + 1), Ns(at_s + 1));
  }
  const Report report = job.report(at_s);
  ASSERT_EQ(report.incidents.size(), Report::kMaxIncidents);
  for (size_t i = 0; i < report.incidents.size(); ++i) ASSERT_EQ(report.incidents[i].number, 702 + i);
  EXPECT_EQ(report.incident_counts()[static_cast<size_t>(IncidentKind::kHang)], 1400u);
  EXPECT_EQ(report.incident_counts()[static_cast<size_t>(IncidentKind::kRankExit)], 300u);
}

TEST(LedgerTest, AThousandRestartsStayBounded) {
  Job job(2);
  job.Launch(0, 0, 0);
  double at_s = 1;
  for (int round = 1; round <= 1200; ++round, at_s += 3) {
    job.at(at_s).Exited({.rank = 0, .failed = true}, Ns(at_s), Ns(at_s));
    job.at(at_s + 1).Started(round, Ns(at_s + 1), Ns(at_s + 1));
    if (round % 100 == 0) job.report(at_s + 1.5);
  }
  const Report report = job.report(at_s + 60);
  EXPECT_EQ(report.incidents.size(), Report::kMaxIncidents);
  EXPECT_EQ(report.incident_counts()[static_cast<size_t>(IncidentKind::kRankExit)], 1200u);
  EXPECT_NEAR(At(report.seconds(), Category::kRestart), 2 * 1200, 1e-6);
  const Seconds& older = report.older.seconds[static_cast<size_t>(IncidentKind::kRankExit)];
  EXPECT_NEAR(At(older, Category::kRestart), 2 * 200, 20);
}

TEST(LedgerTest, LaunchIsProvenByWhoeverIsSeen) {
  Job job(2);
  job.at(1).Started(0, Ns(1), Ns(1));
  EXPECT_NEAR(At(job.report(30).seconds(), Category::kLaunch), 2 * 29, 1e-6);  // a process may still appear
  const Report silent = job.report(600);
  EXPECT_NEAR(At(silent.seconds(), Category::kLaunch), 0, 1e-6);
  EXPECT_NEAR(At(silent.seconds(), Category::kUnknown), 2 * 599, 1e-6);
  job.at(601).Seen(0, true, Ns(601), Ns(601));
  const Report seen = job.report(700);
  EXPECT_NEAR(At(seen.seconds(), Category::kLaunch), 600 + 699, 1e-6);  // the other one is still launching
  EXPECT_NEAR(At(seen.seconds(), Category::kLinkUp), 99, 1e-6);
  EXPECT_NEAR(At(seen.seconds(), Category::kUnknown), 0, 1e-6);
}

TEST(LedgerTest, AProcessThatNobodyHasSeenLaunchesForAShortTimeOnly) {
  Job job(1);
  job.at(0).Started(0, 0, 0);
  job.at(500).Exited({.rank = 0, .failed = true}, Ns(500), Ns(500));
  job.at(501).Started(1, Ns(501), Ns(501));
  EXPECT_NEAR(job.Of(Category::kUnknown), 500, 1e-6);
  job.at(510).Seen(0, true, Ns(510), Ns(510));
  const Report report = job.report(560);
  EXPECT_NEAR(At(report.seconds(), Category::kLaunch), 9, 1e-6);
  EXPECT_NEAR(At(report.seconds(), Category::kUnknown), 500, 1e-6);  // no process of the first incarnation was observed
}

TEST(LedgerTest, AProcessThatEndedWellUnseenWasNotLaunching) {
  Job job(1);
  job.at(1).Started(0, Ns(1), Ns(1));
  EXPECT_NEAR(At(job.report(20).seconds(), Category::kLaunch), 19, 1e-6);  // a process may still appear
  job.at(31).Ended(0, "", Ns(31), Ns(31));
  const Report report = job.report(60);
  EXPECT_NEAR(At(report.seconds(), Category::kLaunch), 0, 1e-6);
  EXPECT_NEAR(At(report.seconds(), Category::kUnknown), 30, 1e-6);
  Job seen(1);
  seen.Launch(0, 1, 5);
  seen.at(31).Ended(0, "", Ns(31), Ns(31));
  EXPECT_NEAR(At(seen.report(60).seconds(), Category::kLaunch), 4, 1e-6);
  EXPECT_NEAR(At(seen.report(60).seconds(), Category::kUnknown), 26, 1e-6);
}

TEST(LedgerTest, AProcessThatFailsAtOnceWasLaunching) {
  Job job(1);
  job.at(1).Started(0, Ns(1), Ns(1));
  job.at(4).Exited({.rank = 0, .failed = true, .text = "code 1"}, Ns(4), Ns(4));
  EXPECT_NEAR(At(job.report(60).seconds(), Category::kLaunch), 3, 1e-6);
}

TEST(LedgerTest, ARankThatIsNotSeenAmongOthersIsUnknownInTheEnd) {
  Job job(2);
  job.at(0).Started(0, 0, 0);
  job.at(1).Seen(1, true, Ns(1), Ns(1));
  const Report report = job.report(2 * 3600);
  EXPECT_NEAR(At(report.seconds(), Category::kLaunch), 1800 + 1, 1e-6);
  EXPECT_NEAR(At(report.seconds(), Category::kLinkUp), 600, 1e-6);
  EXPECT_NEAR(At(report.seconds(), Category::kUnknown), 2 * 7200 - 1800 - 1 - 600, 1e-6);
}

TEST(LedgerTest, AJobThatNeverMakesAStepLinksUpForALimitedTime) {
  Job job(2);
  job.Launch(0, 0, 1);
  job.at(500).Exited({.rank = 0, .failed = true}, Ns(500), Ns(500));
  job.Launch(1, 501, 502);
  EXPECT_NEAR(job.Of(Category::kLinkUp), 2 * 499, 1e-6);
  const Report silent = job.report(86400);
  EXPECT_NEAR(At(silent.seconds(), Category::kLinkUp), 2 * (499 + 600), 1e-6);
  EXPECT_NEAR(At(silent.seconds(), Category::kUnknown), 2 * (86400 - 502 - 600), 1e-6);
  EXPECT_NEAR(GoodputOf(silent.seconds()).ratio, 0, 1e-9);
  // The late step proves that there was none before.
  job.Step(0, 86400, 86401, 0, 2);
  EXPECT_NEAR(job.Of(Category::kLinkUp), 2 * (499 + 7200), 1e-6);
}

}  // namespace
}  // namespace taskd::ledger
