#include "ledger/step_book.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace taskd::ledger {
namespace {

constexpr int64_t kSecond = 1'000'000'000;

double Of(const Tally& tally, Category category) { return At(tally.seconds, category); }

// Steps of one second on two ranks.
void AddUsual(StepBook& book, int64_t first, int64_t last) {
  for (int64_t step = first; step <= last; ++step) {
    for (int rank = 0; rank < 2; ++rank) book.Add({.step = step, .rank_s = 1}, step * kSecond);
  }
}

Tally Open(StepBook& book, int64_t now_ns = 100 * kSecond) {
  Tally closed, open;
  book.Close(now_ns, closed);
  EXPECT_EQ(Sum(closed.seconds), 0);
  book.AddOpen(open);
  return open;
}

TEST(StepBookTest, UsualStepsAreProductive) {
  StepBook book;
  AddUsual(book, 0, 9);
  EXPECT_DOUBLE_EQ(Of(Open(book), Category::kProductive), 20);
  EXPECT_DOUBLE_EQ(book.usual_s(), 1);
}

TEST(StepBookTest, AllWaitForTheRankThatLoadsOrSavesLongest) {
  StepBook book;
  AddUsual(book, 0, 9);
  book.Add({.step = 10, .rank_s = 4, .data_s = 2}, 10 * kSecond);
  book.Add({.step = 10, .rank_s = 4, .checkpoint_s = 1}, 10 * kSecond);
  const Tally open = Open(book);
  EXPECT_DOUBLE_EQ(Of(open, Category::kData), 4);
  EXPECT_DOUBLE_EQ(Of(open, Category::kCheckpoint), 2);
  EXPECT_DOUBLE_EQ(Of(open, Category::kProductive), 22);
}

// One rank reports that it loads data for the whole step; the other ranks computed meanwhile.
TEST(StepBookTest, OneRankWaitsForDataNoLongerThanTheOthersHaveWaited) {
  StepBook book;
  AddUsual(book, 0, 9);
  for (int rank = 0; rank < 3; ++rank) book.Add({.rank = rank, .step = 10, .rank_s = 1, .alone_s = 0.9}, 10 * kSecond);
  book.Add({.rank = 3, .step = 10, .rank_s = 1, .data_s = 1, .alone_s = 0}, 10 * kSecond);
  const Tally open = Open(book);
  EXPECT_NEAR(Of(open, Category::kData), 0.4, 1e-9);
  EXPECT_NEAR(Of(open, Category::kProductive), 23.6, 1e-9);
}

TEST(StepBookTest, RanksThatWaitShowHowLongOneSaves) {
  StepBook book;
  AddUsual(book, 0, 9);
  for (int rank = 0; rank < 3; ++rank) book.Add({.rank = rank, .step = 10, .rank_s = 3, .alone_s = 0.9}, 10 * kSecond);
  book.Add({.rank = 3, .step = 10, .rank_s = 3, .checkpoint_s = 2, .alone_s = 0.9}, 10 * kSecond);
  EXPECT_NEAR(Of(Open(book), Category::kCheckpoint), 8, 1e-9);
}

TEST(StepBookTest, LessThanAHundredthIsProductive) {
  StepBook book;
  AddUsual(book, 0, 9);
  book.Add({.step = 10, .rank_s = 1, .data_s = 0.009, .between_s = 0.009}, 10 * kSecond);
  EXPECT_DOUBLE_EQ(Of(Open(book), Category::kProductive), 21);
}

TEST(StepBookTest, WhatIsMarkedBeyondTheStepDoesNotCount) {
  StepBook book;
  AddUsual(book, 0, 9);
  book.Add({.step = 10, .rank_s = 1, .data_s = 5, .checkpoint_s = 5}, 10 * kSecond);
  const Tally open = Open(book);
  EXPECT_DOUBLE_EQ(Of(open, Category::kData), 1);
  EXPECT_DOUBLE_EQ(Sum(open.seconds), 21);
}

TEST(StepBookTest, TheFirstStepIsWarmUpBeyondAUsualOne) {
  StepBook book;
  book.Add({.step = 0, .first = true, .incident = 3, .rank_s = 5}, 0);
  EXPECT_DOUBLE_EQ(Of(Open(book), Category::kWarmUp), 5);  // until a usual step is known
  AddUsual(book, 1, 9);
  const Tally open = Open(book);
  EXPECT_DOUBLE_EQ(Of(open, Category::kWarmUp), 4);
  EXPECT_DOUBLE_EQ(Of(open, Category::kProductive), 19);
  EXPECT_DOUBLE_EQ(At(open.incidents.at(3), Category::kWarmUp), 4);
}

TEST(StepBookTest, RedoneStepsAreThatWhatEverTheyWaitFor) {
  StepBook book;
  AddUsual(book, 0, 9);
  book.Add({.step = 5, .redone = true, .incident = 1, .rank_s = 3, .data_s = 2}, 20 * kSecond);
  book.Add({.step = 4, .first = true, .redone = true, .incident = 1, .rank_s = 3}, 19 * kSecond);
  const Tally open = Open(book);
  EXPECT_DOUBLE_EQ(Of(open, Category::kRedone), 4);
  EXPECT_DOUBLE_EQ(Of(open, Category::kWarmUp), 2);
  EXPECT_DOUBLE_EQ(Sum(open.incidents.at(1)), 6);
}

TEST(StepBookTest, WhatNothingExplainsIsUnknown) {
  StepBook book;
  AddUsual(book, 0, 9);
  book.Add({.step = 10, .rank_s = 3}, 10 * kSecond);  // steps differ
  book.Add({.step = 11, .rank_s = 8}, 11 * kSecond);
  const Tally open = Open(book);
  EXPECT_DOUBLE_EQ(Of(open, Category::kUnknown), 7);
  EXPECT_DOUBLE_EQ(Of(open, Category::kProductive), 24);
}

TEST(StepBookTest, ALongStepWithoutCommunicationMarksIsNoHang) {
  StepBook book;
  AddUsual(book, 0, 9);
  book.Add({.rank = 0, .step = 10, .rank_s = 101, .alone_s = 1}, 10 * kSecond);
  book.Add({.rank = 1, .step = 10, .rank_s = 101}, 10 * kSecond);
  const Tally open = Open(book);
  EXPECT_DOUBLE_EQ(Of(open, Category::kHang), 0);
  EXPECT_DOUBLE_EQ(Of(open, Category::kUnknown), 200);
}

TEST(StepBookTest, TheCostOfAVerdictWhoseMarksHaveEndedIsUnknown) {
  StepBook book;
  book.SetCosts({{.verdict = 1, .open = false, .since_step = 3, .last_step = 5, .unjudged = true, .cost_s = 0.25}});
  AddUsual(book, 0, 9);
  const Tally open = Open(book);
  EXPECT_DOUBLE_EQ(Of(open, Category::kStraggler), 2 * 3 * 0.25);
  EXPECT_DOUBLE_EQ(Of(open, Category::kUnknown), 2 * 4 * 0.25);
  EXPECT_DOUBLE_EQ(Of(open, Category::kProductive), 2 * (10 - 7 * 0.25));
}

TEST(StepBookTest, WhatEveryRankTakesByItselfIsTheUsersCode) {
  StepBook book;
  AddUsual(book, 0, 9);
  book.Add({.step = 10, .rank_s = 9, .alone_s = 8.5}, 10 * kSecond);
  book.Add({.step = 10, .rank_s = 9, .alone_s = 7}, 10 * kSecond);  // this rank waited 2 s of it for the other one
  const Tally open = Open(book);
  EXPECT_DOUBLE_EQ(Of(open, Category::kOther), 12);
  EXPECT_DOUBLE_EQ(Of(open, Category::kUnknown), 0) << "three are no more than a long step";
  EXPECT_DOUBLE_EQ(Of(open, Category::kProductive), 26);
}

TEST(StepBookTest, ALongWaitForOneRankIsAHang) {
  StepBook book;
  AddUsual(book, 0, 9);
  book.Add({.step = 10, .rank_s = 12, .alone_s = 12}, 10 * kSecond);
  book.Add({.step = 10, .rank_s = 12, .alone_s = 1}, 10 * kSecond);
  book.Add({.step = 11, .rank_s = 6, .alone_s = 6}, 10 * kSecond);  // too short for a hang
  book.Add({.step = 11, .rank_s = 6, .alone_s = 1}, 10 * kSecond);
  const Tally open = Open(book);
  EXPECT_DOUBLE_EQ(Of(open, Category::kHang), 22);
  EXPECT_DOUBLE_EQ(Of(open, Category::kOther), 10);
  EXPECT_DOUBLE_EQ(Of(open, Category::kUnknown), 0);
}

TEST(StepBookTest, WhatOneRankDoesWhileTheOthersWaitInABarrierIsTheUsersCode) {
  for (const double length_s : {4.5, 100.0}) {  // a hang takes at least 5 s
    StepBook book;
    AddUsual(book, 0, 9);
    for (int rank = 0; rank < 4; ++rank) {
      const bool evaluates = rank == 2;
      book.Add({.rank = rank,
                .step = 10,
                .rank_s = 1 + length_s,
                .alone_s = evaluates ? 0.9 + length_s : 0.9,
                .barrier_s = evaluates ? 0 : length_s},
               10 * kSecond);
    }
    const Tally open = Open(book);
    EXPECT_NEAR(Of(open, Category::kOther), 4 * length_s, 4 * 0.1 + 1e-9);
    EXPECT_DOUBLE_EQ(Of(open, Category::kHang), 0);
    EXPECT_DOUBLE_EQ(Of(open, Category::kUnknown), 0);
    ASSERT_EQ(open.waited_for.size(), 1u);
    EXPECT_NEAR(open.waited_for.at(2), 4 * length_s, 4 * 0.1 + 1e-9);
  }
}

TEST(StepBookTest, WhatOneRankDoesBetweenStepsNamesIt) {
  StepBook book;
  AddUsual(book, 0, 9);
  book.Add({.rank = 0, .step = 10, .rank_s = 9, .between_s = 8, .alone_s = 8.5, .barrier_s = 0}, 10 * kSecond);
  book.Add({.rank = 1, .step = 10, .rank_s = 9, .between_s = 8, .alone_s = 0.5, .barrier_s = 8}, 10 * kSecond);
  Tally open = Open(book);
  EXPECT_DOUBLE_EQ(Of(open, Category::kOther), 16);
  EXPECT_DOUBLE_EQ(open.waited_for.at(0), 16);
  // Time that all ranks took by themselves names no rank.
  book.Add({.rank = 0, .step = 11, .rank_s = 9, .between_s = 8, .alone_s = 8.5}, 10 * kSecond);
  book.Add({.rank = 1, .step = 11, .rank_s = 9, .between_s = 8, .alone_s = 8.4}, 10 * kSecond);
  open = Open(book);
  EXPECT_DOUBLE_EQ(Of(open, Category::kOther), 32);
  EXPECT_DOUBLE_EQ(open.waited_for.at(0), 16);
}

TEST(StepBookTest, AVerdictHoldsForItsSteps) {
  StepBook book;
  AddUsual(book, 0, 9);
  book.SetCosts({{.verdict = 7, .since_step = 5, .cost_s = 0.25, .incident = 2},
                 {.verdict = 8, .since_step = 5, .cost_s = 0.1, .incident = 3}});
  Tally open = Open(book);
  // only the most expensive verdict: several may explain the same time
  EXPECT_DOUBLE_EQ(Of(open, Category::kStraggler), 2.5);
  EXPECT_DOUBLE_EQ(Sum(open.incidents.at(2)), 2.5);
  EXPECT_FALSE(open.incidents.contains(3));
  book.SetCosts({{.verdict = 7, .open = false, .since_step = 5, .last_step = 6, .cost_s = 0.25, .incident = 2}});
  EXPECT_DOUBLE_EQ(Of(Open(book), Category::kStraggler), 1);
}

TEST(StepBookTest, AVerdictOnTheLoaderIsNotCountedTwice) {
  StepBook book;
  for (int64_t step = 0; step < 10; ++step) book.Add({.step = step, .rank_s = 1, .data_s = 0.2}, step * kSecond);
  book.SetCosts({{.verdict = 7, .since_step = 0, .cost_s = 0.25, .of_data = true, .incident = 2}});
  const Tally open = Open(book);
  EXPECT_DOUBLE_EQ(Of(open, Category::kData), 2);
  EXPECT_NEAR(Of(open, Category::kStraggler), 0.5, 1e-9);
  EXPECT_NEAR(Sum(open.incidents.at(2)), 2.5, 1e-9)
      << "what the ranks waited for it is its cost, wherever it is counted";
  book.SetCosts({{.verdict = 7, .since_step = 5, .cost_s = 0.15, .of_data = true, .incident = 2}});
  EXPECT_DOUBLE_EQ(Of(Open(book), Category::kData), 2);
  EXPECT_NEAR(Sum(Open(book).incidents.at(2)), 5 * 0.15, 1e-9) << "no more than the verdict explains";
}

TEST(StepBookTest, ClosesWhatIsOldAndWhatIsTooMuch) {
  StepBook book;
  AddUsual(book, 0, 9);
  Tally closed;
  book.Close(9 * kSecond + StepBook::kOpenNs - 1, closed);
  EXPECT_DOUBLE_EQ(Sum(closed.seconds), 18);
  book.SetCosts({{.verdict = 7, .since_step = 0, .cost_s = 0.25, .incident = 2}});  // too late for the closed steps
  Tally open;
  book.AddOpen(open);
  EXPECT_DOUBLE_EQ(Of(open, Category::kStraggler), 0.5);
  for (int64_t step = 100; step < 100 + 2 * static_cast<int64_t>(StepBook::kMaxOpen); ++step) {
    book.Add({.step = step, .rank_s = 1}, 20 * kSecond);
  }
  book.Close(20 * kSecond, closed);
  EXPECT_DOUBLE_EQ(Sum(closed.seconds), 20 + static_cast<double>(StepBook::kMaxOpen));
}

TEST(StepBookTest, AFirstStepWaitsForTheUsualOne) {
  StepBook book;
  book.Add({.step = 0, .first = true, .rank_s = 5}, 0);
  Tally closed;
  book.Close(2 * StepBook::kOpenNs, closed);
  EXPECT_EQ(Sum(closed.seconds), 0);
  book.Close(StepBook::kFirstOpenNs, closed);
  EXPECT_DOUBLE_EQ(Of(closed, Category::kWarmUp), 5);
}

}  // namespace
}  // namespace taskd::ledger
