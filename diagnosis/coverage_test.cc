#include "diagnosis/coverage.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "diagnosis/stats.h"

namespace taskd::diagnosis {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using Finding = Coverage::Finding;

constexpr double kMs = 1e6;

// What one rank did in one step, ms.
struct Done {
  double period = 100;
  double covered = 0;  // by its operation; 0: it has none
  double forward = 0;
};

class CoverageTest : public ::testing::Test {
 protected:
  void AddRanks(int ranks, const std::vector<std::vector<int>>& groups) {
    for (int r = 0; r < ranks; ++r) layout_.SetPlace(r, {0, "host", r});
    for (size_t g = 0; g < groups.size(); ++g) {
      for (int r : groups[g]) layout_.SetGroup(r, 0, {"pg" + std::to_string(g), "dp", CompressMembers(groups[g])});
    }
    layout_.Rebuild();
  }

  void Step(const std::vector<Done>& ranks) {
    std::vector<std::pair<int, StepFold>> folds;
    for (size_t r = 0; r < ranks.size(); ++r) {
      StepFold fold;
      fold.previous_end_ns = 1'000'000'000;
      fold.end_ns = fold.previous_end_ns + static_cast<uint64_t>(ranks[r].period * kMs);
      fold.covered_ns = static_cast<uint64_t>(ranks[r].covered * kMs);
      fold.forward_ns = fold.forward_own_ns = static_cast<uint64_t>(ranks[r].forward * kMs);
      if (ranks[r].covered > 0) fold.ops.push_back({.op = op_, .count = 1, .duration_ns = fold.covered_ns});
      folds.emplace_back(static_cast<int>(r), fold);
    }
    coverage_.BeginStep();
    std::vector<double> periods;
    for (const auto& [r, fold] : folds) {
      coverage_.Take(layout_, r, fold);
      periods.push_back(static_cast<double>(fold.period_ns()));
    }
    coverage_.Observe(layout_, folds, LowerMedian(periods));
  }

  void Steps(int count, const std::function<std::vector<Done>(int step)>& ranks) {
    for (int step = 0; step < count; ++step) Step(ranks(step));
  }

  Finding Judge() { return coverage_.Judge(layout_).finding; }
  std::string Note() { return coverage_.Judge(layout_).note; }

  Layout layout_;
  Coverage coverage_;
  CommOp op_ = CommOp::kAllReduce;
};

// 0, 1, 2, 3 ms in turn, and 1, 0, 3, 2.
double First(int step) { return step % 4; }
double Second(int step) { return (step * 3 + 1) % 4; }

TEST_F(CoverageTest, OneAllReduceOfEveryRankIsEnough) {
  AddRanks(2, {{0, 1}});
  // Both compute 80 ms and a bit, and whoever is done first waits in the operation.
  auto step = [](int t) {
    const double last = std::max(First(t), Second(t));
    return std::vector<Done>{{80 + last + 5, last - First(t) + 5}, {80 + last + 5, last - Second(t) + 5}};
  };
  Steps(9, step);
  EXPECT_EQ(Judge(), Finding::kTooEarly);
  Steps(1, step);
  EXPECT_EQ(Judge(), Finding::kSeen);
  EXPECT_EQ(Note(), "");
  const Coverage::Result result = coverage_.Judge(layout_);
  ASSERT_EQ(result.ranks.size(), 2u);
  EXPECT_TRUE(result.ranks[0].sufficient);
  EXPECT_NEAR(result.ranks[0].ratio, 5.0 / 88, 0.03);
}

TEST_F(CoverageTest, ForwardTimesThatShowOutsideTheMarksProveThem) {
  AddRanks(2, {{0, 1}});
  Steps(20, [](int t) {
    const double last = std::max(First(t), Second(t));
    return std::vector<Done>{{80 + last + 5, last - First(t) + 5, 20 + First(t)},
                             {80 + last + 5, last - Second(t) + 5, 20 + Second(t)}};
  });
  EXPECT_EQ(Judge(), Finding::kSeen);
}

TEST_F(CoverageTest, WaitsOfEveryThirdStepAreEnoughWhereForwardProvesThem) {
  AddRanks(2, {{0, 1}});
  // Both are disturbed together, by 20 ms; and in every third step one of them by 3 ms.
  const auto step = [](double forward) {
    return [forward](int t) {
      const double both = 80 + 20.0 * (t % 2), a = t % 3 == 0 ? 3 : 0.01, b = t % 12 == 1 ? 3 : 0,
                   last = std::max(a, b);
      return std::vector<Done>{{both + last + 5, last - a + 5, forward * (20 + a)},
                               {both + last + 5, last - b + 5, forward * (20 + b)}};
    };
  };
  Steps(60, step(1));
  EXPECT_EQ(Judge(), Finding::kSeen);
  coverage_.Forget();
  Steps(60, step(0));
  EXPECT_EQ(Judge(), Finding::kNoWaits) << "nothing proves that those are all";
}

TEST_F(CoverageTest, StepsThatKeepPaceWithoutMarksCannotBeJudged) {
  AddRanks(2, {{0, 1}});
  Steps(40, [](int t) {
    const double last = std::max(First(t), Second(t));
    return std::vector<Done>{{85 + last, 0, 20 + First(t)}, {85 + last, 0, 20 + Second(t)}};
  });
  EXPECT_EQ(Judge(), Finding::kNoMarks);
  EXPECT_FALSE(coverage_.Judge(layout_).ranks[0].sufficient);
  EXPECT_THAT(Note(), HasSubstr("if communication is switched off, taskd switch communication=on, else docs/marks.md"));
}

TEST_F(CoverageTest, SaysAtOnceWhoBeginsToMeetOthersAndWhoMeetsThemNoMore) {
  AddRanks(2, {{0, 1}});
  const auto unmarked = [](int) { return std::vector<Done>{{85}, {85}}; };
  const auto marked = [](int t) {
    const double last = std::max(First(t), Second(t));
    return std::vector<Done>{{80 + last + 5, last - First(t) + 5}, {80 + last + 5, last - Second(t) + 5}};
  };
  // Is asked after each step.
  const auto steps = [&](int count, const std::function<std::vector<Done>(int step)>& ranks) {
    Finding finding = Finding::kTooEarly;
    for (int t = 0; t < count; ++t) {
      Step(ranks(t));
      finding = Judge();
    }
    return finding;
  };
  EXPECT_EQ(steps(20, unmarked), Finding::kNoMarks);
  EXPECT_NE(steps(1, marked), Finding::kNoMarks);
  EXPECT_EQ(steps(20, marked), Finding::kSeen);
  EXPECT_NE(steps(63, unmarked), Finding::kNoMarks) << "of 64 steps the first one still had marks";
  EXPECT_EQ(steps(1, unmarked), Finding::kNoMarks);
  const auto first_alone = [](int) { return std::vector<Done>{{85}}; };
  EXPECT_EQ(steps(5, first_alone), Finding::kNoMarks);
  EXPECT_EQ(steps(1, first_alone), Finding::kAlone);
}

TEST_F(CoverageTest, AdviceFollowsTheSwitch) {
  AddRanks(2, {{0, 1}});
  Steps(40, [](int) { return std::vector<Done>{{85}, {85}}; });
  coverage_.SetCommunicationOn(0, true);
  coverage_.SetCommunicationOn(1, true);
  EXPECT_THAT(Note(),
              HasSubstr("communication is switched on, but nothing in which ranks wait for each other is marked "
                        "(of the group pg0)"));
  EXPECT_THAT(Note(), Not(HasSubstr("taskd switch")));
  coverage_.SetCommunicationOn(1, false);
  EXPECT_THAT(Note(), HasSubstr("communication is switched off"));
  EXPECT_THAT(Note(), HasSubstr("taskd switch communication=on"));
  coverage_.Forget();
  Steps(40, [](int) { return std::vector<Done>{{85}, {85}}; });
  EXPECT_THAT(Note(), HasSubstr("communication is switched off")) << "a restart does not turn it on";
}

TEST_F(CoverageTest, OperationsOfSetUpDoNotLast) {
  AddRanks(2, {{0, 1}});
  auto step = [](double covered) { return std::vector<Done>{{85, covered}, {85, 2 * covered}}; };
  Steps(20, [&](int) { return step(5); });
  EXPECT_EQ(Judge(), Finding::kSeen);
  Steps(63, [&](int) { return step(0); });
  EXPECT_EQ(Judge(), Finding::kSeen) << "an operation in 64 steps is one in which ranks meet";
  Steps(1, [&](int) { return step(0); });
  EXPECT_EQ(Judge(), Finding::kNoMarks);
}

TEST_F(CoverageTest, RanksAtTheirOwnPaceDoNotWait) {
  AddRanks(2, {});
  Steps(48, [](int t) { return std::vector<Done>{{100 + First(t)}, {130 + Second(t)}}; });
  EXPECT_EQ(Judge(), Finding::kFree);
  EXPECT_THAT(Note(), HasSubstr("a step of rank 1 takes 1.29 times as long as a usual one"));
}

TEST_F(CoverageTest, RanksThatKeepWithinAStepMayWait) {
  AddRanks(2, {});
  // 60 ms behind after ten steps, and back again: no two steps of 100 ms.
  Steps(60, [](int t) {
    return std::vector<Done>{{t / 10 % 2 == 0 ? 106.0 : 100.0}, {t / 10 % 2 == 0 ? 100.0 : 106.0}};
  });
  EXPECT_EQ(Judge(), Finding::kNoMarks);
}

TEST_F(CoverageTest, StartsOfAsynchronousWorkHoldNoWaits) {
  AddRanks(2, {{0, 1}});
  Steps(40, [](int t) {
    const double last = std::max(First(t), Second(t));
    return std::vector<Done>{{85 + last, 0.02}, {85 + last, 0.03}};
  });
  EXPECT_EQ(Judge(), Finding::kNoWaits);
  EXPECT_THAT(Note(), HasSubstr("(of pg0)"));
}

TEST_F(CoverageTest, ATinyOperationBehindAHiddenWaitIsNotEnough) {
  AddRanks(2, {{0, 1}});
  // The step is as long as its slowest rank, and what is marked is one after all have met: 0.3 to 0.6 ms.
  Steps(40, [](int t) {
    const double last = std::max(First(t), Second(t));
    return std::vector<Done>{{85 + last, 0.3 + 0.1 * (t % 3), 20 + First(t)},
                             {85 + last, 0.6 - 0.1 * (t % 2), 20 + Second(t)}};
  });
  EXPECT_EQ(Judge(), Finding::kAbsorbed);
  EXPECT_THAT(Note(), HasSubstr("what a rank loses in forward or loading"));
}

TEST_F(CoverageTest, WithoutForwardTheStepsOwnUnrestTells) {
  AddRanks(2, {{0, 1}});
  // Steps differ by 20 ms, ranks in their operation by 0.2: those 20 ms are of no rank that could be seen.
  Steps(40, [](int t) { return std::vector<Done>{{85 + 20.0 * (t % 2), 0.3}, {85 + 20.0 * (t % 2), 0.5}}; });
  EXPECT_EQ(Judge(), Finding::kNoWaits);
}

TEST_F(CoverageTest, SetsThatMeetInNothingMarkedAreNamed) {
  AddRanks(4, {{0, 1}, {2, 3}});
  Steps(40, [](int t) {
    return std::vector<Done>{{85, 5 + First(t)}, {85, 5 + Second(t)}, {85, 5 + First(t)}, {85, 5 + Second(t)}};
  });
  EXPECT_EQ(Judge(), Finding::kApart);
  EXPECT_THAT(Note(), HasSubstr("ranks 0, 1 and ranks 2, 3 wait for each other in nothing that is marked"));
}

TEST_F(CoverageTest, ARankWithoutMarksIsNamed) {
  AddRanks(3, {{0, 1, 2}});
  Steps(40, [](int t) { return std::vector<Done>{{85, 5 + First(t)}, {85, 5 + Second(t)}, {85, 0}}; });
  EXPECT_EQ(Judge(), Finding::kNoMarks);
  EXPECT_THAT(Note(), HasSubstr("of rank 2 "));
}

TEST_F(CoverageTest, ABroadcastAloneMakesNobodyWaitForAll) {
  AddRanks(2, {{0, 1}});
  op_ = CommOp::kBroadcast;
  auto step = [](int t) { return std::vector<Done>{{85, 5 + First(t)}, {85, 5 + Second(t)}}; };
  Steps(20, step);
  EXPECT_EQ(Judge(), Finding::kNoMarks);
  op_ = CommOp::kReduce;
  Steps(20, step);
  EXPECT_EQ(Judge(), Finding::kSeen) << "a reduction and a broadcast are an all-reduce";
}

TEST_F(CoverageTest, WhatWasNotRecordedBeforeSaysNothingAboutWhatIs) {
  AddRanks(2, {{0, 1}});
  Steps(200, [](int t) {
    const double last = std::max(First(t), Second(t));
    return std::vector<Done>{{85 + last, 0, 20 + First(t)}, {85 + last, 0, 20 + Second(t)}};
  });
  EXPECT_EQ(Judge(), Finding::kNoMarks);
  Steps(30, [](int t) {
    const double last = std::max(First(t), Second(t));
    return std::vector<Done>{{80 + last + 5, last - First(t) + 5, 20 + First(t)},
                             {80 + last + 5, last - Second(t) + 5, 20 + Second(t)}};
  });
  EXPECT_EQ(Judge(), Finding::kSeen);
}

TEST_F(CoverageTest, OneRankWaitsForNobody) {
  AddRanks(1, {});
  Steps(40, [](int) { return std::vector<Done>{{85}}; });
  EXPECT_EQ(Judge(), Finding::kAlone);
  EXPECT_EQ(Note(), "");
}

TEST_F(CoverageTest, RanksThatLeftAreNotAskedFor) {
  AddRanks(3, {{0, 1, 2}});
  Steps(20, [](int) { return std::vector<Done>{{85, 5}, {85, 7}, {85, 6}}; });
  Steps(20, [](int) { return std::vector<Done>{{85, 5}, {85, 7}}; });
  const Coverage::Result result = coverage_.Judge(layout_);
  EXPECT_EQ(result.finding, Finding::kSeen);
  EXPECT_EQ(result.ranks.size(), 2u);
}

}  // namespace
}  // namespace taskd::diagnosis
