#include "diagnosis/explanation.h"

#include "gtest/gtest.h"

namespace taskd::diagnosis {
namespace {

constexpr double kSlow = 4.6, kFine = -4.6;  // log likelihoods: 99 to 1, either way

// `nodes` of two ranks each.
Layout Nodes(int nodes) {
  Layout layout;
  for (int r = 0; r < 2 * nodes; ++r) layout.SetPlace(r, {r / 2, "host", r % 2});
  layout.Rebuild();
  return layout;
}

Line Pair(int a, int b, double support) {
  return {.group = 0,
          .a = a,
          .b = b,
          .members = {a, b},
          .inter_node = a / 2 != b / 2,
          .support = support,
          .raised = support == kSlow};
}

Line OfGroup(std::vector<int> members, double support) {
  const bool inter_node = members.front() / 2 != members.back() / 2;
  return {.group = 0,
          .members = std::move(members),
          .inter_node = inter_node,
          .support = support,
          .raised = support == kSlow};
}

TEST(ExplainSlowLines, ExplainsNothingWhereNothingIsRaised) {
  EXPECT_TRUE(ExplainSlowLines(Nodes(4), {}, true).empty());
  EXPECT_TRUE(ExplainSlowLines(Nodes(4), {Pair(0, 2, kFine), Pair(2, 4, 1)}, true).empty());
}

TEST(ExplainSlowLines, AccusesTheSmallestThatCoversTheSlowLinesAndNoOthers) {
  const struct {
    std::vector<Line> lines;
    Scope scope;
    std::vector<int> ids;
    Cause cause;
    std::string why;
  } cases[] = {
      {{Pair(0, 2, kSlow), Pair(2, 4, kSlow), Pair(4, 6, kFine), Pair(3, 5, kFine)},
       Scope::kRank,
       {2},
       Cause::kNetwork,
       "both lines of rank 2 are slow, one each of ranks 0 and 4; its neighbour's is not, so it is not the node"},
      {{Pair(0, 2, kSlow), Pair(2, 4, kSlow), Pair(3, 5, kSlow), Pair(4, 6, kFine)},
       Scope::kNode,
       {1},
       Cause::kNetwork,
       "all lines of both ranks of node 1"},
      {{OfGroup({4, 5}, kSlow), OfGroup({6, 7}, kFine)}, Scope::kNode, {2}, Cause::kIntraNodeLink, "inside a node"},
      {{OfGroup({0, 2, 4, 6}, kSlow), OfGroup({1, 3, 5, 7}, kFine)},
       Scope::kGroup,
       {0, 2, 4, 6},
       Cause::kNetwork,
       "any of its members explains as much as the group does"},
      {{OfGroup({0, 2}, kSlow), OfGroup({0, 2}, kSlow), Pair(4, 6, kFine)},
       Scope::kGroup,
       {0, 2},
       Cause::kNetwork,
       "either rank explains both lines: the set of them"},
      {{OfGroup({0, 1, 2, 3, 4, 5, 6, 7}, kSlow)},
       Scope::kJob,
       {},
       Cause::kFabric,
       "all ranks are no answer to who it is"},
  };
  for (const auto& item : cases) {
    const std::vector<Explanation> explanations = ExplainSlowLines(Nodes(4), item.lines, false);
    ASSERT_EQ(explanations.size(), 1u) << item.why;
    EXPECT_EQ(explanations[0].scope, item.scope) << item.why;
    EXPECT_EQ(explanations[0].ids, item.ids) << item.why;
    EXPECT_EQ(explanations[0].cause, item.cause) << item.why;
  }
}

TEST(ExplainSlowLines, NamesALinkAndWhoElseExplainsAsMuch) {
  const std::vector<Explanation> explanations =
      ExplainSlowLines(Nodes(4), {Pair(0, 2, kSlow), Pair(2, 4, kFine), Pair(4, 6, kFine)}, true);
  ASSERT_EQ(explanations.size(), 1u);
  EXPECT_EQ(explanations[0].scope, Scope::kLink);
  EXPECT_EQ(explanations[0].links, (std::vector<Link>{{0, 2}}));
  EXPECT_EQ(explanations[0].cause, Cause::kPpLink);
  EXPECT_EQ(explanations[0].lines, std::vector<int>{0});
  // Rank 0 and node 0 have no other line, so their score is 4.6, too. Rank 2 and node 1 have one that is fine: 0, and
  // exp(-4.6) = 0.01 of the likelihood. A third each, less a little.
  ASSERT_EQ(explanations[0].alternatives.size(), 2u);
  EXPECT_EQ(explanations[0].alternatives[0].scope, Scope::kRank);
  EXPECT_EQ(explanations[0].alternatives[0].ids, std::vector<int>{0});
  EXPECT_EQ(explanations[0].alternatives[1].scope, Scope::kNode);
  EXPECT_NEAR(explanations[0].alternatives[0].probability, 1 / 3.02, 1e-4);
  EXPECT_EQ(explanations[0].confidence, 0.9) << "that the line is slow is certain, whatever end of it is";
}

TEST(ExplainSlowLines, ExplainsOneAfterTheOther) {
  const std::vector<Explanation> explanations = ExplainSlowLines(
      Nodes(4), {OfGroup({0, 1}, kSlow), OfGroup({2, 3}, kFine), OfGroup({4, 5}, kSlow), OfGroup({6, 7}, kFine)}, true);
  ASSERT_EQ(explanations.size(), 2u);
  // Both nodes explain as much, but not the same line: the first answer is the set of them.
  EXPECT_EQ(explanations[0].ids, (std::vector<int>{0, 2}));
  EXPECT_EQ(explanations[1].ids, (std::vector<int>{2}));
}

TEST(ExplainSlowLines, BlamesTheFabricForMostLinesOfManyNodes) {
  const std::vector<Line> all = {Pair(0, 2, kSlow), Pair(2, 4, kSlow), Pair(4, 6, kSlow)};
  const std::vector<Line> of_one_node = {Pair(0, 2, kSlow), Pair(2, 4, kSlow), Pair(4, 6, kFine)};
  const std::vector<Line> two_nodes = {Pair(0, 2, kSlow), Pair(1, 3, kSlow)};
  const std::vector<Line> half_of_two = {Pair(0, 2, kSlow), Pair(1, 3, kFine)};
  const struct {
    int nodes;
    const std::vector<Line>& lines;
    bool changed;
    double confidence;  // 0: it is not the fabric
  } cases[] = {
      {4, all, true, 0.95},
      {4, all, false, 0},         // they have always been slower than others: that is how it is built
      {4, of_one_node, true, 0},  // node 1 has all slow lines, and one is not slow
      {2, two_nodes, true, 0.7},  // either node would explain it as well
      {2, half_of_two, true, 0},
  };
  for (size_t i = 0; i < std::size(cases); ++i) {
    const std::vector<Explanation> found = ExplainSlowLines(Nodes(cases[i].nodes), cases[i].lines, cases[i].changed);
    ASSERT_FALSE(found.empty()) << i;
    const bool fabric = found[0].scope == Scope::kJob && found[0].lines.size() == cases[i].lines.size();
    EXPECT_EQ(fabric ? found[0].confidence : 0, cases[i].confidence) << i;
  }
}

}  // namespace
}  // namespace taskd::diagnosis
