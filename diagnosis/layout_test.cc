#include "diagnosis/layout.h"

#include "gtest/gtest.h"

namespace taskd::diagnosis {
namespace {

StepFold Sends(int peer_in_group) {
  StepFold fold;
  OpFold op;
  op.group = 0;
  op.op = CommOp::kSend;
  op.peer = peer_in_group;
  op.count = 8;
  fold.ops.push_back(op);
  return fold;
}

GroupInfo Declared(const std::string& name, const std::string& label, const std::vector<int>& members) {
  return {name, label, CompressMembers(members)};
}

// Two stages of two tensor-parallel ranks: pipelines 0-2 and 1-3.
Layout TwoByTwo() {
  Layout layout;
  for (int r = 0; r < 4; ++r) {
    layout.SetPlace(r, {r / 2, "host", r % 2});
    layout.SetGroup(r, 0, Declared(r % 2 == 0 ? "pp0" : "pp1", "pp", {r % 2, r % 2 + 2}));
    layout.SetGroup(r, 1, Declared(r < 2 ? "tp0" : "tp1", "tp", {r / 2 * 2, r / 2 * 2 + 1}));
    layout.Learn(r, Sends(r < 2 ? 1 : 0));
  }
  layout.Rebuild();
  return layout;
}

TEST(Layout, FindsStagesCellsAndPipelines) {
  Layout layout = TwoByTwo();
  EXPECT_FALSE(layout.dirty());
  EXPECT_EQ(layout.stages(), 2);
  EXPECT_EQ(layout.classes(), (std::vector<std::vector<int>>{{0, 1}, {2, 3}}));
  ASSERT_EQ(layout.pipelines().size(), 1u) << "tensor parallel groups tie both chains together";
  EXPECT_EQ(layout.pipelines()[0].cells, (std::vector<std::vector<int>>{{0, 1}, {2, 3}}));
  EXPECT_EQ(layout.nodes().at(1), (std::vector<int>{2, 3}));
  EXPECT_EQ(layout.group(layout.GroupOf(0, 0)).nodes, 2);
  EXPECT_EQ(layout.group(layout.GroupOf(0, 1)).nodes, 1);
  EXPECT_TRUE(layout.group(layout.GroupOf(0, 1)).blocking);
}

TEST(Layout, TakesTheUsersOfANameForItsMembers) {
  Layout layout;
  for (int r = 0; r < 4; ++r) layout.SetGroup(r, 0, {r < 2 ? "a" : "b", "", {}});
  layout.Rebuild();
  EXPECT_EQ(layout.group(layout.GroupOf(3, 0)).members, (std::vector<int>{2, 3}));
  EXPECT_EQ(layout.MemberOf(layout.GroupOf(3, 0), 1), 3);
  EXPECT_EQ(layout.MemberOf(layout.GroupOf(3, 0), 2), -1);
}

TEST(Layout, JoinsARankWithoutAFileToTheGroupThatOthersDeclared) {
  Layout layout;
  layout.SetGroup(0, 0, Declared("g", "dp", {0, 1}));
  layout.SetGroup(1, 0, {"g", "", {}});
  layout.Rebuild();
  EXPECT_EQ(layout.GroupOf(0, 0), layout.GroupOf(1, 0));
}

TEST(Layout, KnowsWhichGroupAnInferredOneTurnedOutToBe) {
  Layout layout;
  for (int r = 0; r < 4; ++r) {
    layout.SetGroup(r, 0, {"world", "", {}});
    layout.SetGroup(r, 1, {"tp", "", {}});
  }
  layout.Rebuild();
  const int world = layout.GroupOf(0, 0), tp = layout.GroupOf(0, 1);
  EXPECT_EQ(layout.group(world).became, -1);
  for (int r = 0; r < 4; ++r) {
    layout.SetGroup(r, 0, Declared("world", "", {0, 1, 2, 3}));
    layout.SetGroup(r, 1, Declared("tp", "tp", {r / 2 * 2, r / 2 * 2 + 1}));
  }
  layout.Rebuild();
  EXPECT_EQ(layout.group(world).became, layout.GroupOf(0, 0));
  EXPECT_EQ(layout.group(tp).became, -1) << "it was two";
}

TEST(Layout, TellsGroupsOfOneNameApartByTheirMembers) {
  Layout layout;
  for (int r = 0; r < 4; ++r) layout.SetGroup(r, 0, Declared("tp", "tp", {r / 2 * 2, r / 2 * 2 + 1}));
  layout.Rebuild();
  EXPECT_EQ(layout.GroupOf(0, 0), layout.GroupOf(1, 0));
  EXPECT_NE(layout.GroupOf(0, 0), layout.GroupOf(2, 0));
}

TEST(Layout, GuessesTensorParallelWhereNothingIsLabelled) {
  Layout layout;
  StepFold fold;
  for (uint32_t group : {0u, 1u}) {
    OpFold op;
    op.group = group;
    op.op = CommOp::kAllReduce;
    op.count = 4;
    fold.ops.push_back(op);
  }
  for (int r = 0; r < 4; ++r) {
    layout.SetGroup(r, 0, {r < 2 ? "near0" : "near1", "", {}});
    layout.SetGroup(r, 1, {r % 2 == 0 ? "far0" : "far1", "", {}});
    layout.Learn(r, fold);
  }
  layout.Rebuild();
  EXPECT_TRUE(layout.group(layout.GroupOf(0, 0)).blocking);
  EXPECT_FALSE(layout.group(layout.GroupOf(0, 1)).blocking);
}

TEST(Layout, IsDirtyOnlyWhenSomethingIsNew) {
  Layout layout = TwoByTwo();
  layout.SetPlace(0, {0, "host", 0});
  layout.SetGroup(1, 1, Declared("tp0", "tp", {0, 1}));
  layout.Learn(0, Sends(1));
  EXPECT_FALSE(layout.dirty());
  layout.SetPlace(0, {1, "other", 0});
  EXPECT_TRUE(layout.dirty());
}

}  // namespace
}  // namespace taskd::diagnosis
