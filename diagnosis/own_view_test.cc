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

TEST(MakeView, CountsWhatTheModeSays) {
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
    const std::optional<OwnView> view = MakeView(layout, 1, fold, item.mode);
    ASSERT_TRUE(view.has_value());
    EXPECT_EQ(view->rank, 1);
    EXPECT_EQ(view->cut, item.cut);
    EXPECT_EQ(view->full, item.full);
    EXPECT_EQ(view->rest, item.rest);
    EXPECT_EQ(view->tokens, item.tokens);
  }
}

TEST(MakeView, LeavesOutFoldsWithTooManyLostMarks) {
  const Layout layout = FourPeers();
  const struct {
    OwnMode mode;
    uint32_t broken;
    bool used;
  } cases[] = {
      {OwnMode::kBulk, 8, true},  // eight operations: up to 2 + 6
      {OwnMode::kBulk, 9, false}, {OwnMode::kAll, 0, true},
      {OwnMode::kAll, 1, false},  {OwnMode::kForward, 9, true},  // forward ranges are what they are
  };
  for (const auto& item : cases) {
    StepFold fold = Fold({Op(0, 8, 80, 100)});
    fold.broken = item.broken;
    EXPECT_EQ(MakeView(layout, 1, fold, item.mode).has_value(), item.used);
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

// Three peers, of which the last is the one in question. All of them have 60 at the ends of the step, as much as between.
TEST(ComparePeers, CountsTheGapsThatNobodyCanHaveHidden) {
  const StepFold fold = Fold({});
  const struct {
    const char* what;
    double peers_gap, gap;
    double peers_covered, covered;
    double certain;
  } cases[] = {
      {"as its peers", 60, 60, 5, 5, 0},
      {"longer, behind an operation that took all the same time", 60, 120, 5, 5, 60},
      {"longer by what the others may have done behind longer operations", 60, 120, 65, 5, 0},
      {"longer by more than that", 60, 120, 25, 5, 40},
      {"its operations ran longer: it may have hidden work, they have not", 60, 120, 5, 65, 60},
      {"longer by less than that", 60, 70, 95, 5, 0},
      {"shorter", 60, 30, 65, 5, 0},
  };
  for (const auto& item : cases) {
    const OwnView peer = {.cut = item.peers_gap, .full = 60, .covered = item.peers_covered, .rest = 60, .fold = &fold};
    OwnView own = peer;
    own.cut = item.gap;
    own.covered = item.covered;
    const PeerViews peers = ComparePeers({peer, peer, own}, OwnMode::kAll);
    EXPECT_EQ(peers.views[2].certain, item.certain) << item.what;
    EXPECT_EQ(peers.views[2].cut, 60 + item.gap) << item.what;
    EXPECT_EQ(ComparePeers({peer, peer, own}, OwnMode::kBulk).views[2].certain, 0) << "there it is not the ends";
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

TEST(ComparePeers, CountsHowMuchLaterARankCameToAnOperation) {
  constexpr uint64_t kBegin = 1000;
  const auto fold = [](uint64_t until_first, uint64_t until_second) {
    StepFold fold = Fold({Op(1, 1, 0, 0), Op(1, 1, 60, 0)});
    fold.previous_end_ns = kBegin;
    fold.ops[1].size_log2 = 20;
    fold.ops[0].first_start_ns = kBegin + until_first;
    fold.ops[1].first_start_ns = kBegin + until_second;
    return fold;
  };
  const StepFold usual = fold(30, 100);
  const auto certain = [&](const StepFold& own, double work_factor) {
    const auto view = [](const StepFold& fold, double gap, double covered) {
      return OwnView{.cut = gap, .full = 60, .covered = covered, .rest = 60, .fold = &fold};
    };
    // By the sums its peers may have hidden all that it took longer.
    OwnView late = view(own, 90, 5);
    late.work_factor = work_factor;
    return ComparePeers({view(usual, 60, 65), view(usual, 60, 65), late}, OwnMode::kAll).views[2].certain;
  };
  EXPECT_EQ(certain(fold(30, 120), 1), 20);
  EXPECT_EQ(certain(fold(25, 90), 1), 0) << "it was earlier";
  EXPECT_EQ(certain(fold(30, 120), 0.9), 0) << "it had more work: when it would have come is not known";
  StepFold loading = fold(30, 120);
  loading.dataloader_own_ns += 15;
  EXPECT_EQ(certain(loading, 1), 5);
  StepFold other = fold(30, 120);
  other.ops[1].op = CommOp::kAllGather;
  EXPECT_EQ(certain(other, 1), 0) << "another operation";
  StepFold shorter = fold(30, 120);
  shorter.ops.pop_back();
  EXPECT_EQ(certain(shorter, 1), 0);
  StepFold unknown = fold(30, 120);
  unknown.previous_end_ns = 0;
  EXPECT_EQ(certain(unknown, 1), 0) << "when its step began is not known";
}

TEST(DeviationOf, TheEndsOfAStepDoNotHideALongerGap) {
  const StepFold fold;
  const OwnView peer = {.cut = 40, .full = 60, .covered = 5, .rest = 60, .fold = &fold};
  OwnView own = peer;
  own.cut = 140;  // its ends are its peers'
  const PeerViews peers = ComparePeers({peer, peer, own}, OwnMode::kAll);
  EXPECT_NEAR(DeviationOf(peers, 2, OwnMode::kAll).judged, std::log(2), 1e-12);
  EXPECT_NEAR(DeviationOf(peers, 0, OwnMode::kAll).judged, std::log(100 / 150.0), 1e-12);
  // Nor does a gap that is not certain hide longer ends.
  own.rest = own.full = 120;
  OwnView hiding = peer;
  hiding.covered = 200;
  const PeerViews ends = ComparePeers({hiding, hiding, own}, OwnMode::kAll);
  EXPECT_NEAR(DeviationOf(ends, 2, OwnMode::kAll).judged, std::log(2), 1e-12);
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
