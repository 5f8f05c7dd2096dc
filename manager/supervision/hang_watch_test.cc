#include "manager/supervision/hang_watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace taskd::manager {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Eight ranks that step together, looked at once a second.
class HangWatchTest : public ::testing::Test {
 protected:
  HangWatchTest() {
    for (int rank = 0; rank < 8; ++rank) ranks_.push_back({rank, 1000 + rank, -1, 0, {}});
  }

  std::optional<HangVerdict> Look(int64_t after_s = 1) {
    now_ += seconds(after_s);
    return watch_.Update(ranks_, steps_on_, now_);
  }
  void Mark(SwitchKind kind) {
    for (RankPulse& rank : ranks_) ++rank.marks[static_cast<int>(kind)];
  }
  std::optional<HangVerdict> Step(double step_s = 1) {
    for (RankPulse& rank : ranks_) {
      ++rank.step;
      rank.step_ms = step_s * 1000;
    }
    Mark(SwitchKind::kStep);
    Mark(SwitchKind::kForward);
    return Look(static_cast<int64_t>(step_s));
  }
  void Train(int steps, double step_s = 1) {
    for (int i = 0; i < steps; ++i) ASSERT_FALSE(Step(step_s).has_value()) << i;
  }
  // Seconds of silence until the verdict; -1: none within `most_s`.
  int64_t SecondsToVerdict(int64_t most_s) {
    for (int64_t s = 1; s <= most_s; ++s) {
      if (std::optional<HangVerdict> verdict = Look()) {
        EXPECT_TRUE(verdict->hung);
        return s;
      }
    }
    return -1;
  }

  HangWatch watch_;
  std::vector<RankPulse> ranks_;
  bool steps_on_ = true;
  SteadyTime now_{};
};

TEST_F(HangWatchTest, FloorForShortSteps) {
  Train(10, 1);
  EXPECT_EQ(SecondsToVerdict(100), 30);
  EXPECT_EQ(SecondsToVerdict(10000), -1) << "one verdict a hang";
}

TEST_F(HangWatchTest, FactorTimesTheMedianForLongSteps) {
  Train(10, 20);
  EXPECT_EQ(SecondsToVerdict(1000), 200);
  EXPECT_DOUBLE_EQ(watch_.open()->limit_s, 200);
  EXPECT_THAT(watch_.open()->text, HasSubstr("last step 9"));
  EXPECT_EQ(watch_.open()->ranks, 8);
}

TEST_F(HangWatchTest, TimeInWhichMostRanksWereStoppedDoesNotCount) {
  Train(10);
  const auto stop = [&](size_t ranks) {
    for (size_t i = 0; i < ranks; ++i) ranks_[i].stopped_ms += 1000;
    return Look();
  };
  for (int s = 0; s < 100; ++s) ASSERT_FALSE(stop(8).has_value()) << s;
  ranks_[7].stopped_ms = 0;  // its node has another proxy
  for (int s = 0; s < 100; ++s) ASSERT_FALSE(stop(5).has_value()) << s;
  // They go on, and hang.
  EXPECT_EQ(SecondsToVerdict(100), 30);
  EXPECT_DOUBLE_EQ(watch_.open()->idle_s, 30);
}

TEST_F(HangWatchTest, ForOneThatIsStoppedTheOthersHang) {
  Train(10);
  int64_t silent_s = 0;
  for (std::optional<HangVerdict> verdict; !verdict.has_value(); ++silent_s) {
    ASSERT_LT(silent_s, 100);
    for (size_t i = 0; i < 4; ++i) ranks_[i].stopped_ms += 1000;
    verdict = Look();
  }
  EXPECT_EQ(silent_s, 30);
}

TEST_F(HangWatchTest, OptionsCount) {
  HangOptions options;
  options.factor = 3;
  options.floor = seconds(1);
  watch_.SetOptions(options);
  Train(10, 2);
  EXPECT_EQ(SecondsToVerdict(100), 6);
}

TEST_F(HangWatchTest, NeverWithANegativeFactor) {
  HangOptions options;
  options.factor = -1;
  watch_.SetOptions(options);
  Train(10);
  EXPECT_EQ(SecondsToVerdict(10000), -1);
}

TEST_F(HangWatchTest, GoesOn) {
  Train(10);
  ASSERT_EQ(SecondsToVerdict(100), 30);
  std::optional<HangVerdict> verdict = Step();
  ASSERT_TRUE(verdict.has_value());
  EXPECT_FALSE(verdict->hung);
  EXPECT_EQ(verdict->number, 1u);
  EXPECT_DOUBLE_EQ(verdict->idle_s, 31);
  EXPECT_FALSE(watch_.open().has_value());
  Train(3);
  // One long pause does not change the median.
  EXPECT_EQ(SecondsToVerdict(100), 30);
  EXPECT_EQ(watch_.open()->number, 2u);
}

TEST_F(HangWatchTest, NamesWhoIsBehind) {
  Train(10);
  for (RankPulse& rank : ranks_) {
    if (rank.rank != 5) ++rank.step;
  }
  ASSERT_FALSE(Look().has_value());
  ASSERT_EQ(SecondsToVerdict(100), 30);
  EXPECT_THAT(watch_.open()->behind, ElementsAre(5));
  EXPECT_EQ(watch_.open()->lowest_step, 9);
  EXPECT_EQ(watch_.open()->highest_step, 10);
  EXPECT_THAT(watch_.open()->text, HasSubstr("behind at step 9: rank 5"));
}

TEST_F(HangWatchTest, NobodyIsBehindWhereStepsAreEqual) {
  Train(10);
  ASSERT_EQ(SecondsToVerdict(100), 30);
  EXPECT_THAT(watch_.open()->behind, IsEmpty());
}

TEST_F(HangWatchTest, FirstStepsMayTakeLong) {
  Look();
  Mark(SwitchKind::kForward);
  Look();
  EXPECT_EQ(SecondsToVerdict(1790), -1);
  EXPECT_EQ(SecondsToVerdict(100), 10);
  EXPECT_THAT(watch_.open()->text, HasSubstr("first step"));
}

TEST_F(HangWatchTest, CompilationIsNotHistory) {
  Look();
  Train(1, 600);
  Train(4, 1);
  EXPECT_EQ(SecondsToVerdict(100), 30);
}

TEST_F(HangWatchTest, OneStepIsNotEnough) {
  Look();
  Train(1);
  EXPECT_EQ(SecondsToVerdict(1000), -1);
}

TEST_F(HangWatchTest, NoVerdictOnWhoNeverMarks) { EXPECT_EQ(SecondsToVerdict(10000), -1); }

TEST_F(HangWatchTest, NoVerdictWithoutSteps) {
  Train(10);
  steps_on_ = false;
  EXPECT_EQ(SecondsToVerdict(10000), -1);
  steps_on_ = true;
  EXPECT_EQ(SecondsToVerdict(100), -1) << "as at the start";
  Train(3);
  EXPECT_EQ(SecondsToVerdict(100), 30);
}

TEST_F(HangWatchTest, SwitchedOffInAHang) {
  Train(10);
  ASSERT_EQ(SecondsToVerdict(100), 30);
  steps_on_ = false;
  std::optional<HangVerdict> verdict = Look();
  ASSERT_TRUE(verdict.has_value());
  EXPECT_FALSE(verdict->hung);
}

TEST_F(HangWatchTest, MarksAreASignOfLife) {
  Train(10);
  int64_t hung_after = -1;
  for (int64_t s = 1; s <= 200 && hung_after < 0; ++s) {
    Mark(SwitchKind::kForward);
    if (Look().has_value()) hung_after = s;
  }
  EXPECT_EQ(hung_after, 90);
}

// An evaluation that was taken for a hang once is not the next time.
TEST_F(HangWatchTest, SlowPhasesAreLearned) {
  Train(10);
  for (int64_t s = 1; s <= 200; ++s) {
    Mark(SwitchKind::kForward);
    Look();
  }
  Step();
  Train(10);
  for (int64_t s = 1; s <= 250; ++s) {
    Mark(SwitchKind::kForward);
    ASSERT_FALSE(Look().has_value()) << s;
  }
}

TEST_F(HangWatchTest, ACheckpointMayTakeLonger) {
  Train(10);
  Mark(SwitchKind::kSaveCheckpoint);
  ASSERT_FALSE(Look().has_value());
  EXPECT_EQ(SecondsToVerdict(1000), 90);
}

TEST_F(HangWatchTest, SoMayTheDataLoader) {
  Train(10);
  Mark(SwitchKind::kDataLoader);
  ASSERT_FALSE(Look().has_value());
  EXPECT_EQ(SecondsToVerdict(1000), 90);
}

TEST_F(HangWatchTest, RanksThatEndedAreNotAwaited) {
  Train(10);
  ranks_.clear();
  EXPECT_EQ(SecondsToVerdict(1000), -1);
}

TEST_F(HangWatchTest, TheRestOfTheRanksStillHangs) {
  Train(10);
  ranks_.pop_back();
  EXPECT_EQ(SecondsToVerdict(100), 30);
  EXPECT_EQ(watch_.open()->ranks, 7);
}

// In whatever order: each is compared with what it was itself.
TEST_F(HangWatchTest, RanksComeLaterAndComeBack) {
  const std::vector<RankPulse> all = ranks_;
  ranks_ = {all[2], all[5]};
  Train(10);
  const RankPulse gone = ranks_.front();
  ranks_ = {all[0], ranks_.back(), all[7]};
  ranks_.front().step = ranks_.back().step = gone.step;
  ASSERT_FALSE(Look().has_value());
  EXPECT_EQ(SecondsToVerdict(100), 29) << "who is new has not ended a step";
  ranks_.insert(ranks_.begin() + 1, gone);
  EXPECT_FALSE(Look().has_value()) << "nor has who is back";
  ++ranks_[1].step;
  std::optional<HangVerdict> over = Look();
  ASSERT_TRUE(over.has_value());
  EXPECT_FALSE(over->hung);
}

TEST_F(HangWatchTest, NewProcessesBeginAnew) {
  Train(10);
  ASSERT_EQ(SecondsToVerdict(100), 30);
  std::vector<RankPulse> before = ranks_;
  ranks_.clear();
  EXPECT_FALSE(Look().has_value());
  ranks_ = before;
  for (RankPulse& rank : ranks_) rank = {rank.rank, rank.pid + 100, -1, 0, {}};
  std::optional<HangVerdict> verdict = Look();
  ASSERT_TRUE(verdict.has_value());
  EXPECT_FALSE(verdict->hung);
  EXPECT_EQ(SecondsToVerdict(1000), -1);
  Train(3);
  EXPECT_EQ(SecondsToVerdict(100), 30);
}

TEST_F(HangWatchTest, RestartEndsAHang) {
  Train(10);
  ASSERT_EQ(SecondsToVerdict(100), 30);
  std::optional<HangVerdict> verdict = watch_.Restarted(now_);
  ASSERT_TRUE(verdict.has_value());
  EXPECT_FALSE(verdict->hung);
  EXPECT_FALSE(watch_.Restarted(now_).has_value());
}

TEST_F(HangWatchTest, TimeWithoutProxiesDoesNotCount) {
  Train(10);
  std::vector<RankPulse> ranks = ranks_;
  ranks_.clear();
  Look(1000);
  ranks_ = ranks;
  EXPECT_FALSE(Look().has_value());
  EXPECT_EQ(SecondsToVerdict(20), -1);
}

constexpr int64_t kOdd = int64_t{1} << 62;

TEST_F(HangWatchTest, AStepFarAheadDoesNotCount) {
  Train(10);
  ranks_[3].step = kOdd;
  ASSERT_FALSE(Look().has_value());
  for (int64_t s = 2; s <= 29; ++s) {
    ++ranks_[3].step;
    ASSERT_FALSE(Look().has_value()) << s;
  }
  ++ranks_[3].step;
  ASSERT_TRUE(Look().has_value()) << "that one rank goes on with its numbers is no progress";
  EXPECT_EQ(watch_.open()->highest_step, 9);
  EXPECT_THAT(watch_.open()->behind, IsEmpty());
  EXPECT_THAT(watch_.open()->ahead, ElementsAre(3));
  EXPECT_THAT(watch_.open()->text, HasSubstr("last step 9; not counted, far ahead of the others: rank 3"));
}

TEST_F(HangWatchTest, OddStepsOfAllAreGoodOnes) {
  for (RankPulse& rank : ranks_) rank.step = kOdd;
  Train(10);
  EXPECT_EQ(SecondsToVerdict(100), 30);
  EXPECT_EQ(watch_.open()->highest_step, kOdd + 10);
}

TEST_F(HangWatchTest, OneRankDoesNotEndTheFirstSteps) {
  Look();
  for (int i = 0; i < 10; ++i) {
    ranks_[3].step += i == 5 ? kOdd : 1;
    ++ranks_[3].marks[0];
    ASSERT_FALSE(Look().has_value());
  }
  EXPECT_EQ(SecondsToVerdict(1700), -1) << "the others compile";
}

TEST_F(HangWatchTest, WhereOneRankMarksStepsItIsTheOne) {
  Look();
  for (int i = 0; i < 2000; ++i) {
    ++ranks_[0].step;
    ranks_[0].step_ms = 1000;
    Mark(SwitchKind::kForward);
    ASSERT_FALSE(Look().has_value());
  }
  EXPECT_EQ(SecondsToVerdict(100), 30);
}

TEST_F(HangWatchTest, OneRanksStepTimeIsNotTheJobs) {
  for (int i = 0; i < 20; ++i) {
    for (RankPulse& rank : ranks_) {
      ++rank.step;
      rank.step_ms = rank.rank == 3 ? 1e300 : 1000;
    }
    Mark(SwitchKind::kStep);
    Look();
  }
  EXPECT_EQ(SecondsToVerdict(100), 30);
}

TEST_F(HangWatchTest, ARankThatIsStartedAgainAndAgainGetsItsGraceOnce) {
  Train(10);
  ranks_[3].pid = 5000;
  ASSERT_FALSE(Look().has_value());
  EXPECT_EQ(SecondsToVerdict(1000), -1) << "it loads and compiles, the others wait";
  for (int64_t s = 1001; s <= 1900 && !watch_.open().has_value(); ++s) {
    ++ranks_[3].pid;
    Look();
  }
  EXPECT_TRUE(watch_.open().has_value());
}

// A manager that was started beside a job that runs.
TEST_F(HangWatchTest, LateManagerLearns) {
  for (RankPulse& rank : ranks_) {
    rank.step = 500;
    rank.step_ms = 1000;
    rank.marks[0] = 501;
  }
  Look();
  Train(2);
  EXPECT_EQ(SecondsToVerdict(100), 30);
}

// Marks that cannot be written are marks: the disk is full, or hangs.
TEST_F(HangWatchTest, WhatTheRingsShowCounts) {
  Train(10);
  for (int s = 0; s < 200; ++s) {
    for (RankPulse& rank : ranks_) {
      ++rank.step;
      rank.recorded += 100;
    }
    ASSERT_FALSE(Look().has_value()) << s;
  }
  for (RankPulse& rank : ranks_) rank.recorded += 100;
  EXPECT_FALSE(Look().has_value());
  EXPECT_EQ(SecondsToVerdict(100), 30);
}

// They took less than a second together.
TEST_F(HangWatchTest, ManyFirstStepsBetweenTwoLooksAreEnough) {
  Look();
  for (RankPulse& rank : ranks_) {
    rank.step = 49;
    rank.step_ms = 7;
    rank.marks[static_cast<int>(SwitchKind::kStep)] += 51;
  }
  Look();
  EXPECT_EQ(SecondsToVerdict(2000), 30);
}

class WorkingRanksTest : public HangWatchTest {
 protected:
  // Seconds until the verdict, while the first `ranks` work.
  int64_t SecondsToVerdictWhile(uint64_t RankPulse::*work, size_t ranks, int64_t most_s) {
    for (int64_t s = 1; s <= most_s; ++s) {
      Work(work, ranks);
      if (Look().has_value()) return s;
    }
    return -1;
  }
  void Work(uint64_t RankPulse::*work, size_t ranks) {
    for (size_t i = 0; i < ranks; ++i) ranks_[i].*work += 1000;
  }
};

TEST_F(WorkingRanksTest, WhoWritesIsBusy) {
  Train(10);
  EXPECT_EQ(SecondsToVerdictWhile(&RankPulse::io_busy_ms, 8, 1799), -1);
  EXPECT_EQ(SecondsToVerdict(100), 1) << "the grace of the first steps is over";
  EXPECT_EQ(watch_.WhyNotEnd(now_), "");
}

TEST_F(WorkingRanksTest, AFewThatComputeAreBusy) {
  Train(10);
  EXPECT_EQ(SecondsToVerdictWhile(&RankPulse::cpu_busy_ms, 4, 600), -1);
  EXPECT_EQ(SecondsToVerdict(100), 30) << "it has stopped to";
  EXPECT_EQ(watch_.WhyNotEnd(now_), "");
}

TEST_F(WorkingRanksTest, WhoSpinsInACommunicationIsNot) {
  Train(10);
  for (RankPulse& rank : ranks_) rank.open.kind = OpenPhase::Kind::kCommunication;
  EXPECT_EQ(SecondsToVerdictWhile(&RankPulse::cpu_busy_ms, 2, 600), 30);
  EXPECT_EQ(watch_.WhyNotEnd(now_), "");
}

// They may as well wait for their devices: the verdict comes, the action waits.
TEST_F(WorkingRanksTest, MostThatUseTheCpu) {
  Train(10);
  EXPECT_EQ(SecondsToVerdictWhile(&RankPulse::cpu_busy_ms, 5, 600), 90);
  EXPECT_THAT(watch_.WhyNotEnd(now_), HasSubstr("uses the CPU"));
  EXPECT_EQ(SecondsToVerdictWhile(&RankPulse::cpu_busy_ms, 5, 509), -1);
  EXPECT_NE(watch_.WhyNotEnd(now_), "");
  EXPECT_EQ(SecondsToVerdictWhile(&RankPulse::cpu_busy_ms, 5, 1), -1);
  EXPECT_EQ(watch_.WhyNotEnd(now_), "");
}

TEST_F(WorkingRanksTest, WhoStillMarksIsNotEnded) {
  Train(10);
  int64_t seconds = 0;
  do {
    Mark(SwitchKind::kForward);
    ++seconds;
  } while (!Look().has_value());
  EXPECT_EQ(seconds, 90);
  EXPECT_EQ(watch_.WhyNotEnd(now_), "ranks still make marks");
  Look(30);
  EXPECT_EQ(watch_.WhyNotEnd(now_), "");
}

TEST_F(WorkingRanksTest, NobodyIsEndedAfterTheStepLoop) {
  Train(10);
  for (RankPulse& rank : ranks_) rank.left_loop = true;
  Look();
  EXPECT_EQ(SecondsToVerdict(200), 89);
  EXPECT_EQ(watch_.WhyNotEnd(now_), "all ranks have left their step loops");
  ranks_[3].left_loop = false;
  Look();
  EXPECT_EQ(watch_.WhyNotEnd(now_), "");
  watch_.EndedWell();
  EXPECT_EQ(watch_.WhyNotEnd(now_), "a rank has ended with code 0");
  watch_.Restarted(now_);
  Train(10);
  EXPECT_EQ(SecondsToVerdict(100), 30);
  EXPECT_EQ(watch_.WhyNotEnd(now_), "");
}

TEST_F(WorkingRanksTest, RanksThatMarkNoStepsAreNotWatched) {
  Train(10);
  for (size_t i = 0; i < 5; ++i) ranks_[i].steps_on = false;
  EXPECT_EQ(SecondsToVerdict(1000), -1);
}

}  // namespace
}  // namespace taskd::manager
