#include "tests/diagnosis/baselines.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace taskd::evaluation {
namespace {

constexpr uint64_t kMs = 1'000'000;

// Eight ranks, tp 4 x dp 2. Each step: `own` ms of computation, then waiting in one tensor-parallel operation until all
// four have come, 2 ms of transfer, and an all-reduce of all with the same length on each.
class Job {
 public:
  Job() {
    for (int rank = 0; rank < 8; ++rank) {
      topology_.SetGroup(rank, 0, {"tp" + std::to_string(rank / 4), "tp", {{rank / 4 * 4, 1, 4}}});
      topology_.SetGroup(rank, 1, {"dp" + std::to_string(rank % 4), "dp", {{rank % 4, 4, 2}}});
    }
  }

  void Step(Baseline& baseline, const std::vector<double>& own_ms) {
    std::vector<StepFold> folds(own_ms.size());
    double longest[2] = {};
    for (size_t rank = 0; rank < own_ms.size(); ++rank) longest[rank / 4] = std::max(longest[rank / 4], own_ms[rank]);
    double period = std::max(longest[0], longest[1]) + 4;
    for (size_t rank = 0; rank < own_ms.size(); ++rank) {
      StepFold& fold = folds[rank];
      fold.step = step_;
      fold.previous_end_ns = now_;
      fold.end_ns = now_ + Ns(period);
      auto gap = Ns(own_ms[rank]);
      auto tp = Ns(longest[rank / 4] - own_ms[rank] + 2), dp = Ns(period - longest[rank / 4] - 2);
      fold.ops.push_back({.group = 0,
                          .op = CommOp::kAllReduce,
                          .count = 1,
                          .duration_ns = tp,
                          .blocking_gaps = 1,
                          .blocking_gap_ns = gap});
      fold.ops.push_back({.group = 1, .op = CommOp::kAllReduce, .count = 1, .duration_ns = dp});
      fold.covered_ns = tp + dp;
    }
    std::vector<RankFold> pointers;
    for (size_t rank = 0; rank < folds.size(); ++rank) pointers.emplace_back(static_cast<int>(rank), &folds[rank]);
    baseline.Step(step_, pointers, topology_);
    now_ += Ns(period);
    ++step_;
  }
  // `steps` steps in which rank `slow` (-1: nobody) takes `factor` times as long as the others' 100 ms and some.
  void Steps(Baseline& baseline, int steps, int slow, double factor) {
    for (int i = 0; i < steps; ++i) {
      std::vector<double> own;
      for (int rank = 0; rank < 8; ++rank) {
        double noise = 1 + 0.002 * ((step_ * 7 + rank * 5) % 11 - 5);
        own.push_back(100 * noise * (rank == slow ? factor : 1));
      }
      Step(baseline, own);
    }
  }

 private:
  static uint64_t Ns(double ms) { return static_cast<uint64_t>(ms * kMs); }

  Topology topology_;
  uint64_t now_ = 1'000 * kMs;
  int64_t step_ = 0;
};

std::vector<int> NamedRanks(const Baseline& baseline) {
  std::vector<int> ranks;
  for (const auto& verdict : baseline.verdicts()) {
    if (verdict.scope == diagnosis::Scope::kRank) ranks.insert(ranks.end(), verdict.ids.begin(), verdict.ids.end());
  }
  return ranks;
}

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(OwnTime, IsTheMeanGapBeforeBlockingOperations) {
  StepFold fold;
  fold.previous_end_ns = 1;
  fold.end_ns = 101;
  fold.covered_ns = 30;
  fold.ops = {{.gaps = 3, .gap_ns = 60}};
  EXPECT_EQ(OwnTimeNs(fold), 70);
  fold.ops.push_back({.blocking_gaps = 4, .blocking_gap_ns = 48});
  EXPECT_EQ(OwnTimeNs(fold), 12);
}

TEST(Topology, ReadsStagesFromPipelineGroups) {
  Topology topology;
  topology.SetGroup(5, 2, {"pp", "pp", {{1, 4, 3}}});
  EXPECT_EQ(topology.Stage(5), 1);
  EXPECT_EQ(topology.Stage(9), 0);
  EXPECT_EQ(topology.Group(5, 2).label, "pp");
  EXPECT_EQ(topology.Group(5, 7).label, "");
}

TEST(UpstreamRule, FindsLoudRanksOfATensorGroupAndNoQuietOnes) {
  auto rule = MakeUpstreamRule();
  Job job;
  job.Steps(*rule, 25, -1, 1);
  EXPECT_THAT(rule->verdicts(), IsEmpty());
  job.Steps(*rule, 5, 6, 1.2);
  EXPECT_THAT(rule->verdicts(), IsEmpty());
  job.Steps(*rule, 2, 6, 1.6);
  EXPECT_THAT(rule->verdicts(), IsEmpty());
  job.Steps(*rule, 1, 6, 1.6);
  EXPECT_THAT(NamedRanks(*rule), ElementsAre(6));
  job.Steps(*rule, 1, -1, 1);
  EXPECT_THAT(rule->verdicts(), IsEmpty());
}

TEST(UpstreamRule, IsBlindToAFaultFromTheStart) {
  auto rule = MakeUpstreamRule();
  Job job;
  job.Steps(*rule, 60, 6, 2);
  EXPECT_THAT(rule->verdicts(), IsEmpty());
}

TEST(PeerMad, NamesAfterThreeSteps) {
  auto rule = MakePeerMad();
  Job job;
  job.Steps(*rule, 10, -1, 1);
  EXPECT_THAT(NamedRanks(*rule), IsEmpty());
  job.Steps(*rule, 2, 3, 1.2);
  EXPECT_THAT(NamedRanks(*rule), IsEmpty());
  job.Steps(*rule, 1, 3, 1.2);
  EXPECT_THAT(NamedRanks(*rule), ElementsAre(3));
  job.Steps(*rule, 3, -1, 1);
  EXPECT_THAT(NamedRanks(*rule), IsEmpty());
}

TEST(PeerCusum, NamesSmallFaultsAndClears) {
  auto rule = MakePeerCusum();
  Job job;
  job.Steps(*rule, 40, -1, 1);
  EXPECT_THAT(NamedRanks(*rule), IsEmpty());
  job.Steps(*rule, 6, 3, 1.05);
  EXPECT_THAT(NamedRanks(*rule), ElementsAre(3));
  EXPECT_EQ(rule->verdicts().front().since_step, 40);
  job.Steps(*rule, 15, -1, 1);
  EXPECT_THAT(NamedRanks(*rule), IsEmpty());
}

TEST(RelativeScore, ComparesWithTheFastest) {
  auto rule = MakeRelativeScore();
  Job job;
  job.Steps(*rule, 30, 2, 1.25);
  EXPECT_THAT(NamedRanks(*rule), IsEmpty());
  job.Steps(*rule, 30, 2, 1.5);
  EXPECT_THAT(NamedRanks(*rule), ElementsAre(2));
}

TEST(LastArrival, NamesWhoTheOthersWaitFor) {
  auto rule = MakeLastArrival();
  Job job;
  job.Steps(*rule, 10, -1, 1);
  EXPECT_THAT(NamedRanks(*rule), IsEmpty());
  job.Steps(*rule, 3, 1, 1.3);
  EXPECT_THAT(NamedRanks(*rule), ElementsAre(1));
}

}  // namespace
}  // namespace taskd::evaluation
