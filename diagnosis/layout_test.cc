#include "diagnosis/layout.h"

#include <limits>
#include <string>

#include "gmock/gmock.h"
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
  EXPECT_EQ(layout.group(layout.GroupOf(3, 0)).members.Expand(), (std::vector<int>{2, 3}));
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

// What one rank says of its groups, again and again, each time other ones: a run of 12 bytes each that stands for all
// ranks that a job can have.
TEST(Layout, ForgetsGroupsThatNoRankHasAnyMore) {
  Layout layout;
  layout.SetPlace(0, {0, "host", 0});
  const GroupInfo all = {"all", "dp", {{0, 1, kMaxRanks}}};
  layout.SetGroup(0, 0, all);
  layout.Rebuild();
  const GroupBudget::Cost one = layout.groups_cost();
  EXPECT_EQ(one.members, size_t{kMaxRanks});
  for (int i = 0; i < 10'000; ++i) {
    GroupInfo group = all;
    group.name = std::to_string(100'000 + i);
    ASSERT_TRUE(layout.SetGroup(0, 0, group)) << i;
    if (i % 100 == 0) layout.Rebuild();
  }
  EXPECT_EQ(layout.groups_cost().members, one.members);
  EXPECT_LE(layout.groups().size(), 1000u) << "numbers are given again";
  layout.DropGroups(0, 0);
  EXPECT_EQ(layout.GroupOf(0, 0), -1);
  EXPECT_EQ(layout.groups_cost().bytes, 0u);
}

TEST(Layout, ForgetsNamesWithoutMembersToo) {
  Layout layout;
  for (int i = 0; i < 1000; ++i) {
    ASSERT_TRUE(layout.SetGroup(0, 0, {"g" + std::to_string(i), "", {}}));
    if (i % 10 == 0) layout.Rebuild();
  }
  layout.Rebuild();
  EXPECT_LE(layout.groups_cost().bytes, 1000u);
}

TEST(Layout, KeepsAGroupAsLongAsAnyRankHasIt) {
  Layout layout = TwoByTwo();
  const int pp0 = layout.GroupOf(0, 0);
  layout.DropGroups(0, 0);
  layout.Rebuild();
  EXPECT_EQ(layout.GroupOf(2, 0), pp0);
  EXPECT_EQ(layout.group(pp0).members.Expand(), (std::vector<int>{0, 2}));
  layout.SetGroup(2, 0, Declared("pp2", "pp", {2}));
  EXPECT_EQ(layout.group(pp0).users, 0u);
}

TEST(Layout, GivesTheNumberOfAGroupAgainOnlyAfterTheNextRebuild) {
  Layout layout = TwoByTwo();
  const int pp0 = layout.GroupOf(0, 0);
  for (int r : {0, 2}) layout.SetGroup(r, 0, Declared("pp2", "pp", {0, 2}));
  EXPECT_EQ(layout.group(pp0).users, 0u);
  layout.SetGroup(0, 2, Declared("pp3", "pp", {0, 2}));
  EXPECT_NE(layout.GroupOf(0, 2), pp0);
  layout.Rebuild();  // whoever has the number sees now that it is gone
  EXPECT_EQ(layout.group(pp0).users, 0u);
  layout.SetGroup(0, 3, Declared("pp4", "pp", {0, 2}));
  EXPECT_EQ(layout.GroupOf(0, 3), pp0);
}

TEST(Layout, DoesNotUseMembersThatAreNoRanks) {
  for (const MemberRun& run : {MemberRun{std::numeric_limits<int>::min(), 1, 2}, MemberRun{-1, 1, 2},
                               MemberRun{kMaxRanks, 1, 1}, MemberRun{kMaxRanks - 1, 1, 2},
                               MemberRun{0, 1, kMaxRanks + 1}, MemberRun{0, std::numeric_limits<int>::max(), 2},
                               MemberRun{1, -1, 3}, MemberRun{0, 0, 5}, MemberRun{0, 1, 0}, MemberRun{0, 1, -1}}) {
    Layout layout;
    EXPECT_FALSE(layout.SetGroup(0, 0, {"g", "", {{0, 1, 1}, run}}))
        << run.first << " " << run.stride << " " << run.count;
    layout.SetGroup(1, 0, {"g", "", {}});
    EXPECT_THAT(layout.RanksWithUnusedGroups(), ::testing::ElementsAre(0));
    EXPECT_THAT(layout.Unheard(), ::testing::IsEmpty());
    layout.Rebuild();
    EXPECT_EQ(layout.group(layout.GroupOf(0, 0)).members.Expand(), (std::vector<int>{0, 1}))
        << "those who use the name";
    EXPECT_TRUE(layout.SetGroup(0, 0, Declared("g", "", {0, 1})));
    EXPECT_THAT(layout.RanksWithUnusedGroups(), ::testing::IsEmpty());
  }
}

TEST(Layout, ARankHasItsShareOfMembers) {
  Layout layout;
  const auto groups = static_cast<uint32_t>(Layout::kMaxMembersOfRank / kMaxRanks);
  for (uint32_t i = 0; i < groups; ++i) {
    EXPECT_TRUE(layout.SetGroup(0, i, {"g" + std::to_string(i), "", {{0, 1, kMaxRanks}}}));
  }
  EXPECT_FALSE(layout.SetGroup(0, groups, {"more", "", {{0, 1, 1}}}));
  EXPECT_GE(layout.GroupOf(0, groups), 0) << "its name stays";
  // One of them again, and smaller: the rank has room now.
  EXPECT_TRUE(layout.SetGroup(0, 0, {"g0", "", {{0, 1, kMaxRanks}}}));
  EXPECT_TRUE(layout.SetGroup(0, 0, {"g0", "", {{0, 1, 8}}}));
  EXPECT_TRUE(layout.SetGroup(0, groups, {"more", "", {{0, 1, 1}}}));
}

// A node that brings what nobody else knows leaves the others their room.
TEST(Layout, ANodeHasItsShareOfGroups) {
  Layout layout;
  int used = 0;
  for (int r = 0; r < 4096; ++r) {
    layout.SetPlace(r, {0, "host", r});
    for (uint32_t i = 0; i < 4; ++i) {
      used += layout.SetGroup(r, i, {std::to_string(r) + "/" + std::to_string(i), "", {{0, 1, kMaxRanks}}}) ? 1 : 0;
    }
  }
  EXPECT_EQ(static_cast<size_t>(used), GroupBudget::kLimits.node.members / kMaxRanks);
  EXPECT_LE(layout.groups_cost().members, GroupBudget::kLimits.node.members);
  EXPECT_LE(layout.groups_cost().bytes, GroupBudget::kLimits.node.bytes);
  layout.SetPlace(5000, {1, "other", 0});
  EXPECT_TRUE(layout.SetGroup(5000, 0, {"mine", "", {{0, 1, kMaxRanks}}}));
}

// The groups of a job of as many ranks as there can be, each in a world group and in three that split the world.
TEST(Layout, AJobOfAllRanksFits) {
  constexpr int kEighth = kMaxRanks / 8;
  constexpr int kPart = kMaxRanks / 64;
  Layout layout;
  for (int r = 0; r < kMaxRanks; ++r) {
    layout.SetPlace(r, {r / 8, "host", r % 8});
    ASSERT_TRUE(layout.SetGroup(r, 0, {"world", "", {{0, 1, kMaxRanks}}}));
    ASSERT_TRUE(layout.SetGroup(r, 1, {"tp" + std::to_string(r / 8), "tp", {{r / 8 * 8, 1, 8}}}));
    ASSERT_TRUE(layout.SetGroup(r, 2, {"pp" + std::to_string(r % kEighth), "pp", {{r % kEighth, kEighth, 8}}}));
    ASSERT_TRUE(layout.SetGroup(r, 3, {"dp" + std::to_string(r % kPart), "dp", {{r % kPart, kPart, 64}}}));
    ASSERT_TRUE(layout.SetGroup(r, 4, {"cp" + std::to_string(r / 2), "cp", {{r / 2 * 2, 1, 2}}}));
  }
  layout.Rebuild();
  EXPECT_EQ(layout.groups_cost().members, size_t{5} * kMaxRanks);
  EXPECT_LT(layout.groups_cost().bytes, size_t{56} << 20);
  EXPECT_THAT(layout.Unheard(), ::testing::IsEmpty());
}

TEST(Layout, KnowsMembersThatNobodyHasHeardOf) {
  Layout layout;
  layout.SetGroup(0, 0, Declared("g", "", {0, 2, 4}));
  layout.SetGroup(2, 0, Declared("g", "", {0, 2, 4}));
  EXPECT_THAT(layout.Unheard(), ::testing::ElementsAre(4));
  const uint64_t version = layout.version();
  layout.SetPlace(4, {0, "host", 1});
  EXPECT_NE(layout.version(), version);
  EXPECT_THAT(layout.Unheard(), ::testing::IsEmpty());
}

}  // namespace
}  // namespace taskd::diagnosis
