#include "diagnosis/own_time.h"

#include <cmath>
#include <functional>
#include <random>
#include <vector>

#include "gtest/gtest.h"

namespace taskd::diagnosis {
namespace {

constexpr double kArlFactor = 1e7;
constexpr double kMs = 1e6;

uint64_t Ns(double ms) { return static_cast<uint64_t>(std::llround(ms * kMs)); }

// For each rank a normal variable of variance 1 that goes together from step to step.
class Wander {
 public:
  Wander(int ranks, std::mt19937_64& random) : random_(random), values_(static_cast<size_t>(ranks)) {
    for (double& value : values_) value = normal_(random_);
  }
  void Step() {
    for (double& value : values_) {
      value = kCorrelation * value + std::sqrt(1 - kCorrelation * kCorrelation) * normal_(random_);
    }
  }
  double of(int rank) const { return values_[static_cast<size_t>(rank)]; }

 private:
  static constexpr double kCorrelation = 0.9;

  std::mt19937_64& random_;
  std::normal_distribution<double> normal_;
  std::vector<double> values_;
};

// Four tensor-parallel ranks that all do the same. Without noise, so that all numbers can be worked out.
class OwnTimeTest : public ::testing::Test {
 protected:
  static constexpr int kRanks = 4;

  // What one rank does in a step, ms.
  struct Work {
    double own = 100;  // in eight gaps
    double longest_gap = 13;
    double forward = 40;
    double forward_own = 0;  // 0: not known
    double tail = 5;
    double load = 4;
    double save = 0;
    double busy = 0;      // 0: not known
    double cpu_wait = 0;  // likewise
    uint64_t issue_ns = 0;
    uint32_t process_id = 1;
    bool communicates = true;
  };

  OwnTimeTest() { Begin(kRanks); }

  // A job of so many ranks, which communicate in one group.
  void Begin(int ranks, const char* group = "tp") {
    layout_ = Layout();
    for (int r = 0; r < ranks; ++r) {
      layout_.SetPlace(r, {r / 2, "host", r % 2});
      layout_.SetGroup(r, 0, {group, group, {{.first = 0, .stride = 1, .count = ranks}}});
    }
    layout_.Rebuild();
    own_ = OwnTime();
    own_.Regroup(layout_);
  }

  void Step(const std::function<void(int rank, Work& work)>& change = [](int, Work&) {}) {
    std::vector<std::pair<int, StepFold>> folds;
    for (int r = 0; r < layout_.size(); ++r) {
      Work work;
      change(r, work);
      StepFold fold;
      fold.process_id = work.process_id;
      fold.forward_ns = Ns(work.forward);
      fold.forward_own_ns = Ns(work.forward_own);
      fold.forwards = 1;
      fold.tail_ns = Ns(work.tail);
      fold.dataloaders = 1;
      fold.dataloader_own_ns = Ns(work.load);
      fold.checkpoints = work.save > 0 ? 1 : 0;
      fold.checkpoint_ns = Ns(work.save);
      fold.device_busy_ns = Ns(work.busy);
      fold.cpu_wait_ns = Ns(work.cpu_wait);
      fold.issues = work.issue_ns > 0 ? 8 : 0;
      fold.issue_p50_ns = work.issue_ns;
      OpFold op;
      op.op = CommOp::kAllReduce;
      op.count = op.gaps = op.blocking_gaps = 8;
      op.gap_ns = op.blocking_gap_ns = Ns(work.own);
      op.max_gap_ns = Ns(work.longest_gap);
      if (work.communicates) fold.ops.push_back(op);
      folds.emplace_back(r, fold);
    }
    own_.BeginStep(layout_, folds);
    for (const auto& [r, fold] : folds) own_.Take(layout_, r, fold);
    own_.Observe(layout_, folds, step_++, 150 * kMs, kArlFactor);
  }
  void Steps(
      int count, const std::function<void(int rank, Work& work)>& change = [](int, Work&) {}) {
    for (int i = 0; i < count; ++i) Step(change);
  }

  Layout layout_;
  OwnTime own_;
  int64_t step_ = 0;
};

TEST_F(OwnTimeTest, ComparesARankWithItsPeers) {
  Steps(40);
  EXPECT_EQ(own_.mode(), OwnTime::Mode::kBulk);
  const auto slow = [](int rank, Work& work) { work.own = rank == 2 ? 130 : 100; };
  // A rise of ln 1.3 is far above the noise, which is never taken to be below 0.8 %: three such steps are enough.
  Steps(2, slow);
  EXPECT_FALSE(own_.rank(2).own.raised());
  Step(slow);
  const OwnTime::Rank& rank = own_.rank(2);
  EXPECT_TRUE(rank.own.raised());
  EXPECT_EQ(rank.own.onset(), 40);
  EXPECT_NEAR(rank.own.mean(), std::log(1.3), 1e-8);
  EXPECT_NEAR(rank.own.mean_excess(), 30 * kMs, 1);
  EXPECT_EQ(rank.own_ns, 130 * kMs);
  EXPECT_EQ(rank.own_reference_ns, 100 * kMs);
  for (int r : {0, 1, 3}) EXPECT_FALSE(own_.rank(r).own.raised()) << r;
  EXPECT_EQ(own_.classes()[0].present, 4);
  EXPECT_EQ(own_.classes()[0].reference_ns, 100 * kMs);
}

// Forwards that wander, in the first steps of a job: nobody knows yet that they do.
TEST_F(OwnTimeTest, TakesNoWanderingForwardForALongerOne) {
  constexpr int kEight = 8;
  std::mt19937_64 random(1);
  int raised = 0;
  for (int job = 0; job < 100; ++job) {
    Begin(kEight, "dp");
    Wander wander(kEight, random);
    bool any = false;
    for (int i = 0; i < 16; ++i) {
      wander.Step();
      Step([&](int rank, Work& work) { work.forward = 40 * std::exp(0.1 * wander.of(rank)); });
      for (int r = 0; r < kEight; ++r) any = any || own_.rank(r).forward->raised();
    }
    raised += any ? 1 : 0;
  }
  ASSERT_EQ(own_.mode(), OwnTime::Mode::kAll);
  EXPECT_LE(raised, 1) << "of 100 jobs";
}

// Own times that wander, by 20 %: what two steps in a row differ by says little of how far ranks come apart.
TEST_F(OwnTimeTest, TakesNoWanderingForALargeRise) {
  constexpr int kThree = 3;
  std::mt19937_64 random(1);
  int accusable = 0;
  for (int job = 0; job < 100; ++job) {
    Begin(kThree);
    Wander wander(kThree, random);
    bool large = false;
    for (int i = 0; i < 40; ++i) {
      wander.Step();
      Step([&](int rank, Work& work) { work.own = 100 * std::exp(0.2 * wander.of(rank)); });
      for (int r = 0; r < kThree; ++r) {
        const Stream& own = own_.rank(r).own;
        large = large || (own.raised() && own.mean() > std::log(1.4) && own.z() > 4);
      }
    }
    accusable += large ? 1 : 0;
  }
  EXPECT_LE(accusable, 1) << "of 100 jobs";
}

TEST_F(OwnTimeTest, ComparesThoughOnlyEveryThirdStepHasOperations) {
  const auto seldom = [this](int, Work& work) { work.communicates = step_ % 3 == 0; };
  Steps(120, seldom);
  EXPECT_EQ(own_.mode(), OwnTime::Mode::kBulk);
  Steps(9, [&](int rank, Work& work) {
    seldom(rank, work);
    work.own = rank == 2 ? 130 : 100;
  });
  for (int r = 0; r < kRanks; ++r) EXPECT_EQ(own_.rank(r).own.raised(), r == 2) << r;
}

TEST_F(OwnTimeTest, ComparesForwardsOnceOperationsHaveStopped) {
  const auto silent = [](int, Work& work) { work.communicates = false; };
  Steps(40);
  Steps(15, silent);
  EXPECT_EQ(own_.mode(), OwnTime::Mode::kBulk) << "they may come back";
  EXPECT_EQ(own_.idle_steps(), 15);
  Step(silent);
  EXPECT_EQ(own_.mode(), OwnTime::Mode::kForward);
  Step();
  EXPECT_EQ(own_.mode(), OwnTime::Mode::kBulk);
  EXPECT_EQ(own_.idle_steps(), 17) << "what was known of it is forgotten";
  Steps(20);
  EXPECT_EQ(own_.idle_steps(), 0);
}

TEST_F(OwnTimeTest, KeepsAnExponentialMeanOfWhatARankTakes) {
  Step();
  EXPECT_EQ(own_.rank(2).average_own_ns, 100 * kMs) << "the first one as it is";
  Step([](int rank, Work& work) { work.own = rank == 2 ? 120 : 100; });
  EXPECT_NEAR(own_.rank(2).average_own_ns, 103 * kMs, 1) << "100 + 0.15 * 20";
}

TEST_F(OwnTimeTest, ProfilesWhereInTheStepTheTimeLies) {
  const struct {
    Work work;  // of the slow rank: 30 ms longer
    double tail_share, tail_ratio, forward_share, gap_share;
  } cases[] = {
      // 20 of 30 ms after the last operation, where peers have 5 ms; a gap of 15 ms; forward 15 ms longer than it was.
      {{.own = 130, .longest_gap = 15, .forward = 55, .tail = 25}, 2.0 / 3, 5, 0.5, 0.5},
      // A pause of 30 ms in forward.
      {{.own = 130, .longest_gap = 43, .forward = 70, .tail = 5}, 0, 1, 1, 1},
      // All in backward.
      {{.own = 130, .longest_gap = 12, .forward = 40, .tail = 5}, 0, 1, 0, 0.4},
  };
  for (const auto& item : cases) {
    own_ = OwnTime();
    own_.Regroup(layout_);
    Steps(40);
    Steps(5, [&](int rank, Work& work) { work = rank == 2 ? item.work : work; });
    const OwnTime::Rank& rank = own_.rank(2);
    EXPECT_NEAR(rank.look->tail_share, item.tail_share, 1e-9);
    EXPECT_NEAR(rank.look->tail_ratio, item.tail_ratio, 1e-9);
    EXPECT_NEAR(rank.look->forward_share, item.forward_share, 1e-9);
    EXPECT_NEAR(rank.look->longest_gap_share, item.gap_share, 1e-9);
    EXPECT_EQ(own_.rank(0).look->profiled, 0) << "nothing deviates there";
  }
}

TEST_F(OwnTimeTest, ComparesForwardWithThePeersWhereItsOwnTimeIsKnown) {
  // From the first step on: there is no past. All wait for the slow rank in forward.
  for (const double longer : {0.0, 12.0, 30.0}) {
    own_ = OwnTime();
    own_.Regroup(layout_);
    Steps(60, [&](int rank, Work& work) {
      work.own = rank == 2 ? 130 : 100;
      work.forward = 40 + longer;
      work.forward_own = rank == 2 ? 20 + longer : 20;
    });
    EXPECT_NEAR(own_.rank(2).look->forward_share, longer / 30, 1e-9);
  }
}

TEST_F(OwnTimeTest, ComparesHowLongRanksWaitForACpu) {
  for (const double longer : {0.0, 12.0, 30.0, 50.0}) {
    own_ = OwnTime();
    own_.Regroup(layout_);
    Steps(60, [&](int rank, Work& work) {
      work.own = rank == 2 ? 130 : 100;
      work.cpu_wait = rank == 3 ? 0 : rank == 2 ? 4 + longer : 4;  // of the last nothing is known
    });
    // Its peers wait 4 ms while they do 96.
    const double waits = 4 + longer;
    const double share = (waits - 4 * (130 - waits) / 96) / 30;
    EXPECT_NEAR(own_.rank(2).look->cpu_wait.Share().value_or(-1), std::clamp(share, 0.0, 1.0), 1e-9);
    EXPECT_EQ(own_.rank(1).look->cpu_wait.Share(), std::nullopt) << "nothing is longer there";
  }
  for (const int known : {0, 1, 2}) {
    own_ = OwnTime();
    own_.Regroup(layout_);
    Steps(60, [&](int rank, Work& work) {
      work.own = rank == 2 ? 130 : 100;
      work.cpu_wait = rank > 2 - known && rank <= 2 ? 4 : 0;
    });
    EXPECT_EQ(own_.rank(2).look->cpu_wait.Share(), std::nullopt) << "not known of most";
  }
  // A job that gets half of its CPUs: who has 30 % more to do waits 30 % longer, and that is no host's doing.
  own_ = OwnTime();
  own_.Regroup(layout_);
  Steps(60, [&](int rank, Work& work) {
    work.own = rank == 2 ? 130 : 100;
    work.cpu_wait = rank == 2 ? 65 : 50;
  });
  EXPECT_NEAR(own_.rank(2).look->cpu_wait.Share().value_or(-1), 0, 1e-9);
  // Two of three wait for as long: for each of them the third is the one that it is compared with.
  Begin(3);
  Steps(60, [&](int rank, Work& work) {
    work.own = rank == 0 ? 100 : 130;
    work.cpu_wait = rank == 0 ? 4 : 34;
  });
  EXPECT_NEAR(own_.rank(1).look->cpu_wait.Share().value_or(-1), 1, 1e-9);
  EXPECT_NEAR(own_.rank(2).look->cpu_wait.Share().value_or(-1), 1, 1e-9);
}

// Three ranks that compute 100 ms, for which others let them wait up to 60 more.
TEST_F(OwnTimeTest, OfAFewSeesWhatIsSlowWhileItHasACpu) {
  std::mt19937 random(11);
  std::uniform_real_distribution<double> wait(1, 60);
  Begin(3);
  double slower = 0, waits_longer = 0;
  const auto some_steps = [&](int count) {
    Steps(count, [&](int rank, Work& work) {
      work.cpu_wait = wait(random) + (rank == 1 ? waits_longer : 0);
      work.own = 100 + work.cpu_wait + (rank == 2 ? slower : 0);
    });
  };
  some_steps(1000);
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(own_.rank(rank).on_cpu->own.raised(), false) << rank;
    EXPECT_EQ(&own_.rank(rank).slow(), &own_.rank(rank).own) << rank;
  }
  // It is known how fine that is.
  EXPECT_LT(own_.OnCpuFineness(2, 500)->rise, 0.5 * own_.OwnFineness(layout_, 2, 3, 500)->rise);
  EXPECT_TRUE(std::isinf(own_.OnCpuFineness(2, 0)->rise));
  slower = 12;
  some_steps(20);
  const OwnTime::Rank& slow = own_.rank(2);
  EXPECT_FALSE(slow.own.raised()) << "less than what they wait by turns";
  ASSERT_TRUE(slow.on_cpu->own.raised());
  EXPECT_EQ(&slow.slow(), &slow.on_cpu->own);
  EXPECT_NEAR(slow.slow().mean(), std::log(1.12), 0.02);
  // What others do to a rank is no rise there.
  slower = 0;
  some_steps(100);
  waits_longer = 100;
  some_steps(100);
  EXPECT_FALSE(slow.on_cpu->own.raised());
  EXPECT_TRUE(own_.rank(1).own.raised());
  EXPECT_FALSE(own_.rank(1).on_cpu->own.raised());
}

TEST_F(OwnTimeTest, WhatNobodySaysAnyMoreOfCpusIsForgotten) {
  bool said = true;
  const auto some_steps = [&](int count) {
    Steps(count, [&](int rank, Work& work) {
      work.own = rank == 2 ? 130 : 100;
      work.cpu_wait = said || rank == 0 ? 4 : 0;
    });
  };
  for (const int few : {10, 100}) {
    Begin(3);
    said = true;
    some_steps(60);
    EXPECT_TRUE(own_.rank(2).on_cpu->own.raised());
    said = false;
    some_steps(few);
    EXPECT_EQ(own_.rank(2).on_cpu->own.raised(), few < 60);
    EXPECT_TRUE(own_.rank(2).own.raised());
  }
}

TEST_F(OwnTimeTest, WhoWaitsLessThanItsPeersIsNotSlow) {
  Begin(3);
  Steps(100, [&](int rank, Work& work) {
    work.own = rank == 0 ? 110 : 150;
    work.cpu_wait = rank == 0 ? 1 : 60;
  });
  EXPECT_TRUE(own_.rank(0).on_cpu->own.raised()) << "109 ms, the others 90";
  EXPECT_FALSE(own_.rank(0).slow().raised());
}

TEST_F(OwnTimeTest, KnowsNothingOfCpusWhereNobodySaysOrNeedsTo) {
  const struct {
    const char* what;
    int ranks;
    double last_waits, busy;
    bool known;
  } cases[] = {{"four ranks", 4, 4, 0, true},
               {"one of them does not say", 4, 0, 0, false},
               {"devices", 4, 4, 60, false},
               {"five", 5, 4, 0, false}};
  for (const auto& job : cases) {
    Begin(job.ranks);
    Steps(60, [&](int rank, Work& work) {
      work.cpu_wait = rank == job.ranks - 1 ? job.last_waits : 4;
      work.busy = job.busy;
    });
    EXPECT_EQ(own_.rank(1).on_cpu->own.observations() > 0, job.known) << job.what;
    EXPECT_EQ(own_.OnCpuFineness(1, 60).has_value(), job.known) << job.what;
  }
}

TEST_F(OwnTimeTest, ComparesWhatTheDeviceComputes) {
  for (const double longer : {0.0, 12.0, 30.0}) {
    own_ = OwnTime();
    own_.Regroup(layout_);
    Steps(60, [&](int rank, Work& work) {
      work.own = rank == 2 ? 130 : 100;
      work.busy = 90 + (rank == 2 ? longer : 0);
    });
    EXPECT_NEAR(own_.rank(2).look->busy_share, longer / 30, 1e-9);
    EXPECT_GT(own_.rank(2).look->profiled_busy, 0);
    EXPECT_EQ(own_.rank(1).look->profiled_busy, 0) << "nothing deviates there";
  }
}

TEST_F(OwnTimeTest, TellsPausesFromSlownessByWhereTheyLie) {
  const struct {
    double longer, in_forward_even, in_forward_odd;  // of rank 2, ms
    double scatter;
    std::string why;
  } cases[] = {
      {30, 30, 0, 1, "all of it in forward, or nothing"},
      {30, 12, 12, 0, "12 of 30 ms in each step"},
      {30, 0, 0, 0, "always outside of forward"},
      {10, 10, 0, 0, "10 % are too little to tell"},
  };
  for (const auto& item : cases) {
    own_ = OwnTime();
    own_.Regroup(layout_);
    Steps(40);
    Steps(12, [&](int rank, Work& work) {
      if (rank != 2) return;
      work.own += item.longer;
      work.forward += step_ % 2 == 0 ? item.in_forward_even : item.in_forward_odd;
    });
    EXPECT_NEAR(own_.rank(2).look->scatter(), item.scatter, 1e-9) << item.why;
  }
}

TEST_F(OwnTimeTest, FollowsIssueLatencyAsAShareOfWhatItWas) {
  Steps(20, [](int, Work& work) { work.issue_ns = 1000; });
  EXPECT_EQ(own_.rank(1).issue_ratio, 1);
  // Each step takes it 30 % of the way from 1 to 0.1: 0.73 after one, 0.541 after two.
  const auto collapsed = [](int rank, Work& work) { work.issue_ns = rank == 1 ? 100 : 1000; };
  Step(collapsed);
  EXPECT_NEAR(own_.rank(1).issue_ratio, 0.73, 1e-9);
  Step(collapsed);
  EXPECT_NEAR(own_.rank(1).issue_ratio, 0.73 + 0.3 * (100 / own_.rank(1).issue_level_ns - 0.73), 1e-9);
  EXPECT_LT(own_.rank(1).issue_ratio, 0.56);
  EXPECT_EQ(own_.rank(0).issue_ratio, 1);
}

TEST_F(OwnTimeTest, ComparesDataLoading) {
  Steps(40);
  Steps(6, [](int rank, Work& work) { work.load = rank == 1 ? 34 : 4; });
  const OwnTime::Rank& rank = own_.rank(1);
  EXPECT_TRUE(rank.data.raised());
  EXPECT_EQ(rank.data.onset(), 40);
  EXPECT_NEAR(rank.data.mean(), 0.2, 1e-8) << "30 of 150 ms";
  EXPECT_NEAR(rank.data.mean_excess(), 30 * kMs, 1);
  EXPECT_NEAR(rank.data.measured().reference, 4 * kMs, 1);
  EXPECT_FALSE(own_.common_data().raised());
  EXPECT_FALSE(own_.rank(0).data.raised());
}

TEST_F(OwnTimeTest, TakesDataLoadingThatIsSlowEverywhereForTheWholeJobs) {
  Steps(40);
  Steps(6, [](int, Work& work) { work.load = 34; });
  EXPECT_TRUE(own_.common_data().raised());
  EXPECT_NEAR(own_.common_data().measured().reference, 4 * kMs, 0.1 * kMs);
  for (int r = 0; r < kRanks; ++r) EXPECT_FALSE(own_.rank(r).data.raised()) << r;
}

// How often ranks load slowly says how often all may: that the whole job's own steps are left out of it would make it less
// than never.
TEST_F(OwnTimeTest, TakesAFewStepsInWhichAllLoadSlowlyForChance) {
  Steps(60);
  for (int spike = 0; spike < 4; ++spike) {
    Step([](int, Work& work) { work.load = 34; });
    Steps(20);
  }
  EXPECT_FALSE(own_.common_data().raised());
  for (int spike = 0; spike < 6; ++spike) {
    Step([](int, Work& work) { work.load = 34; });
    Steps(5);
  }
  EXPECT_TRUE(own_.common_data().raised());
}

TEST_F(OwnTimeTest, ComparesSavings) {
  // Every tenth step, 1 s; rank 3 takes 2 s. ln 2 is 5.9 sigma of 0.1 above the limit of 0.1: clipped to 4, less the
  // drift of 1, is 3 a saving; the second takes the sum to 6, above 5.5.
  for (int saving = 0; saving < 2; ++saving) {
    EXPECT_FALSE(own_.rank(3).checkpoint->raised());
    Step([](int rank, Work& work) { work.save = rank == 3 ? 2000 : 1000; });
    Steps(9);
  }
  const OwnTime::Rank& rank = own_.rank(3);
  EXPECT_TRUE(rank.checkpoint->raised());
  EXPECT_NEAR(rank.checkpoint->mean(), std::log(2), 0.03) << "as seen from the length of the steps between";
  EXPECT_NEAR(rank.checkpoint->measured().reference, 1000 * kMs, 100);
  EXPECT_NEAR(rank.checkpoint->measured().excess, 1000 * kMs, 100);
  EXPECT_EQ(own_.checkpoint_interval(), 10);
  EXPECT_FALSE(own_.rank(0).checkpoint->raised());
}

TEST_F(OwnTimeTest, TakesNoNoticeOfSavingsThatAreOverAtOnce) {
  for (int saving = 0; saving < 20; ++saving) {
    Step([&](int rank, Work& work) { work.save = rank == 3 ? 3 : 1 + saving % 2; });
    Steps(9);
  }
  for (int r = 0; r < kRanks; ++r) EXPECT_FALSE(own_.rank(r).checkpoint->raised()) << r;
}

TEST_F(OwnTimeTest, MeasuresWhatEverybodyDoesMore) {
  Steps(30);
  EXPECT_NEAR(own_.common_shift(), 0, 1e-9);
  const auto more = [](int, Work& work) { work.own = 120; };
  Step(more);
  EXPECT_NEAR(own_.common_shift(), std::log(1.2), 1e-9);
  own_.RelearnLevels();
  EXPECT_EQ(own_.common_shift(), 0);
  Steps(20, more);
  EXPECT_NEAR(own_.common_shift(), 0, 1e-9) << "that is normal now";
}

TEST_F(OwnTimeTest, MeasuresHowMuchTheSlowestRankChanges) {
  EXPECT_EQ(own_.rotation(), 0) << "nothing is known";
  Steps(10);
  // In turns: as even as can be.
  for (int i = 0; i < 40; ++i) Step([&](int rank, Work& work) { work.own = rank == i % 4 ? 101 : 100; });
  EXPECT_NEAR(own_.rotation(), 1, 1e-9);
  own_ = OwnTime();
  own_.Regroup(layout_);
  Steps(10);
  Steps(40, [](int rank, Work& work) { work.own = rank == 2 ? 101 : 100; });
  EXPECT_NEAR(own_.rotation(), 0, 1e-9) << "always the same one";
}

TEST_F(OwnTimeTest, LearnsAnewWhenTheProcessIsAnotherOne) {
  Steps(40);
  Step([](int rank, Work& work) { work.process_id = rank == 2 ? 7 : 1; });
  EXPECT_EQ(own_.rank(2).own.observations(), 1);
  EXPECT_GT(own_.rank(1).own.observations(), 30);
  own_.ResetRank(1);
  EXPECT_EQ(own_.rank(1).own.observations(), 0);
  EXPECT_EQ(own_.rank(1).own_ns, 0);
}

}  // namespace
}  // namespace taskd::diagnosis
