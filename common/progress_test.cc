#include "common/progress.h"

#include "gtest/gtest.h"

namespace taskd {
namespace {

using Position = Progress::Position;

constexpr uint64_t kSecond = 1'000'000'000;
constexpr int64_t kOdd = int64_t{1} << 62;

// A job whose ranks end a step a second.
class ProgressTest : public ::testing::Test {
 protected:
  explicit ProgressTest(int ranks = 8) : ranks_(ranks) {}

  Position Say(int rank, int64_t step, uint32_t process = 1) { return progress_.Add(rank, process, step, now_); }
  void Step(int64_t step, uint32_t process = 1, int from = 0) {
    now_ += kSecond;
    for (int rank = from; rank < ranks_; ++rank) Say(rank, step, process);
    progress_.Count(now_);
  }
  void Run(int64_t first, int64_t last, uint32_t process = 1, int from = 0) {
    for (int64_t step = first; step <= last; ++step) Step(step, process, from);
  }

  int ranks_;
  Progress progress_;
  uint64_t now_ = 5 * kSecond;
};

TEST_F(ProgressTest, IsWhatMostHaveReached) {
  EXPECT_EQ(progress_.reached(), Position());
  Run(0, 9);
  EXPECT_EQ(progress_.reached(), (Position{0, 9}));
  for (int rank = 0; rank < 4; ++rank) Say(rank, 10);
  progress_.Count(now_);
  EXPECT_EQ(progress_.reached(), (Position{0, 9})) << "half is not most";
  Say(4, 10);
  progress_.Count(now_);
  EXPECT_EQ(progress_.reached(), (Position{0, 10}));
}

TEST_F(ProgressTest, OneVoiceDecidesNothing) {
  Run(0, 9);
  EXPECT_EQ(Say(3, kOdd), (Position{0, kOdd}));
  progress_.Count(now_);
  EXPECT_EQ(progress_.reached(), (Position{0, 9}));
  EXPECT_TRUE(progress_.IsFarAhead(progress_.at(3)));
  EXPECT_EQ(Say(3, 10), (Position{0, 10})) << "its next name may be a good one";
  EXPECT_FALSE(progress_.IsFarAhead(progress_.at(3)));
}

TEST_F(ProgressTest, AnOddFirstStepIsForgotten) {
  Say(3, kOdd);
  Run(0, 9, 1, 4);
  EXPECT_EQ(progress_.reached(), (Position{0, 9}));
  EXPECT_EQ(Say(3, 10), (Position{0, 10}));
}

TEST_F(ProgressTest, OfTwoItIsWhatBothHave) {
  ranks_ = 2;
  Run(0, 9);
  Say(1, kOdd);
  progress_.Count(now_);
  EXPECT_EQ(progress_.reached(), (Position{0, 9}));
}

TEST_F(ProgressTest, OfOneItIsItsOwn) {
  ranks_ = 1;
  Step(kOdd);
  Step(kOdd + 1);
  EXPECT_EQ(progress_.reached(), (Position{0, kOdd + 1}));
}

TEST_F(ProgressTest, OddNumbersOfEverybodyAreGoodOnes) {
  for (int64_t step = 0; step < 20; ++step) {
    Step(step * 1'000'000'000'000);
    for (int rank = 0; rank < ranks_; ++rank) ASSERT_FALSE(progress_.IsFarAhead(progress_.at(rank)));
  }
  EXPECT_EQ(progress_.reached().step, 19'000'000'000'000);
  Step(kOdd);
  EXPECT_EQ(progress_.reached().step, kOdd) << "all have jumped";
}

TEST_F(ProgressTest, ARestartIsTheNextLifeOnceMostAreThere) {
  Run(0, 60);
  now_ += 5 * kSecond;
  for (int rank = 0; rank < 4; ++rank) EXPECT_EQ(Say(rank, 50, 2), (Position{1, 50}));
  progress_.Count(now_);
  EXPECT_EQ(progress_.reached(), (Position{0, 60}));
  EXPECT_TRUE(progress_.is_restarting());
  for (int rank = 4; rank < 8; ++rank) EXPECT_EQ(Say(rank, 50, 2), (Position{1, 50}));
  progress_.Count(now_);
  EXPECT_EQ(progress_.reached(), (Position{1, 50}));
  EXPECT_FALSE(progress_.is_restarting());
  Run(51, 70, 2);
  EXPECT_EQ(progress_.reached(), (Position{1, 70}));
}

TEST_F(ProgressTest, CountingAnewInEachEpochIsTheNextLife) {
  for (int epoch = 0; epoch < 5; ++epoch) {
    Run(0, 30);
    EXPECT_EQ(progress_.reached(), (Position{epoch, 30}));
  }
}

TEST_F(ProgressTest, OneProcessThatIsStartedAgainComesBack) {
  Run(0, 60);
  EXPECT_EQ(Say(2, 55, 2), (Position{1, 55})) << "the first of all, as it seems";
  for (int64_t step = 61; step <= 75; ++step) {
    now_ += kSecond;
    for (int rank = 0; rank < ranks_; ++rank) Say(rank, step, rank == 2 ? 2 : 1);
  }
  EXPECT_EQ(progress_.at(2), (Position{0, 75}));
  EXPECT_EQ(Say(5, 76, 2), (Position{0, 76})) << "goes on where it was: no new life";
}

TEST_F(ProgressTest, ARankThatStartsAgainAndAgainHasOneLifeMore) {
  Run(0, 60);
  for (uint32_t process = 2; process < 100; ++process) EXPECT_EQ(Say(2, 1, process), (Position{1, 1}));
  Step(61);
  EXPECT_EQ(progress_.reached(), (Position{0, 61}));
}

TEST_F(ProgressTest, WhoIsLeftInALifeThatIsOverJoins) {
  Run(0, 60);
  Run(50, 55, 2, 1);
  EXPECT_EQ(progress_.reached(), (Position{1, 55}));
  for (int64_t step = 61; step <= 63; ++step) EXPECT_EQ(Say(0, step), (Position{0, step})) << "its old process's last";
  EXPECT_EQ(Say(0, 64), (Position{1, 64})) << "it goes on";
  EXPECT_EQ(Say(9, 56), (Position{1, 56})) << "a new rank";
}

TEST_F(ProgressTest, ANewRankOfARestartIsOfTheNextLife) {
  Run(0, 60);
  for (int rank = 0; rank < 3; ++rank) Say(rank, 50, 2);
  progress_.Count(now_);
  EXPECT_EQ(Say(8, 50, 2), (Position{1, 50}));
}

TEST_F(ProgressTest, WhoIsGoneOrSilentHasNoVoice) {
  Run(0, 60);
  for (int rank = 0; rank < 5; ++rank) progress_.Remove(rank);
  for (int rank = 5; rank < 8; ++rank) Say(rank, 61);
  progress_.Count(now_);
  EXPECT_EQ(progress_.reached(), (Position{0, 61}));
  EXPECT_EQ(progress_.voices(), 3u);
  Run(62, 80, 1, 7);
  EXPECT_EQ(progress_.reached(), (Position{0, 80})) << "the others are silent";
}

TEST_F(ProgressTest, SilenceIsLongWhereStepsAre) {
  for (int64_t step = 0; step < 10; ++step) {
    Step(step);
    now_ += 59 * kSecond;
  }
  now_ += 60 * kSecond;
  Say(3, kOdd);
  progress_.Count(now_);
  EXPECT_EQ(progress_.reached(), (Position{0, 9})) << "the others are within a long step";
}

TEST_F(ProgressTest, AVoiceAloneIsOverruled) {
  Run(0, 9);
  now_ += 300 * kSecond;  // the others evaluate
  Say(3, kOdd);
  progress_.Count(now_);
  EXPECT_EQ(progress_.reached().step, kOdd);
  now_ += kSecond;
  Say(0, 10);
  EXPECT_LE(progress_.reached(), (Position{0, 10}));
}

TEST_F(ProgressTest, AFastRankIsNotFarAhead) {
  Run(0, 9);
  Say(3, 9 + kFarAhead);
  EXPECT_FALSE(progress_.IsFarAhead(progress_.at(3)));
  Say(3, 10 + kFarAhead);
  EXPECT_TRUE(progress_.IsFarAhead(progress_.at(3)));
}

TEST(StepOfMostTest, IsTheMedian) {
  EXPECT_EQ(StepOfMost({}), -1);
  EXPECT_EQ(StepOfMost({-1, -1}), -1);
  EXPECT_EQ(StepOfMost({-1, 7}), 7);
  EXPECT_EQ(StepOfMost({7, kOdd}), 7);
  EXPECT_EQ(StepOfMost({7, 8, 8, kOdd}), 8);
  EXPECT_EQ(StepOfMost({7, 8, 8, 8}), 8);
  EXPECT_TRUE(IsFarAhead(INT64_MAX, 8));
  EXPECT_FALSE(IsFarAhead(9, 8));
  EXPECT_FALSE(IsFarAhead(INT64_MAX, -1));
}

}  // namespace
}  // namespace taskd
