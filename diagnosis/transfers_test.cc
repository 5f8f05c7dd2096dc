#include "diagnosis/transfers.h"

#include "gtest/gtest.h"

namespace taskd::diagnosis {
namespace {

constexpr double kArlFactor = 1e7;

// Four nodes of two ranks. Tensor parallel inside a node (group 0), data parallel across nodes (group 1): ranks 0, 2,
// 4, 6 and 1, 3, 5, 7.
class TransfersTest : public ::testing::Test {
 protected:
  TransfersTest() {
    for (int r = 0; r < 8; ++r) {
      layout_.SetPlace(r, {r / 2, "h", r % 2});
      layout_.SetGroup(r, 0, {"tp" + std::to_string(r / 2), "tp", CompressMembers({r / 2 * 2, r / 2 * 2 + 1})});
      layout_.SetGroup(r, 1,
                       {"dp" + std::to_string(r % 2), "dp", CompressMembers({r % 2, r % 2 + 2, r % 2 + 4, r % 2 + 6})});
    }
    layout_.Rebuild();
  }

  // Factors on the transfers of the step.
  void Step(int64_t step, double tp_of_node_2, double dp_of_odd, double all_dp = 1, int silent = -1) {
    std::vector<std::pair<int, StepFold>> folds;
    for (int r = 0; r < 8; ++r) {
      if (r == silent) continue;
      StepFold fold;
      const double jitter = 1 + 0.01 * ((step * 7 + r * 3) % 5 - 2);
      auto op = [&](uint32_t group, uint32_t count, double ms) {
        OpFold op;
        op.group = group;
        op.op = CommOp::kAllReduce;
        op.size_log2 = 24;
        op.count = count;
        op.min_duration_ns = static_cast<uint64_t>(ms * jitter * 1e6);
        op.duration_ns = op.min_duration_ns * count;
        fold.ops.push_back(op);
      };
      op(0, 32, r / 2 == 2 ? tp_of_node_2 : 1);
      op(1, 4, 10 * all_dp * (r % 2 == 1 ? dp_of_odd : 1));
      folds.emplace_back(r, fold);
    }
    Observe(folds, step);
  }

  void Observe(const std::vector<std::pair<int, StepFold>>& folds, int64_t step) {
    for (const auto& [rank, fold] : folds) transfers_.Take(layout_, rank, fold, step);
    transfers_.Observe(step, kArlFactor);
  }

  Layout layout_;
  Transfers transfers_;
};

TEST_F(TransfersTest, AreSilentWhenNothingChanges) {
  for (int64_t step = 0; step < 300; ++step) Step(step, 1, 1);
  EXPECT_TRUE(transfers_.Findings(layout_).empty());
}

TEST_F(TransfersTest, NameTheNodeOfASlowLinkInside) {
  for (int64_t step = 0; step < 60; ++step) Step(step, step < 40 ? 1 : 2, 1);
  std::vector<TransferFinding> findings = transfers_.Findings(layout_);
  ASSERT_EQ(findings.size(), 1u);
  EXPECT_EQ(findings[0].scope, Scope::kNode);
  EXPECT_EQ(findings[0].ids, std::vector<int>{2});
  EXPECT_EQ(findings[0].cause, Cause::kIntraNodeLink);
  EXPECT_NEAR(findings[0].measured.value() / findings[0].count, 2e6, 1e5);
  EXPECT_NEAR(findings[0].measured.reference / findings[0].count, 1e6, 1e5);
  EXPECT_NEAR(static_cast<double>(findings[0].onset), 40, 1);
  EXPECT_NEAR(findings[0].excess_ns, 32e6, 3e6) << "32 operations, 1 ms each";
}

TEST_F(TransfersTest, AnswerTheGroupWhenItsMembersCannotBeToldApart) {
  for (int64_t step = 0; step < 60; ++step) Step(step, 1, step < 40 ? 1 : 1.6);
  std::vector<TransferFinding> findings = transfers_.Findings(layout_);
  ASSERT_EQ(findings.size(), 1u);
  EXPECT_EQ(findings[0].scope, Scope::kGroup);
  EXPECT_EQ(findings[0].ids, (std::vector<int>{1, 3, 5, 7}));
  EXPECT_EQ(findings[0].cause, Cause::kNetwork);
}

TEST_F(TransfersTest, BlameNobodyForTheWholeFabric) {
  for (int64_t step = 0; step < 60; ++step) Step(step, 1, 1, step < 40 ? 1 : 1.5);
  std::vector<TransferFinding> findings = transfers_.Findings(layout_);
  ASSERT_EQ(findings.size(), 1u);
  EXPECT_EQ(findings[0].scope, Scope::kJob);
  EXPECT_EQ(findings[0].cause, Cause::kFabric);
}

TEST_F(TransfersTest, FadeBeforeTheyAreOver) {
  for (int64_t step = 0; step < 60; ++step) Step(step, step < 40 ? 1 : 2, 1);
  EXPECT_FALSE(transfers_.Findings(layout_)[0].fading);
  int64_t step = 60;
  int fading = 0;
  for (; step < 80; ++step) {
    Step(step, 1, 1);
    const std::vector<TransferFinding> findings = transfers_.Findings(layout_);
    if (findings.empty()) break;
    fading += findings[0].fading ? 1 : 0;
  }
  EXPECT_LT(step, 80);
  EXPECT_GT(fading, 0);
}

TEST_F(TransfersTest, OutliveGroupsThatAreNew) {
  for (int64_t step = 0; step < 42; ++step) Step(step, step < 40 ? 1 : 2, 1);
  layout_.SetGroup(0, 2, {"evaluation", "", CompressMembers({0, 1, 2, 3, 4, 5, 6, 7})});
  layout_.Rebuild();
  transfers_.Regroup(layout_);
  for (int64_t step = 42; step < 100; ++step) Step(step, 2, 1);
  std::vector<TransferFinding> findings = transfers_.Findings(layout_);
  ASSERT_EQ(findings.size(), 1u);
  EXPECT_EQ(findings[0].ids, std::vector<int>{2});
  EXPECT_NEAR(static_cast<double>(findings[0].onset), 40, 1);
}

TEST_F(TransfersTest, OutliveTheDeclarationOfAGroup) {
  // Its members are inferred from those who use it, until parallel_group.json is there.
  Layout declared = std::move(layout_);
  layout_ = Layout();
  for (int r = 0; r < 8; ++r) {
    layout_.SetPlace(r, {r / 2, "h", r % 2});
    layout_.SetGroup(r, 0, {"tp" + std::to_string(r / 2), "", {}});
    layout_.SetGroup(r, 1, {"dp" + std::to_string(r % 2), "", {}});
  }
  layout_.Rebuild();
  for (int64_t step = 0; step < 42; ++step) Step(step, step < 40 ? 1 : 2, 1);
  const int before = layout_.GroupOf(4, 0);
  for (int r = 0; r < 8; ++r) {
    for (uint32_t index : {0u, 1u}) {
      const Group& group = declared.group(declared.GroupOf(r, index));
      layout_.SetGroup(r, index, {group.name, group.label, group.members.runs()});
    }
  }
  layout_.Rebuild();
  ASSERT_NE(layout_.GroupOf(4, 0), before);
  transfers_.Regroup(layout_);
  for (int64_t step = 42; step < 100; ++step) Step(step, 2, 1);
  std::vector<TransferFinding> findings = transfers_.Findings(layout_);
  ASSERT_EQ(findings.size(), 1u);
  EXPECT_EQ(findings[0].ids, std::vector<int>{2});
  EXPECT_EQ(findings[0].cause, Cause::kIntraNodeLink);
  EXPECT_NEAR(static_cast<double>(findings[0].onset), 40, 1);
}

TEST_F(TransfersTest, SayNothingOfAGroupThatIsNotComplete) {
  // Rank 3 stops reporting just when its group becomes slower.
  for (int64_t step = 0; step < 60; ++step) Step(step, 1, step < 40 ? 1 : 1.6, 1, step < 40 ? -1 : 3);
  EXPECT_TRUE(transfers_.Findings(layout_).empty());
}

// Whatever a rank says that it does, it has its share.
TEST_F(TransfersTest, ARankBringsSoManyAndNoMore) {
  auto fold_of = [](uint32_t group, uint8_t size_log2) {
    StepFold fold;
    for (int peer : {1, 2, 3}) {
      OpFold op;
      op.group = group;
      op.op = CommOp::kSend;
      op.peer = peer;
      op.size_log2 = size_log2;
      op.count = 1;
      op.min_duration_ns = 1000;
      fold.ops.push_back(op);
    }
    return fold;
  };
  for (uint32_t group = 0; group < 32; ++group) {
    layout_.SetGroup(0, group, {"g" + std::to_string(group), "", CompressMembers({0, 2, 4, 6})});
  }
  layout_.Rebuild();
  int64_t step = 0;
  for (uint32_t group = 0; group < 32; ++group) {
    for (uint8_t size = 0; size < 64; ++size) {
      Observe({{0, fold_of(group, size)}}, step++);
    }
  }
  EXPECT_EQ(transfers_.channels(), 2048u);
  Step(step++, 1, 1);
  EXPECT_EQ(transfers_.channels(), 2048u + 6) << "the others' groups of their own";
  transfers_.Regroup(layout_);
  Observe({{0, fold_of(0, 63)}}, step++);
  EXPECT_LE(transfers_.channels(), 2048u + 6);
}

}  // namespace
}  // namespace taskd::diagnosis
