#include "diagnosis/cost.h"

#include "gtest/gtest.h"

namespace taskd::diagnosis {
namespace {

// Two stages of two tensor-parallel ranks, one pipeline of two cells: {0, 1} and {2, 3}.
Layout TwoStages() {
  Layout layout;
  for (int r = 0; r < 4; ++r) {
    layout.SetPlace(r, {r / 2, "host", r % 2});
    layout.SetGroup(r, 0, {r % 2 == 0 ? "pp0" : "pp1", "pp", CompressMembers({r % 2, r % 2 + 2})});
    layout.SetGroup(r, 1, {r < 2 ? "tp0" : "tp1", "tp", CompressMembers({r / 2 * 2, r / 2 * 2 + 1})});
    StepFold fold;
    OpFold op;
    op.op = CommOp::kSend;
    op.peer = r < 2 ? 1 : 0;
    op.count = 1;
    fold.ops.push_back(op);
    layout.Learn(r, fold);
  }
  layout.Rebuild();
  return layout;
}

// Data parallel: each rank is a pipeline of its own.
Layout ThreeReplicas() {
  Layout layout;
  for (int r = 0; r < 3; ++r) {
    layout.SetPlace(r, {r, "host", 0});
    layout.SetGroup(r, 0, {"world", "dp", CompressMembers({0, 1, 2})});
  }
  layout.Rebuild();
  return layout;
}

CostModel WithOwnTimes(const Layout& layout, const std::vector<double>& own_ns, const std::vector<int>& microbatches) {
  CostModel model(layout, microbatches);
  for (size_t r = 0; r < own_ns.size(); ++r) model.Set(static_cast<int>(r), own_ns[r]);
  return model;
}

TEST(CostModel, IsPacedByTheSlowestStage) {
  const Layout layout = TwoStages();
  ASSERT_EQ(layout.pipelines().size(), 1u);
  const struct {
    std::vector<double> own_ns;
    std::vector<int> microbatches;
    double step_ns;
  } cases[] = {
      // A stage is as slow as its slowest rank: 20 and 40. One microbatch goes through both: 20 + 40.
      {{10, 20, 40, 5}, {1, 1, 1, 1}, 60},
      // Four microbatches: 5 and 10 each; 5 + 10 for the first, 10 for each of the other three.
      {{10, 20, 40, 5}, {4, 4, 4, 4}, 45},
      // What one rank has not seen another has: the most is what counts.
      {{10, 20, 40, 5}, {0, 4, 0, 0}, 45},
      // Not known: one microbatch, also of ranks that the list does not reach.
      {{10, 20, 40, 5}, {}, 60},
      {{0, 0, 0, 0}, {4, 4, 4, 4}, 0},
  };
  for (const auto& item : cases) {
    EXPECT_DOUBLE_EQ(WithOwnTimes(layout, item.own_ns, item.microbatches).StepNs(), item.step_ns);
  }
}

TEST(CostModel, IsAsSlowAsTheSlowestPipeline) {
  const Layout layout = ThreeReplicas();
  ASSERT_EQ(layout.pipelines().size(), 3u);
  EXPECT_DOUBLE_EQ(WithOwnTimes(layout, {100, 130, 110}, {}).StepNs(), 130);
  // With one stage the number of microbatches changes nothing: 130 / 5 + 4 * 130 / 5.
  EXPECT_DOUBLE_EQ(WithOwnTimes(layout, {100, 130, 110}, {5, 5, 5}).StepNs(), 130);
  EXPECT_EQ(CostModel(Layout(), {}).StepNs(), 0) << "nobody is known yet";
}

TEST(CostModel, ChangesPipelinesOneByOne) {
  const Layout layout = ThreeReplicas();
  CostModel model = WithOwnTimes(layout, {100, 130, 110}, {});
  EXPECT_DOUBLE_EQ(model.StepNs(), 130);
  model.Set(1, 90);
  EXPECT_DOUBLE_EQ(model.StepNs(), 110);
  EXPECT_DOUBLE_EQ(model.StepNsIf({0, 2}, [](int rank) { return 10.0 + rank; }), 90);
  EXPECT_DOUBLE_EQ(model.StepNs(), 110) << "it was only asked";
  model.Set(0, 200);
  EXPECT_DOUBLE_EQ(model.StepNsIf({2}, [](int) { return 300.0; }), 300);
  EXPECT_DOUBLE_EQ(model.StepNs(), 200);
}

TEST(CostModel, AnswersWhatIf) {
  const Layout layout = TwoStages();
  CostModel model = WithOwnTimes(layout, {10, 20, 40, 5}, {4, 4, 4, 4});
  EXPECT_EQ(model.own_ns(2), 40);
  // With rank 2 at 10 its stage takes 10, the first one 20: 5 + 2.5 + 3 * 5.
  model.Set(2, 10);
  EXPECT_DOUBLE_EQ(model.StepNs(), 22.5);
  // Rank 3 is not the slowest of its cell until it takes more than 10.
  model.Set(3, 10);
  EXPECT_DOUBLE_EQ(model.StepNs(), 22.5);
}

TEST(CostMeans, AreOfTheStepsInWhichSomebodyWasSuspected) {
  CostMeans means;
  using What = CostMeans::What;
  const CostMeans::Who rank = {What::kOwnTime, Scope::kRank, 3}, node = {What::kOwnTime, Scope::kNode, 3};
  // Of steps of 200.
  const auto add = [&means](const CostMeans::Who& who, int64_t step, double cost, double until_known) {
    const Measured::Means known = {0, step, 99, until_known, 200 - until_known};
    const Measured::Means all = means.Add(who, step, cost, 200, false, known);
    EXPECT_NEAR(all.value(), 200, 1e-9);
    return all.excess;
  };
  // As if six steps had cost 70.
  EXPECT_DOUBLE_EQ(add(rank, 10, 140, 70), 80);
  EXPECT_DOUBLE_EQ(add(node, 10, 7, 0), 1) << "a node of the same number is somebody else";
  means.Forget(10);
  EXPECT_DOUBLE_EQ(add(rank, 11, 0, 999), 70);
  means.Forget(11);
  EXPECT_DOUBLE_EQ(add(node, 12, 0, 14), 12) << "not suspected for a step: begins anew";
  means.Forget(12);
  for (int64_t step = 13; step < 1000; ++step) {
    add(rank, step, step < 700 ? 50 : 20, 0);
    means.Forget(step);
  }
  EXPECT_NEAR(add(rank, 1000, 20, 0), 20, 0.5) << "what it costs now";
}

}  // namespace
}  // namespace taskd::diagnosis
