#include "diagnosis/own_view.h"

#include <cmath>

#include "gtest/gtest.h"

namespace taskd::diagnosis {
namespace {

// Four ranks that do the same: group 0 is tensor parallel, which blocks, group 1 data parallel, which may overlap.
Layout FourPeers() {
  Layout layout;
  for (int r = 0; r < 4; ++r) {
    layout.SetPlace(r, {r / 2, "host", r % 2});
    layout.SetGroup(r, 0, {r < 2 ? "tp0" : "tp1", "tp", CompressMembers({r / 2 * 2, r / 2 * 2 + 1})});
    layout.SetGroup(r, 1, {r % 2 == 0 ? "dp0" : "dp1", "dp", CompressMembers({r % 2, r % 2 + 2})});
  }
  layout.Rebuild();
  return layout;
}

OpFold Op(uint32_t group, uint32_t gaps, uint64_t gap_ns, uint64_t blocking_gap_ns) {
  OpFold op;
  op.group = group;
  op.op = CommOp::kAllReduce;
  op.count = gaps;
  op.gaps = op.blocking_gaps = gaps;
  op.gap_ns = gap_ns;
  op.blocking_gap_ns = blocking_gap_ns;
  return op;
}

StepFold Fold(std::vector<OpFold> ops) {
  StepFold fold;
  fold.head_ns = 20;
  fold.lead_ns = 4;
  fold.tail_ns = 6;
  fold.dataloader_own_ns = 3;
  fold.checkpoint_own_ns = 2;
  fold.forward_ns = 500;
  fold.forwards = 2;
  fold.ops = std::move(ops);
  return fold;
}

TEST(ChooseMode, TakesTheBestThatMostRanksHave) {
  const Layout layout = FourPeers();
  const StepFold blocking = Fold({Op(0, 4, 80, 100)});
  const StepFold seldom_blocking = Fold({Op(0, 3, 80, 100)});  // too few gaps to say anything
  const StepFold overlapping = Fold({Op(1, 9, 80, 100)});
  const StepFold forward_only = Fold({});
  const StepFold nothing;
  StepFold ends_later = forward_only;
  ends_later.covered_ns = 100;
  const struct {
    std::vector<StepFold> folds;
    OwnMode mode;
  } cases[] = {
      {{blocking, blocking, blocking, blocking}, OwnMode::kBulk},
      {{blocking, blocking, blocking, nothing}, OwnMode::kBulk},
      {{blocking, overlapping, overlapping, overlapping}, OwnMode::kAll},
      {{seldom_blocking, seldom_blocking, seldom_blocking, seldom_blocking}, OwnMode::kAll},
      {{ends_later, ends_later, ends_later, forward_only}, OwnMode::kAll},
      {{blocking, forward_only, forward_only, forward_only}, OwnMode::kForward},
      {{blocking, nothing, nothing, nothing}, OwnMode::kNone},
      {{}, OwnMode::kNone},
  };
  for (size_t i = 0; i < std::size(cases); ++i) {
    std::vector<std::pair<int, StepFold>> folds;
    for (const StepFold& fold : cases[i].folds) folds.emplace_back(static_cast<int>(folds.size()), fold);
    EXPECT_EQ(ChooseMode(layout, folds), cases[i].mode) << i;
  }
}

TEST(ViewByClass, CountsWhatTheModeSays) {
  const Layout layout = FourPeers();
  StepFold fold = Fold({Op(0, 4, 80, 100), Op(1, 2, 10, 30)});
  fold.ops[1].op = CommOp::kAllToAll;
  fold.ops[1].bytes = 1000;
  const struct {
    OwnMode mode;
    double cut, full, rest, tokens;
  } cases[] = {
      {OwnMode::kBulk, 80, 100, 0, 1000},  // gaps of blocking operations alone; the ends of the step are not in it
      {OwnMode::kAll, 90, 25, 25, 1000},   // gaps of all, and head + lead + tail less loading and saving: 30 - 5
      {OwnMode::kForward, 0, 0, 500, 0},
  };
  for (const auto& item : cases) {
    const auto views = ViewByClass(layout, {{1, fold}}, item.mode, 1);
    ASSERT_EQ(views[0].size(), 1u);
    EXPECT_EQ(views[0][0].rank, 1);
    EXPECT_EQ(views[0][0].cut, item.cut);
    EXPECT_EQ(views[0][0].full, item.full);
    EXPECT_EQ(views[0][0].rest, item.rest);
    EXPECT_EQ(views[0][0].tokens, item.tokens);
  }
}

TEST(ViewByClass, LeavesOutFoldsWithTooManyLostMarks) {
  const Layout layout = FourPeers();
  const struct {
    OwnMode mode;
    uint32_t broken;
    size_t views;
  } cases[] = {
      {OwnMode::kBulk, 8, 1},  // eight operations: up to 2 + 6
      {OwnMode::kBulk, 9, 0}, {OwnMode::kAll, 0, 1},
      {OwnMode::kAll, 1, 0},  {OwnMode::kForward, 9, 1},  // forward ranges are what they are
  };
  for (const auto& item : cases) {
    StepFold fold = Fold({Op(0, 8, 80, 100)});
    fold.broken = item.broken;
    EXPECT_EQ(ViewByClass(layout, {{1, fold}}, item.mode, 1)[0].size(), item.views);
  }
}

TEST(ComparePeers, TakesLowerMediansOfBothViews) {
  const StepFold fold = Fold({});
  const std::vector<OwnView> views = {{.rank = 0, .cut = 300, .full = 500, .tokens = 5, .fold = &fold},
                                      {.rank = 1, .cut = 100, .full = 200, .tokens = 1, .fold = &fold},
                                      {.rank = 2, .cut = 90, .full = 900, .rest = 20, .tokens = 9, .fold = &fold},
                                      {.rank = 3, .cut = 120, .full = 100, .tokens = 7, .fold = &fold}};
  const PeerViews peers = ComparePeers(views, OwnMode::kBulk);
  EXPECT_EQ(peers.views[2].cut, 110) << "with its rest";
  EXPECT_EQ(peers.cut_ns, 110) << "the second of 100, 110, 120, 300";
  EXPECT_EQ(peers.full_ns, 200);
  EXPECT_EQ(peers.tokens, 5);
  EXPECT_EQ(peers.tail_ns, 6);
  EXPECT_EQ(peers.reference_ns(), 200);
}

TEST(ComparePeers, MakesUpForLostGaps) {
  const StepFold whole = Fold({});
  StepFold broken = Fold({});
  broken.broken = 1;
  const std::vector<OwnView> views = {
      {.rank = 0, .cut = 100, .full = 120, .full_gaps = 4, .fold = &whole},
      {.rank = 1, .cut = 75, .full = 90, .full_gaps = 3, .fold = &broken},  // 25 and 30 a gap: one is missing
      {.rank = 2, .cut = 75, .full = 90, .full_gaps = 4, .fold = &whole}};  // that is what it takes
  const PeerViews peers = ComparePeers(views, OwnMode::kBulk);
  EXPECT_DOUBLE_EQ(peers.views[1].cut, 100);
  EXPECT_DOUBLE_EQ(peers.views[1].full, 120);
  EXPECT_EQ(peers.views[2].cut, 75);
}

TEST(ComparePeers, TrustsTheEndsOfAStepOnlyIfTheyAreAGoodPartOfIt) {
  const StepFold fold = Fold({});
  const struct {
    OwnMode mode;
    double rest, full_ns;
  } cases[] = {
      {OwnMode::kAll, 40, 0},    // 40 of 40 + 60
      {OwnMode::kAll, 60, 60},   // 60 of 60 + 60
      {OwnMode::kBulk, 40, 40},  // there it is not the ends
  };
  for (const auto& item : cases) {
    const PeerViews peers =
        ComparePeers({{.rank = 0, .cut = 60, .full = item.rest, .rest = item.rest, .fold = &fold}}, item.mode);
    EXPECT_EQ(peers.full_ns, item.full_ns);
    EXPECT_EQ(peers.reference_ns(), item.full_ns > 0 ? item.full_ns : 100);
  }
}

TEST(DeviationOf, IsTheSmallerOneOfBothViews) {
  const StepFold fold;
  const struct {
    OwnMode mode;
    double cut, full, tokens;
    double judged, unrest, own_ns, reference_ns;
  } cases[] = {
      // Longer in both: the smaller says what is certain. Bulk shows the gaps between blocking operations.
      {OwnMode::kBulk, 120, 220, 10, std::log(1.1), std::log(1.1), 220, 200},
      // A wait for an overlapped operation is in the full view only.
      {OwnMode::kBulk, 105, 260, 10, std::log(1.05), std::log(1.3), 260, 200},
      {OwnMode::kAll, 120, 220, 10, std::log(1.1), std::log(1.1), 120, 100},
      // No full view of this rank.
      {OwnMode::kBulk, 120, 0, 10, std::log(1.2), std::log(1.2), 120, 100},
      // A fifth more tokens explain a fifth more work; fewer explain nothing.
      {OwnMode::kBulk, 120, 240, 12, 0, std::log(1.2), 240, 200},
      {OwnMode::kBulk, 120, 240, 5, std::log(1.2), std::log(1.2), 240, 200},
      // Faster.
      {OwnMode::kBulk, 50, 200, 10, std::log(0.5), 0, 200, 200},
  };
  for (size_t i = 0; i < std::size(cases); ++i) {
    const auto& item = cases[i];
    std::vector<double> cuts = {100, item.cut, 100}, fulls = {200, item.full, 200};
    PeerViews peers{.views = std::vector<OwnView>(3),
                    .cut_of_others = MedianOfOthers(cuts),
                    .full_of_others = MedianOfOthers(fulls),
                    .cut_ns = 100,
                    .full_ns = 200,
                    .tokens = 10};
    peers.views[1] = {.rank = 1, .cut = item.cut, .full = item.full, .tokens = item.tokens, .fold = &fold};
    const Deviation deviation = DeviationOf(peers, 1, item.mode);
    EXPECT_NEAR(deviation.judged, item.judged, 1e-12) << i;
    EXPECT_NEAR(deviation.unrest, item.unrest, 1e-12) << i;
    EXPECT_EQ(deviation.own_ns, item.own_ns) << i;
    EXPECT_EQ(deviation.reference_ns, item.reference_ns) << i;
  }
}

TEST(DeviationOf, ComparesWithTheOthers) {
  const StepFold fold;
  const PeerViews two = ComparePeers(
      {{.rank = 0, .cut = 100, .full = 200, .fold = &fold}, {.rank = 1, .cut = 130, .full = 220, .fold = &fold}},
      OwnMode::kBulk);
  EXPECT_NEAR(DeviationOf(two, 0, OwnMode::kBulk).judged, -std::log(1.3), 1e-12);
  EXPECT_NEAR(DeviationOf(two, 1, OwnMode::kBulk).judged, std::log(1.1), 1e-12);
  const PeerViews three = ComparePeers({{.rank = 0, .cut = 100, .fold = &fold},
                                        {.rank = 1, .cut = 140, .fold = &fold},
                                        {.rank = 2, .cut = 120, .fold = &fold}},
                                       OwnMode::kAll);
  EXPECT_NEAR(DeviationOf(three, 1, OwnMode::kAll).judged, std::log(140 / 110.0), 1e-12);
  EXPECT_NEAR(DeviationOf(three, 2, OwnMode::kAll).judged, 0, 1e-12);
}

}  // namespace
}  // namespace taskd::diagnosis
