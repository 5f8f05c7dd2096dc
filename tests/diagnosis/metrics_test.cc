#include "tests/diagnosis/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

namespace taskd::evaluation {
namespace {

using diagnosis::Cause;
using diagnosis::Scope;
using diagnosis::Verdict;
using simulate::FaultKind;
using simulate::Label;

TEST(Statistics, RegularizedBetaHasKnownValues) {
  EXPECT_NEAR(RegularizedBeta(2, 3, 0.4), 0.5248, 1e-12);
  EXPECT_NEAR(RegularizedBeta(0.5, 0.5, 0.25), 1.0 / 3, 1e-12);
  EXPECT_NEAR(RegularizedBeta(1, 1, 0.3), 0.3, 1e-12);
  EXPECT_NEAR(RegularizedBeta(400, 600, 0.4), 0.5, 0.01);
  EXPECT_EQ(RegularizedBeta(3, 4, 0), 0);
  EXPECT_EQ(RegularizedBeta(3, 4, 1), 1);
}

TEST(Statistics, ClopperPearsonIsTheExactInterval) {
  Interval all = ClopperPearson(6, 6);
  EXPECT_NEAR(all.low, std::pow(0.025, 1.0 / 6), 1e-9);
  EXPECT_EQ(all.high, 1);
  Interval none = ClopperPearson(0, 100);
  EXPECT_EQ(none.low, 0);
  EXPECT_NEAR(none.high, 1 - std::pow(0.025, 0.01), 1e-9);
  Interval half = ClopperPearson(5, 10);
  EXPECT_NEAR(half.low, 0.18709, 1e-5);
  EXPECT_NEAR(half.high, 0.81291, 1e-5);
  Interval many = ClopperPearson(985, 1000);
  EXPECT_NEAR(many.low, 0.97538030, 1e-8);
  EXPECT_NEAR(many.high, 0.99158095, 1e-8);
  EXPECT_EQ(ClopperPearson(0, 0).low, 0);
  EXPECT_EQ(ClopperPearson(0, 0).high, 1);
}

TEST(Statistics, PoissonIntervalIsTheExactInterval) {
  EXPECT_EQ(PoissonInterval(0).low, 0);
  EXPECT_NEAR(PoissonInterval(0).high, -std::log(0.025), 1e-9);
  EXPECT_NEAR(PoissonInterval(3).low, 0.6187, 1e-4);
  EXPECT_NEAR(PoissonInterval(3).high, 8.7673, 1e-4);
}

TEST(Statistics, QuantileTakesTheNearestRank) {
  EXPECT_EQ(Quantile({5, 1, 4, 2, 3}, 0.5), 3);
  EXPECT_EQ(Quantile({5, 1, 4, 2, 3}, 0.95), 5);
  EXPECT_EQ(Quantile({1, 2}, 0.5), 1);
  EXPECT_EQ(Quantile({7}, 0), 7);
  EXPECT_TRUE(std::isnan(Quantile({}, 0.5)));
}

Verdict Of(Scope scope, std::vector<int> ids, Cause cause = Cause::kCompute) {
  Verdict verdict;
  verdict.scope = scope;
  verdict.ids = std::move(ids);
  verdict.cause = cause;
  return verdict;
}
Verdict OfLink(int a, int b) {
  Verdict verdict;
  verdict.scope = Scope::kLink;
  verdict.links = {{a, b}};
  verdict.cause = Cause::kPpLink;
  return verdict;
}
Label OfFault(FaultKind kind, std::string scope, std::vector<int> ids, std::vector<std::string> causes) {
  return {.kind = kind,
          .scope = std::move(scope),
          .ids = std::move(ids),
          .causes = std::move(causes),
          .first_step = 20,
          .last_step = 39,
          .severity = 1.5,
          .effect = 0.25};
}

const std::vector<int> kNodes = {0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2};
const std::vector<double> kSteps(100, 125.0);

// The score of claims that were made at `opened` and never ended.
Score ScoreOf(const std::vector<Verdict>& verdicts, const std::vector<Label>& labels, int opened = 25) {
  ClaimTracker tracker;
  tracker.Observe(opened, verdicts, kNodes);
  std::vector<Claim> claims = tracker.claims();
  return ScoreCase(claims, labels, kNodes, kSteps);
}
// "right" and so on, of a single claim.
std::string MatchOf(const Verdict& verdict, const Label& label, int opened = 25) {
  ClaimTracker tracker;
  tracker.Observe(opened, {verdict}, kNodes);
  std::vector<Claim> claims = tracker.claims();
  ScoreCase(claims, {label}, kNodes, kSteps);
  return Name(claims.front().match);
}

TEST(ClaimTracker, FollowsEntitiesThroughTheirLife) {
  ClaimTracker tracker;
  Verdict closed = Of(Scope::kRank, {9});
  closed.open = false;
  tracker.Observe(1, {}, kNodes);
  tracker.Observe(2, {Of(Scope::kRank, {3}), closed}, kNodes);
  tracker.Observe(3, {Of(Scope::kRank, {3}, Cause::kMemory)}, kNodes);
  tracker.Observe(4, {Of(Scope::kNode, {1})}, kNodes);
  tracker.Observe(5, {Of(Scope::kNode, {1}), Of(Scope::kRank, {3})}, kNodes);
  const std::vector<Claim>& claims = tracker.claims();
  ASSERT_EQ(claims.size(), 3U);
  EXPECT_EQ(claims[0].opened, 2);
  EXPECT_EQ(claims[0].closed, 4);
  EXPECT_EQ(claims[0].changed, 1);
  EXPECT_EQ(claims[0].verdict.cause, Cause::kMemory);
  EXPECT_EQ(claims[1].opened, 4);
  EXPECT_EQ(claims[1].closed, -1);
  EXPECT_THAT(claims[1].ranks, ::testing::ElementsAre(4, 5, 6, 7));
  EXPECT_EQ(claims[2].opened, 5);
}

TEST(ClaimTracker, CountsTiesAsASet) {
  Verdict verdict = Of(Scope::kRank, {7});
  verdict.confidence = 0.48;
  verdict.alternatives = {{Scope::kRank, {3}, {}, 0.47}, {Scope::kRank, {5}, {}, 0.05}, {Scope::kNode, {1}, {}, 0.48}};
  ClaimTracker tracker;
  tracker.Observe(1, {verdict}, kNodes);
  EXPECT_EQ(Entity(tracker.claims().front().verdict), "rank 3,7");
  EXPECT_THAT(tracker.claims().front().ranks, ::testing::ElementsAre(3, 7));
}

TEST(Score, OfASlowRank) {
  Label label = OfFault(FaultKind::kCompute, "rank", {5}, {"compute"});
  EXPECT_EQ(MatchOf(Of(Scope::kRank, {5}), label), "right");
  EXPECT_EQ(MatchOf(Of(Scope::kRank, {4, 5}), label), "right");
  EXPECT_EQ(MatchOf(Of(Scope::kRank, {4, 5, 6}), label), "imprecise");
  EXPECT_EQ(MatchOf(Of(Scope::kNode, {1}), label), "imprecise");
  EXPECT_EQ(MatchOf(Of(Scope::kGroup, {1, 5, 9}), label), "imprecise");
  EXPECT_EQ(MatchOf(Of(Scope::kRank, {4}), label), "wrong");
  EXPECT_EQ(MatchOf(Of(Scope::kNode, {2}), label), "wrong");
  EXPECT_EQ(MatchOf(OfLink(4, 8), label), "wrong");
  EXPECT_EQ(MatchOf(Of(Scope::kJob, {}), label), "abstained");
}

TEST(Score, ClaimsMustComeInTime) {
  Label label = OfFault(FaultKind::kCompute, "rank", {5}, {"compute"});
  EXPECT_EQ(MatchOf(Of(Scope::kRank, {5}), label, 19), "wrong");
  EXPECT_EQ(MatchOf(Of(Scope::kRank, {5}), label, 20), "right");
  EXPECT_EQ(MatchOf(Of(Scope::kRank, {5}), label, 59), "right");
  EXPECT_EQ(MatchOf(Of(Scope::kRank, {5}), label, 60), "wrong");
}

TEST(Score, OfASlowNode) {
  Label label = OfFault(FaultKind::kHost, "node", {1}, {"host"});
  EXPECT_EQ(MatchOf(Of(Scope::kNode, {1}), label), "right");
  EXPECT_EQ(MatchOf(Of(Scope::kNode, {0, 1}), label), "right");
  EXPECT_EQ(MatchOf(Of(Scope::kRank, {4, 5, 6, 7}), label), "right");
  EXPECT_EQ(MatchOf(Of(Scope::kRank, {5}), label), "imprecise");
  EXPECT_EQ(MatchOf(Of(Scope::kRank, {3}), label), "wrong");
}

TEST(Score, OfTheNetwork) {
  Label link = OfFault(FaultKind::kPpLink, "link", {2, 6}, {"pp_link"});
  EXPECT_EQ(MatchOf(OfLink(2, 6), link), "right");
  EXPECT_EQ(MatchOf(OfLink(6, 2), link), "right");
  EXPECT_EQ(MatchOf(OfLink(6, 10), link), "wrong");
  EXPECT_EQ(MatchOf(Of(Scope::kRank, {2, 6}), link), "right");
  EXPECT_EQ(MatchOf(Of(Scope::kRank, {6}), link), "imprecise");
  Label nic = OfFault(FaultKind::kNic, "rank", {6}, {"network"});
  EXPECT_EQ(MatchOf(Of(Scope::kGroup, {2, 6, 10}), nic), "right");
  EXPECT_EQ(MatchOf(OfLink(2, 6), nic), "right");
  EXPECT_EQ(MatchOf(OfLink(2, 10), nic), "wrong");
  EXPECT_EQ(MatchOf(Of(Scope::kGroup, {1, 5, 9}), nic), "wrong");
}

TEST(Score, OfTheWholeJob) {
  Label label = OfFault(FaultKind::kFabric, "job", {}, {"fabric"});
  Score score = ScoreOf({Of(Scope::kJob, {}, Cause::kFabric), Of(Scope::kNode, {0})}, {label});
  EXPECT_TRUE(score.outcomes[0].found);
  EXPECT_TRUE(score.outcomes[0].cause_right);
  EXPECT_EQ(score.right, 0);
  EXPECT_EQ(score.wrong, 1);
  EXPECT_EQ(score.job_claims, 1);
}

TEST(Score, OfTwoCulprits) {
  std::vector<Label> labels = {OfFault(FaultKind::kCompute, "rank", {1}, {"compute"}),
                               OfFault(FaultKind::kMemory, "rank", {7}, {"memory"})};
  Score one = ScoreOf({Of(Scope::kRank, {7}, Cause::kMemory)}, labels);
  EXPECT_FALSE(one.outcomes[0].found);
  EXPECT_TRUE(one.outcomes[1].found && one.outcomes[1].exact && one.outcomes[1].cause_right);
  Score together = ScoreOf({Of(Scope::kRank, {1, 7})}, labels);
  EXPECT_TRUE(together.outcomes[0].found && together.outcomes[1].found);
  EXPECT_FALSE(together.outcomes[0].exact);
  EXPECT_EQ(together.right, 1);
}

TEST(Score, TimesAndCost) {
  // Steps of 125 ms of which the fault makes 25: 100 x (1 + 0.25).
  Label label = OfFault(FaultKind::kCompute, "rank", {5}, {"compute"});
  Verdict verdict = Of(Scope::kRank, {5});
  verdict.cost_ms_per_step = 3;
  verdict.cost_interval_ms = {15, 25.5};
  ClaimTracker tracker;
  tracker.Observe(23, {verdict}, kNodes);
  verdict.cost_ms_per_step = 20;
  tracker.Observe(24, {verdict}, kNodes);
  verdict.cost_ms_per_step = 7;  // over by then
  tracker.Observe(40, {verdict}, kNodes);
  tracker.Observe(41, {}, kNodes);
  tracker.Observe(43, {verdict}, kNodes);
  tracker.Observe(47, {}, kNodes);
  std::vector<Claim> claims = tracker.claims();
  Score score = ScoreCase(claims, {label}, kNodes, kSteps);
  EXPECT_EQ(score.outcomes[0].steps_to_detect, 4);
  EXPECT_TRUE(score.outcomes[0].clearable);
  EXPECT_EQ(score.outcomes[0].steps_to_clear, 8);
  EXPECT_DOUBLE_EQ(score.outcomes[0].true_cost_ms, 25);
  EXPECT_DOUBLE_EQ(score.outcomes[0].told_cost_ms, 20);
  EXPECT_DOUBLE_EQ(score.outcomes[0].cost_error, 0.2);
  EXPECT_TRUE(score.outcomes[0].cost_within);
  for (Claim& claim : claims) claim.verdict.cost_interval_ms[1] = 24.5;
  EXPECT_FALSE(ScoreCase(claims, {label}, kNodes, kSteps).outcomes[0].cost_within);
  EXPECT_EQ(score.right, 1);
}

TEST(Score, AVerdictThatStaysIsNotCleared) {
  Score score = ScoreOf({Of(Scope::kRank, {5})}, {OfFault(FaultKind::kCompute, "rank", {5}, {"compute"})});
  EXPECT_TRUE(score.outcomes[0].clearable);
  EXPECT_EQ(score.outcomes[0].steps_to_clear, -1);
}

}  // namespace
}  // namespace taskd::evaluation
