#include "diagnosis/judge.h"

#include <algorithm>
#include <cmath>
#include <random>

#include "diagnosis/bar.h"
#include "diagnosis/parameters.h"
#include "gtest/gtest.h"

namespace taskd::diagnosis {
namespace {

constexpr double kMs = 1e6;
constexpr int64_t kNow = 100;  // the step that is judged
const Stream::Limits kLimits = {.sigma = 0.01, .dead = 0.01, .most = 0.035, .h = 10, .jump = 0.12};

// Nothing, and from `onset` on a rise of `d` that costs `excess_ms` beyond `reference_ms`: raised in its third step.
Stream Rise(double d, double excess_ms, int64_t onset = 90, double reference_ms = 100) {
  Stream stream;
  for (int64_t step = 60; step < onset; ++step) stream.Observe(step, 0, {0}, kLimits);
  for (int64_t step = onset; step <= kNow; ++step)
    stream.Observe(step, d, {excess_ms * kMs, reference_ms * kMs}, kLimits);
  return stream;
}

// Eight ranks on four nodes, all of one class, each node a tensor-parallel cell and a pipeline of its own. They compute
// 100 ms of a step of 150 ms.
class JudgeTest : public ::testing::Test {
 protected:
  JudgeTest() { Begin(8); }

  void Begin(int ranks) {
    layout_ = Layout();
    own_ = OwnTime();
    std::vector<std::pair<int, StepFold>> folds;
    for (int r = 0; r < ranks; ++r) {
      layout_.SetPlace(r, {r / 2, "host", r % 2});
      layout_.SetGroup(r, 0, {"tp" + std::to_string(r / 2), "tp", CompressMembers({r / 2 * 2, r / 2 * 2 + 1})});
      StepFold fold;
      OpFold op;
      op.op = CommOp::kAllReduce;
      op.count = op.gaps = op.blocking_gaps = 8;
      op.gap_ns = op.blocking_gap_ns = static_cast<uint64_t>(100 * kMs);
      fold.ops.push_back(op);
      folds.emplace_back(r, fold);
    }
    layout_.Rebuild();
    own_.Regroup(layout_);
    Observe(folds);
  }

  void Observe(const std::vector<std::pair<int, StepFold>>& folds) {
    own_.BeginStep(layout_, folds);
    for (const auto& [r, fold] : folds) own_.Take(layout_, r, fold);
    own_.Observe(layout_, folds, kNow, 150 * kMs, 1e7);
  }

  std::vector<Accusation> Judge() {
    Judgement judgement =
        Accuse({.layout = layout_,
                .own = own_,
                .transfers = transfers_,
                .microbatches = {},
                .step = step_,
                .period_ns = 150 * kMs,
                .min_cost_share = 0.01,
                .planned_change = false,
                .first_step_of = [](int64_t) { return 40; },
                .is_present = [this](int rank) { return rank != gone_; },
                .lost_since =
                    [this](int64_t onset) {
                      if (onset <= slow_since_) return Periods::Lost();
                      return Periods::Lost{slow_since_ > 0 ? 0 : lost_ms_ * kMs, error_ms_ * kMs};
                    },
                .time_since = [](int64_t onset) { return static_cast<double>(kNow - onset + 1) * 150 * kMs; },
                .mean_step = [this](int64_t, int64_t) { return step_ms_ * kMs; }},
               costs_);
    decisions_ = std::move(judgement.decisions);
    return std::move(judgement.accusations);
  }

  // Eight tensor-parallel operations of 1 ms, those of node 2 of `ms`.
  void Transfer(int64_t step, double ms) {
    std::vector<std::pair<int, StepFold>> folds;
    for (int r = 0; r < 8; ++r) {
      StepFold fold;
      OpFold op;
      op.op = CommOp::kAllReduce;
      op.size_log2 = 24;
      op.count = 8;
      op.min_duration_ns = static_cast<uint64_t>((r / 2 == 2 ? ms : 1) * kMs);
      fold.ops.push_back(op);
      folds.emplace_back(r, fold);
    }
    for (const auto& [rank, fold] : folds) transfers_.Take(layout_, rank, fold, step);
    transfers_.Observe(step, 1e7);
  }

  // Longer by `d`, which costs `excess_ms` in the last step, too.
  void Slow(int rank, double d, double excess_ms) {
    own_.rank(rank).own = Rise(d, excess_ms);
    own_.rank(rank).actual_own_ns = (100 + excess_ms) * kMs;
  }

  // "rank 4", "node 2": all accusations, in their order.
  std::vector<std::string> Accused() {
    std::vector<std::string> accused;
    for (const Accusation& accusation : Judge()) {
      accused.push_back(std::string(Name(accusation.verdict.scope)) + " " + std::to_string(accusation.verdict.ids[0]));
    }
    return accused;
  }

  Layout layout_;
  OwnTime own_;
  Transfers transfers_;
  int gone_ = -1;  // a rank
  int64_t step_ = kNow;
  double lost_ms_ = 20;
  double step_ms_ = 150;    // mean
  int64_t slow_since_ = 0;  // that, and no steps are known before it; 0: they have lost lost_ms_ lately
  double error_ms_ = 0;
  CostMeans costs_;
  std::vector<Decision> decisions_;  // of the last Judge()
};

TEST_F(JudgeTest, AccusesNobodyWhereNothingIsRaised) { EXPECT_TRUE(Judge().empty()); }

TEST_F(JudgeTest, AccusesTheRankWithEvidenceAndCost) {
  Slow(5, 0.2, 20);
  const std::vector<Accusation> accusations = Judge();
  ASSERT_EQ(accusations.size(), 1u);
  EXPECT_EQ(accusations[0].key, "own:rank:5");
  EXPECT_EQ(accusations[0].concerns, std::set<int>{5});
  EXPECT_TRUE(accusations[0].confirmed);
  const Verdict& verdict = accusations[0].verdict;
  EXPECT_EQ(verdict.cause, Cause::kCompute);
  EXPECT_EQ(verdict.since_step, 90);
  EXPECT_NEAR(verdict.cost_ms_per_step, 20, 1e-9);
  EXPECT_NEAR(verdict.slowdown, 150.0 / 130, 1e-9);
  EXPECT_DOUBLE_EQ(verdict.confidence, 0.99) << "20 standard deviations";
  ASSERT_EQ(verdict.evidence.size(), 1u);
  EXPECT_EQ(verdict.evidence[0].feature, "own_time");
  EXPECT_EQ(verdict.evidence[0].reference, 100);
  EXPECT_NEAR(verdict.evidence[0].value, 120, 1e-6);
  EXPECT_EQ(verdict.evidence[0].peers, 7);
  EXPECT_NEAR(verdict.evidence[0].z, 20, 0.01);
  EXPECT_EQ(verdict.evidence[0].first_step, 90);
  EXPECT_EQ(verdict.evidence[0].last_step, kNow);
}

TEST_F(JudgeTest, BoundsTheModelledCostByWhatStepsHaveLost) {
  Slow(5, 0.2, 20);
  const struct {
    double lost_ms, cost_ms;
  } cases[] = {
      {15, 15},
      {100, 20},    // others have become slower, too: no more than the model says
      {1e294, 20},  // nothing to compare with
      {0, 20},      // the job has become faster for another reason, or was as slow before
  };
  for (const auto& [lost_ms, cost_ms] : cases) {
    lost_ms_ = lost_ms;
    EXPECT_NEAR(Judge()[0].verdict.cost_ms_per_step, cost_ms, 1e-9) << lost_ms;
  }
}

TEST_F(JudgeTest, TellsASlowdownOfTheStepsThatTheCostIsOf) {
  Slow(5, 0.2, 20);
  const Verdict verdict = Judge()[0].verdict;
  EXPECT_NEAR(verdict.slowdown, 150.0 / 130, 1e-9);
  EXPECT_LT(verdict.slowdown_interval[0], verdict.slowdown);
  EXPECT_GT(verdict.slowdown_interval[1], verdict.slowdown);
  step_ms_ = 25;
  costs_ = {};
  EXPECT_NEAR(Judge()[0].verdict.slowdown, 5, 1e-9) << "whatever the median of the last steps is";
  step_ms_ = 20.5;
  costs_ = {};
  const Verdict most = Judge()[0].verdict;
  EXPECT_NEAR(most.slowdown, 41, 1e-6);
  EXPECT_TRUE(std::isinf(most.slowdown_interval[1])) << "the whole step may be its doing";
  step_ms_ = 19;
  costs_ = {};
  const Verdict more = Judge()[0].verdict;
  EXPECT_EQ(more.slowdown, 1) << "that cannot be: it is left out";
  EXPECT_EQ(more.slowdown_interval, (std::array<double, 2>{1, 1}));
}

TEST_F(JudgeTest, TheIntervalHoldsWhatEachMeasurementSays) {
  Slow(5, 0.2, 20);
  const struct {
    double lost_ms, low_ms, high_ms;
    const char* why;
  } cases[] = {
      {20, 19 - 0.4, 21 + 0.4, "both say so: 5 %, and the noise of the rank's steps"},
      {15, 15 - 0.75, 20 + 0.75 + 0.4, "of the steps, and of the rank"},
      {30, 20 - 1 - 0.4, 30 + 1, "another one may be slow, too"},
      {100, 20 - 1 - 0.4, 20 + 1 + 0.4, "that is another one"},
      {2, 2 - 1, 20 + 1 + 0.4, "they may have been as slow before"},
      {1e294, 8 - 1 - 0.4, 20 + 1 + 0.4, "nothing to compare with: the others may be as slow in some steps"},
  };
  for (const auto& [lost_ms, low_ms, high_ms, why] : cases) {
    lost_ms_ = lost_ms;
    const Verdict verdict = Judge()[0].verdict;
    EXPECT_NEAR(verdict.cost_interval_ms[0], low_ms, 0.5) << why;
    EXPECT_NEAR(verdict.cost_interval_ms[1], high_ms, 0.5) << why;
    EXPECT_LE(verdict.cost_interval_ms[0], verdict.cost_ms_per_step) << why;
    EXPECT_GE(verdict.cost_interval_ms[1], verdict.cost_ms_per_step) << why;
  }
}

// Loading that was slow before the first step that could be judged: the steps before that one tell nothing of its cost.
TEST_F(JudgeTest, ComparesNotWithStepsThatWereAsSlow) {
  Stream stream;
  for (int64_t step = 50; step <= kNow; ++step) stream.Observe(step, 0.2, {30 * kMs, 4 * kMs}, kLimits);
  own_.rank(3).data = stream;
  own_.rank(3).data_ns = 34 * kMs;
  slow_since_ = 40;
  const Verdict verdict = Judge()[0].verdict;
  EXPECT_EQ(verdict.since_step, 40);
  EXPECT_NEAR(verdict.cost_ms_per_step, 30, 1e-6);
  EXPECT_GT(verdict.cost_interval_ms[0], 10);
}

TEST_F(JudgeTest, WhatStepsHaveLostCountsAsFarAsItIsKnown) {
  Slow(5, 0.2, 20);
  lost_ms_ = 15;
  error_ms_ = 3;
  EXPECT_NEAR(Judge()[0].verdict.cost_ms_per_step, 18, 1e-9);
  error_ms_ = 30;
  EXPECT_NEAR(Judge()[0].verdict.cost_ms_per_step, 20, 1e-9);
}

TEST_F(JudgeTest, CostsNothingInAStepInWhichOthersAreAsSlow) {
  Slow(5, 0.2, 20);
  EXPECT_NEAR(Judge()[0].verdict.cost_ms_per_step, 20, 1e-9);
  ++step_;
  own_.rank(2).actual_own_ns = 120 * kMs;  // it has more work in this step
  EXPECT_NEAR(Judge()[0].verdict.cost_ms_per_step, 20 * 7.0 / 8, 1e-9)
      << "one of eight, the six at the begin among them";
}

TEST_F(JudgeTest, AForwardThatTakesLessTimeCostsNothing) {
  std::vector<std::pair<int, StepFold>> folds(8);
  for (int r = 0; r < 8; ++r) {
    folds[static_cast<size_t>(r)].first = r;
    folds[static_cast<size_t>(r)].second.covered_ns = 1;  // communication, but none that all wait in
  }
  Observe(folds);
  ASSERT_EQ(own_.mode(), OwnTime::Mode::kAll);
  own_.rank(5).forward.Begin() = Rise(0.2, -20);  // longer than its peers', and all became shorter
  lost_ms_ = 10;
  const std::vector<Accusation> accusations = Judge();
  ASSERT_EQ(accusations.size(), 1u);
  EXPECT_EQ(accusations[0].verdict.cost_ms_per_step, 0);
}

TEST_F(JudgeTest, ConfirmsOnlyWhatIsWorthIt) {
  Slow(5, 0.2, 1.6);
  EXPECT_TRUE(Judge()[0].confirmed) << "1 % of 150 ms are 1.5 ms";
  costs_ = {};
  Slow(5, 0.2, 1.4);
  EXPECT_FALSE(Judge()[0].confirmed);
  // A good step: the rise may be over. That keeps a verdict open, but opens none.
  costs_ = {};
  Slow(5, 0.2, 20);
  own_.rank(5).own.Observe(kNow, 0, {0}, kLimits);
  EXPECT_FALSE(Judge()[0].confirmed);
}

TEST_F(JudgeTest, SaysWhichRuleHoldsWhatIsNoVerdict) {
  const auto decided = [&]() -> Held {
    costs_ = {};
    Judge();
    EXPECT_EQ(decisions_.size(), 1u);
    if (decisions_.size() != 1) return {};
    EXPECT_EQ(decisions_[0].detector, Detector::kOwnTime);
    EXPECT_EQ(decisions_[0].ranks, std::vector<int>{5});
    return decisions_[0].held;
  };
  Slow(5, 0.2, 20);
  EXPECT_FALSE(decided().holds());
  EXPECT_EQ(decisions_[0].key, "own:rank:5");
  Slow(5, 0.2, 1.4);
  EXPECT_EQ(decided().veto, Veto::kCost);
  EXPECT_NEAR(decided().has, 1.4 * kMs, 1) << "ns of each step";
  EXPECT_NEAR(decided().needs, 1.5 * kMs, 1) << "1 % of 150 ms";
  Slow(5, 0.2, 20);
  own_.rank(5).own.Observe(kNow, 0, {0}, kLimits);
  EXPECT_EQ(decided().veto, Veto::kFading);
}

TEST_F(JudgeTest, OfAFewSaysHowLongARiseHasToLast) {
  Begin(2);
  Slow(1, 0.2, 20);
  Judge();
  ASSERT_EQ(decisions_.size(), 1u);
  EXPECT_EQ(decisions_[0].held.veto, Veto::kDuration);
  EXPECT_DOUBLE_EQ(decisions_[0].held.has, 11 * 150 * kMs) << "steps 90 to 100";
  EXPECT_DOUBLE_EQ(decisions_[0].held.needs, parameters.small_ns);
}

TEST_F(JudgeTest, WaitsForTheOtherRanksOfANode) {
  own_.rank(4).own = Rise(0.2, 20, 98);
  own_.rank(5).own = Rise(0.2, 20, 99);
  EXPECT_TRUE(Judge().empty());
  ASSERT_EQ(decisions_.size(), 1u);
  EXPECT_EQ(decisions_[0].ranks, std::vector<int>{4});
  EXPECT_EQ(decisions_[0].held.veto, Veto::kAttribution);
  EXPECT_EQ(decisions_[0].key, "");
}

TEST_F(JudgeTest, CostsEachOfTwoEquallySlowOnesAsIfItWereAlone) {
  Slow(1, 0.2, 20);
  Slow(5, 0.3, 30);
  lost_ms_ = 100;
  const std::vector<Accusation> accusations = Judge();
  ASSERT_EQ(accusations.size(), 2u);
  EXPECT_EQ(accusations[0].verdict.ids, std::vector<int>{5}) << "the one that loses more comes first";
  EXPECT_NEAR(accusations[0].verdict.cost_ms_per_step, 30, 1e-9);
  EXPECT_NEAR(accusations[1].verdict.cost_ms_per_step, 20, 1e-9);
}

TEST_F(JudgeTest, AccusesANodeWhenItsRanksDeviateAlike) {
  Stream nothing;
  const Stream old = Rise(0.2, 20), young = Rise(0.2, 20, 98), weak = Rise(0.15, 15), strong = Rise(0.6, 60);
  // In its second step: more than a third of the threshold, and not raised.
  const Stream rising = Rise(0.2, 20, 99);
  ASSERT_TRUE(young.raised() && !rising.raised());
  const struct {
    std::vector<std::pair<int, Stream>> streams;
    std::vector<std::string> accused;
    std::string why;
  } cases[] = {
      {{{4, old}}, {"rank 4"}, "one of two"},
      {{{4, old}, {5, old}}, {"node 2"}, "both"},
      {{{4, old}, {6, old}}, {"rank 4", "rank 6"}, "of different nodes"},
      {{{4, strong}, {5, weak}}, {"rank 4", "rank 5"}, "0.15 is not a third of 0.6"},
      {{{4, old}, {5, weak}, {1, strong}}, {"rank 1", "node 2"}, "by what they lose"},
      {{{4, young}, {5, rising}}, {}, "raised in this step, and its neighbour is on the way: it may be the node"},
      {{{4, old}, {5, rising}}, {"rank 4"}, "its neighbour has had its time"},
  };
  for (const auto& item : cases) {
    for (int r = 0; r < 8; ++r) own_.rank(r).own = nothing;
    for (const auto& [rank, stream] : item.streams) own_.rank(rank).own = stream;
    EXPECT_EQ(Accused(), item.accused) << item.why;
  }
}

TEST_F(JudgeTest, AccusesNobodyWhoIsGone) {
  const struct {
    const char* what;
    Stream& stream;
  } features[] = {
      {"own time", own_.rank(5).own}, {"data loading", own_.rank(5).data}, {"saving", own_.rank(5).checkpoint.Begin()}};
  for (const int node : {2, -1}) {
    layout_.SetPlace(5, {node, "host", 1});
    layout_.Rebuild();
    for (const auto& feature : features) {
      feature.stream = Rise(0.2, 20);
      gone_ = -1;
      EXPECT_EQ(Accused(), std::vector<std::string>{"rank 5"}) << feature.what << ", node " << node;
      gone_ = 5;
      EXPECT_TRUE(Accused().empty()) << feature.what << ", node " << node;
      feature.stream = Stream();
    }
  }
}

// Four ranks whose steps differ by 10 %, 150 ms long, one of which is slower since `onset`: by 30 %.
TEST_F(JudgeTest, OfAFewARiseLastsForLessWhereARankHasItWhileItHasACpu) {
  Begin(4);
  Stream::Limits limits = {.dead = 0.01, .most = 0.035, .h = ThresholdsFor(1e9)};
  limits.SetNoise(0.1, {0.1F, 0.1F, 0.1F, 0, 0});
  const auto follow = [&](Stream& stream, int64_t onset) {
    stream = Stream();
    for (int64_t step = 0; step <= kNow; ++step) {
      stream.Observe(step, step < onset ? 0 : 0.3, {step < onset ? 0 : 30 * kMs, 100 * kMs}, limits);
    }
  };
  OwnTime::Rank& rank = own_.rank(1);
  rank.actual_own_ns = 130 * kMs;
  follow(rank.own, kNow - 30);
  EXPECT_FALSE(Judge().at(0).confirmed) << "4.5 s: others may be in the way";
  follow(rank.on_cpu.Begin().own, kNow - 30);
  EXPECT_TRUE(Judge().at(0).confirmed);
  follow(rank.own, kNow - 20);
  EXPECT_EQ(Judge().at(0).verdict.since_step, kNow - 30) << "others have hidden it at first";
  // And still do.
  rank.own = Stream();
  const Accusation hidden = Judge().at(0);
  EXPECT_TRUE(hidden.confirmed);
  EXPECT_EQ(hidden.verdict.since_step, kNow - 30);
  ASSERT_EQ(hidden.verdict.evidence.size(), 1u);
  EXPECT_NEAR(hidden.verdict.evidence[0].value, 130, 1e-6) << "of all own time";
  follow(rank.on_cpu.Begin().own, kNow - 20);
  EXPECT_TRUE(Judge().at(0).confirmed) << "3.2 s";
  follow(rank.on_cpu.Begin().own, kNow - 18);
  EXPECT_FALSE(Judge().at(0).confirmed) << "2.9 s";
}

TEST_F(JudgeTest, DatesWhatWasThereFromTheStartToTheFirstStep) {
  Stream stream;
  for (int64_t step = 90; step <= kNow; ++step) stream.Observe(step, 0.2, {20 * kMs}, kLimits);
  own_.rank(5).own = stream;
  EXPECT_EQ(Judge()[0].verdict.since_step, 40);
}

TEST_F(JudgeTest, ChoosesTheCauseByHowTheDeviationLooks) {
  // Raised, and then in turns 0.12 and 0.28: a mean distance of 0.08 of 0.2, about 40 %.
  Stream uneven = Rise(0.2, 20, 60);
  for (int64_t step = kNow + 1; step <= kNow + 60; ++step) {
    uneven.Observe(step, step % 2 == 0 ? 0.12 : 0.28, {20 * kMs}, kLimits);
  }
  ASSERT_TRUE(uneven.raised());
  ASSERT_GT(uneven.spread() / uneven.mean(), 0.25);
  const Stream even = Rise(0.2, 20);
  // A spike now and then.
  Stream spikes;
  for (int64_t step = 1; step <= kNow; ++step) {
    spikes.Observe(step, step % 4 == 0 ? 0.5 : 0, {step % 4 == 0 ? 80 * kMs : 0}, kLimits);
  }
  ASSERT_TRUE(spikes.intermittent());
  const struct {
    const Stream& stream;
    double issue_ratio, tail_ratio, tail_share, forward_share, longest_gap_share;
    bool scattered;  // by turns all in forward and nothing
    Cause cause;
    std::string why;
    bool or_gc = false;
  } cases[] = {
      {even, 1, 1.2, 0.1, 0.3, 0.1, false, Cause::kCompute, "slower in everything"},
      {even, 0.1, 1.2, 0.1, 0.3, 0.1, false, Cause::kHost, "the device waits for the host"},
      {even, 0.3, 1.2, 0.1, 0.3, 0.1, false, Cause::kCompute, "a rank's issue latency has to collapse"},
      {even, 1, 1.5, 0.3, 0.3, 0.1, false, Cause::kMemory, "the optimizer is longer than exp(0.2) * 1.15 = 1.40 times"},
      {even, 1, 1.5, 0.1, 0.3, 0.1, false, Cause::kCompute, "but it is a small part of the excess"},
      {even, 1, 1.3, 0.3, 0.3, 0.1, false, Cause::kCompute, "it is longer as everything is"},
      {uneven, 1, 1, 0, 0.7, 0.1, false, Cause::kGc, "in forward alone, and by turns long and short"},
      {even, 1, 1, 0, 0.7, 0.1, false, Cause::kCompute, "in forward, but evenly: pauses of one length, or none", true},
      {uneven, 1, 1, 0, 0.55, 0.1, false, Cause::kGc, "mostly in forward, and by turns long and short"},
      {uneven, 1, 1, 0, 0.45, 0.6, false, Cause::kCompute, "uneven, and more in forward than elsewhere", true},
      {uneven, 1, 1, 0, 0.3, 0.6, false, Cause::kCompute, "uneven, but not in forward"},
      {spikes, 1, 1, 0, 0.1, 0.6, false, Cause::kGc, "comes and goes, in one gap"},
      {spikes, 1, 1, 0, 0.7, 0.1, false, Cause::kGc, "comes and goes, in forward"},
      {spikes, 1, 1, 0, 0.5, 0.1, true, Cause::kGc, "comes and goes, now in forward and now elsewhere"},
      {spikes, 1, 1, 0, 0.5, 0.1, false, Cause::kCompute, "comes and goes, in forward as much as elsewhere"},
      {uneven, 1, 1, 0, 0.5, 0.1, true, Cause::kGc, "lasts, now in forward and now elsewhere"},
      {even, 1, 1, 0, 0.5, 0.1, true, Cause::kCompute, "lasts, and its length does not vary"},
      {spikes, 1, 9, 0.9, 0.1, 0.1, false, Cause::kCompute, "memory is not slow now and then"},
  };
  for (const auto& item : cases) {
    OwnTime::Rank& rank = own_.rank(5);
    rank.own = item.stream;
    rank.issue_ratio = item.issue_ratio;
    OwnTime::Look& look = rank.look.Begin();
    look.tail_ratio = item.tail_ratio;
    look.tail_share = item.tail_share;
    look.forward_share = item.forward_share;
    look.deviating = 20;
    look.large = 20;
    look.large_share = 0.5;
    look.large_square = item.scattered ? 0.5 : 0.26;
    look.longest_gap_share = item.longest_gap_share;
    const std::vector<Accusation> accusations = Judge();
    ASSERT_EQ(accusations.size(), 1u) << item.why;
    const Verdict& verdict = accusations[0].verdict;
    EXPECT_EQ(verdict.cause, item.cause) << item.why;
    ASSERT_EQ(verdict.alternatives.size(), item.or_gc ? 1u : 0u) << item.why;
    if (!item.or_gc) continue;
    EXPECT_EQ(verdict.alternatives[0].cause, Cause::kGc) << item.why;
    EXPECT_EQ(verdict.alternatives[0].ids, verdict.ids) << item.why;
    EXPECT_LE(verdict.confidence, 0.7) << item.why;
  }
}

TEST_F(JudgeTest, TellsASlowDeviceFromOneThatWaits) {
  OwnTime::Rank& rank = own_.rank(5);
  rank.own = Rise(0.2, 20);
  OwnTime::Look& look = rank.look.Begin();
  for (const auto& [busy, cause] : {std::pair(0.4, Cause::kHost), std::pair(0.6, Cause::kCompute)}) {
    look.profiled_busy = 20;
    look.busy_share = busy;
    EXPECT_EQ(Judge()[0].verdict.cause, cause) << busy;
  }
  look.profiled_busy = 0;
  look.busy_share = 0;
  EXPECT_EQ(Judge()[0].verdict.cause, Cause::kCompute) << "nothing is known of the device";
}

TEST_F(JudgeTest, TellsOneThatComputesFromOneWhoseCpuOthersHave) {
  OwnTime::Rank& rank = own_.rank(5);
  rank.own = Rise(0.2, 20);
  OwnTime::Look& look = rank.look.Begin();
  for (const auto& [waits, ms, cause] :
       {std::tuple(20, 9.0, Cause::kCompute), {20, 11.0, Cause::kHost}, {2, 11.0, Cause::kCompute}}) {
    look.cpu_wait.wait.Begin({90, kNow, waits, ms * kMs, 3 * kMs});
    look.cpu_wait.own.Begin({90, kNow, waits, 20 * kMs, 100 * kMs});
    const Verdict verdict = Judge()[0].verdict;
    EXPECT_EQ(verdict.cause, cause) << waits << " steps, " << ms << " ms";
    ASSERT_EQ(verdict.evidence.size(), cause == Cause::kHost ? 2u : 1u);
    EXPECT_EQ(verdict.evidence[0].feature, "own_time");
    if (cause != Cause::kHost) continue;
    EXPECT_EQ(verdict.evidence[1].feature, "cpu_wait");
    EXPECT_EQ(verdict.evidence[1].value, 14);
    EXPECT_EQ(verdict.evidence[1].reference, 3);
    EXPECT_EQ(verdict.evidence[1].peers, 7);
  }
}

TEST_F(JudgeTest, BlamesTheNodeWhoseRanksTheHostHoldsUp) {
  // The slowest one holds the other up, which so is not slow itself; but the issue latency of both has fallen.
  Slow(4, 0.2, 20);
  own_.rank(4).issue_ratio = own_.rank(5).issue_ratio = 0.5;
  ASSERT_EQ(Accused(), std::vector<std::string>{"node 2"});
  EXPECT_EQ(Judge()[0].verdict.cause, Cause::kHost);
  // In half of the job it is no node's matter.
  own_.rank(0).issue_ratio = own_.rank(1).issue_ratio = 0.5;
  EXPECT_EQ(Accused(), std::vector<std::string>{"rank 4"});
}

TEST_F(JudgeTest, AccusesDataLoading) {
  own_.rank(3).data = Rise(0.2, 30, 90, 4);
  const std::vector<Accusation> accusations = Judge();
  ASSERT_EQ(accusations.size(), 1u);
  EXPECT_EQ(accusations[0].key, "dataloader:rank:3");
  const Verdict& verdict = accusations[0].verdict;
  EXPECT_NEAR(verdict.cost_ms_per_step, 20, 1e-9) << "30 ms, of which steps have lost 20";
  EXPECT_EQ(verdict.evidence[0].feature, "dataloader");
  EXPECT_EQ(verdict.evidence[0].reference, 4);
  EXPECT_NEAR(verdict.evidence[0].value, 34, 1e-9) << "as it was measured, whatever steps have lost";
  EXPECT_EQ(verdict.evidence[0].peers, 7);
}

TEST_F(JudgeTest, LoadingCostsNothingInAStepInWhichOthersAreAsSlow) {
  own_.rank(3).data = Rise(0.2, 30, 90, 4);
  own_.rank(3).data_ns = 34 * kMs;
  lost_ms_ = 100;
  EXPECT_NEAR(Judge()[0].verdict.cost_ms_per_step, 30, 1e-6);
  ++step_;
  own_.rank(6).actual_own_ns = 134 * kMs;
  EXPECT_NEAR(Judge()[0].verdict.cost_ms_per_step, 30 * 7.0 / 8, 1e-6)
      << "one of eight, the six at the begin among them";
}

TEST_F(JudgeTest, TakesWhatASlowProcessLoadsAndSavesSlowlyForNoSecondFault) {
  const Stream nothing = Rise(0, 0);
  for (int r = 0; r < 8; ++r) own_.rank(r).data = own_.rank(r).checkpoint.Begin() = nothing;
  Slow(3, 0.2, 20);
  const struct {
    double second_ms;
    bool confirmed;
  } cases[] = {{4.9, false}, {5.1, true}};  // a quarter of 20 ms
  for (const auto& [second_ms, confirmed] : cases) {
    costs_ = {};
    own_.rank(3).data = Rise(0.2, second_ms);
    own_.rank(3).data_ns = (100 + second_ms) * kMs;
    own_.rank(3).checkpoint.Begin() = Rise(std::log(2), 20 * second_ms);  // every twentieth step
    const std::vector<Accusation> accusations = Judge();
    ASSERT_EQ(accusations.size(), 3u);
    EXPECT_TRUE(accusations[0].confirmed);
    EXPECT_EQ(accusations[1].confirmed, confirmed) << "loading, " << second_ms;
    EXPECT_EQ(accusations[2].confirmed, confirmed) << "saving, " << second_ms;
  }
  own_.rank(4).data = Rise(0.2, 4);
  EXPECT_TRUE(Judge()[2].confirmed) << "of another rank";
}

TEST_F(JudgeTest, AccusesNobodyOfPausesThatCostNothingAnyMore) {
  Stream& own = own_.rank(5).own;
  for (int64_t step = 0; step < 100; ++step) {
    own.Observe(step, step % 4 == 0 ? 0.5 : 0, {step % 4 == 0 ? 80 * kMs : 0}, kLimits);
  }
  ASSERT_EQ(Accused(), std::vector<std::string>{"rank 5"});
  EXPECT_TRUE(Judge()[0].confirmed) << "20 ms a step";
  for (int64_t step = 100; step < 500; ++step) {
    own.Observe(step, step % 40 == 0 ? 0.1 : 0, {step % 40 == 0 ? 8 * kMs : 0}, kLimits);
  }
  EXPECT_TRUE(own.intermittent()) << "they have not ended";
  EXPECT_EQ(Accused(), std::vector<std::string>{}) << "0.2 ms a step, where a verdict is worth 1.5 ms";
}

TEST_F(JudgeTest, OpensNoVerdictOnTransfersThatRecover) {
  lost_ms_ = 40;
  for (int64_t step = 0; step <= kNow; ++step) Transfer(step, step < 80 ? 1 : 6);
  ASSERT_EQ(Accused(), std::vector<std::string>{"node 2"});
  EXPECT_TRUE(Judge()[0].confirmed);
  int64_t step = kNow + 1;
  while (step < kNow + 20 && Judge()[0].confirmed) Transfer(step++, 1);
  ASSERT_EQ(Accused(), std::vector<std::string>{"node 2"}) << "which keeps the verdict that is open";
  EXPECT_FALSE(Judge()[0].confirmed);
}

TEST_F(JudgeTest, AccusesSaving) {
  own_.rank(3).checkpoint.Begin() = Rise(std::log(2), 1000, 90, 1000);
  const std::vector<Accusation> accusations = Judge();
  ASSERT_EQ(accusations.size(), 1u);
  EXPECT_EQ(accusations[0].key, "checkpoint:rank:3");
  EXPECT_NEAR(accusations[0].verdict.cost_ms_per_step, 50, 1e-9) << "over the twenty steps between two of them";
  EXPECT_EQ(accusations[0].verdict.evidence[0].reference, 1000);
  EXPECT_NEAR(accusations[0].verdict.evidence[0].value, 2000, 1e-6);
}

TEST(Bar, WhatARankIsSlowByWhileItHasACpuCountsSooner) {
  const Bar bar(1e8, 0.01, false);
  const OwnTime::Fineness fine{0.05, 0.1};
  EXPECT_TRUE(std::isinf(bar.LeastOnCpuRise(fine, 5e7, 2.9e9)));
  EXPECT_NEAR(bar.LeastOnCpuRise(fine, 5e7, 3.1e9), 0.07, 1e-9);
  EXPECT_GT(bar.LeastOwnRise(3, fine, 5e7, 3.1e9), 0.3);
  EXPECT_NEAR(bar.LeastOnCpuRise({0.001, 0.1}, 5e7, 3.1e9), std::log1p(0.02), 1e-9) << "a hundredth of the step";
}

TEST(Bar, AmongManyThatDifferARiseHasToBeMore) {
  constexpr int kRanks = 64;
  constexpr double kNoise = 0.1, kShare = 0.01, kPeriodNs = 1e8;
  const Bar bar(kPeriodNs, kShare, true);
  const auto least = [&](double noise) { return bar.LeastOwnRise(kRanks, {0, noise}, kPeriodNs, 1e12); };
  EXPECT_LE(least(1e-6), std::log1p(kShare)) << "whoever is slower costs that";
  // What such a rise of one rank makes steps longer by in which each takes the slowest one's time: half of the share.
  std::mt19937_64 random(1);
  std::normal_distribution<double> normal(0, kNoise);
  double longer = 0;
  constexpr int kSteps = 20000;
  for (int step = 0; step < kSteps; ++step) {
    double others = -1;
    for (int rank = 1; rank < kRanks; ++rank) others = std::max(others, normal(random));
    const double own = normal(random);
    longer += std::exp(std::max(others, own + least(kNoise))) - std::exp(std::max(others, own));
  }
  EXPECT_GT(longer / kSteps, 0.3 * kShare);
  EXPECT_LT(longer / kSteps, 0.8 * kShare);
}

}  // namespace
}  // namespace taskd::diagnosis
