#include "manager/verdicts/diagnosis_feed.h"

#include "diagnosis/render.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "manager/switch/core.h"
#include "manager/test_job.h"

namespace taskd::manager {
namespace {

constexpr uint64_t kSecond = 1'000'000'000;
constexpr int kMaxRanks = diagnosis::kMaxRanks;
constexpr KindMask kSteps = MaskOf(SwitchKind::kStep);

class FeedTest : public ::testing::Test {
 protected:
  static FoldBatch Step(int rank, int64_t step) {
    FoldBatch batch;
    StepFold fold;
    fold.step = step;
    fold.start_ns = 1000 * kSecond + static_cast<uint64_t>(step) * kSecond;
    fold.end_ns = fold.start_ns + kSecond / 2;
    batch.steps.push_back({rank, fold});
    return batch;
  }
  uint64_t Taken(uint64_t stream, int rank) {
    uint64_t before = feed_.counts().steps;
    feed_.Folds(stream, Step(rank, next_step_++), now_);
    return feed_.counts().steps - before;
  }
  // Of ranks 0 and 1, on stream 1.
  void TakeTwentySteps() {
    for (int64_t step = 0; step < 20; ++step) {
      for (int rank : {0, 1}) {
        FoldBatch batch = Step(rank, step);
        batch.steps[0].fold.previous_end_ns = batch.steps[0].fold.end_ns - kSecond;
        feed_.Folds(1, std::move(batch), now_);
      }
      feed_.Advance(now_);
    }
  }
  // All of its ranks on stream 1, "host-a".
  void Connect(const TestJob& job) {
    std::vector<RankPresence> ranks;
    FoldBatch groups;
    for (int rank = 0; rank < job.ranks; ++rank) {
      ranks.push_back({rank, true});
      groups.groups.push_back({rank, {job.Group()}});
    }
    feed_.Connect(1, 0, "host-a");
    feed_.Ranks(1, ranks);
    feed_.Folds(1, std::move(groups), now_);
  }
  bool IsNamed(int rank) const {
    const diagnosis::Report report = feed_.report();
    return std::any_of(report.verdicts.begin(), report.verdicts.end(), [rank](const diagnosis::Verdict& verdict) {
      return verdict.open && verdict.ids == std::vector<int>{rank};
    });
  }

  DiagnosisFeed feed_{DiagnosisFeed::Options{}};
  uint64_t now_ = 5 * kSecond;
  int64_t next_step_ = 0;
};

TEST_F(FeedTest, ARankBelongsToTheFirstThatReportsIt) {
  feed_.Connect(1, 0, "host-a");
  feed_.Connect(2, 1, "host-b");
  feed_.Ranks(1, {{0, true}, {1, true}});
  EXPECT_EQ(Taken(1, 1), 1u);
  EXPECT_EQ(Taken(2, 1), 0u) << "it is another stream's";
  EXPECT_EQ(feed_.counts().refused, 1u);

  feed_.Ranks(2, {{1, true}});
  EXPECT_EQ(feed_.owner(1), 1u);
  EXPECT_EQ(feed_.place(1).host, "host-a");
  EXPECT_EQ(Taken(1, 1), 1u);
  EXPECT_EQ(Taken(2, 1), 0u);
  EXPECT_EQ(feed_.report().notes.back().text,
            "rank 1 is reported by node 0 (host-a) and by node 1 (host-b): that of host-b is not used");
  feed_.Ranks(2, {{1, false}});
  EXPECT_THAT(feed_.report().notes.back().text, ::testing::Not(::testing::HasSubstr("host-b"))) << "it has gone";
}

// The job was moved, or its ranks were given to other nodes: the old node lingers.
TEST_F(FeedTest, WhoIsSetAsideGetsTheRankOnceTheFirstLetsItGo) {
  enum class Way { kDetaches, kListsItNoMore, kEnds, kEndsAndFolds };
  for (Way way : {Way::kDetaches, Way::kListsItNoMore, Way::kEnds, Way::kEndsAndFolds}) {
    DiagnosisFeed feed{DiagnosisFeed::Options{}};
    feed.Connect(1, 0, "host-a");
    feed.Connect(2, 5, "host-b");
    feed.Ranks(1, {{0, true}, {7, true}});
    feed.Ranks(2, {{7, true}});
    ASSERT_EQ(feed.owner(7), 1u);
    EXPECT_EQ(feed.counts().live_ranks, 2u);
    if (way == Way::kDetaches) feed.Ranks(1, {{0, true}, {7, false}});
    if (way == Way::kListsItNoMore) feed.Ranks(1, {{0, true}});
    if (way == Way::kEnds || way == Way::kEndsAndFolds) feed.Disconnect(1, now_);
    if (way == Way::kEndsAndFolds) feed.Folds(2, Step(7, 1), now_);
    EXPECT_EQ(feed.owner(7), 2u) << static_cast<int>(way);
    EXPECT_EQ(feed.place(7).host, "host-b");
    feed.Folds(2, Step(7, 2), now_);
    EXPECT_EQ(feed.counts().refused, 0u);
    feed.Advance(now_ + 60 * kSecond);
    EXPECT_EQ(feed.owner(7), 2u);
    EXPECT_EQ(feed.counts().live_ranks, way == Way::kEnds || way == Way::kEndsAndFolds ? 1u : 2u);
    feed.Ranks(1, {{0, true}, {7, true}});
    EXPECT_EQ(feed.owner(7), 2u) << "and keeps it";
  }
}

TEST_F(FeedTest, ARankThatHasEndedGoesToWhereItLives) {
  feed_.Connect(1, 0, "host-a");
  feed_.Connect(2, 1, "host-b");
  feed_.Ranks(1, {{7, true}});
  feed_.Ranks(1, {{7, false}});
  EXPECT_EQ(feed_.owner(7), 1u) << "its last steps may still come";
  EXPECT_EQ(Taken(2, 7), 0u) << "it does not say that the rank lives there";
  feed_.Ranks(2, {{7, true}});
  EXPECT_EQ(feed_.owner(7), 2u);
  EXPECT_EQ(Taken(1, 7), 0u);
  EXPECT_EQ(Taken(2, 7), 1u);
}

TEST_F(FeedTest, AProxyThatConnectsAnewHasItsRanksAtOnce) {
  feed_.Connect(1, 0, "host-a");
  feed_.Ranks(1, {{0, true}, {1, true}});
  feed_.Connect(2, 0, "host-a");
  feed_.Ranks(2, {{0, true}, {1, true}});
  EXPECT_EQ(feed_.owner(1), 2u) << "the end of the old stream comes later";
  EXPECT_EQ(Taken(2, 1), 1u);
  feed_.Disconnect(1, now_);
  feed_.Advance(now_ + 60 * kSecond);
  EXPECT_EQ(feed_.owner(1), 2u);
  EXPECT_EQ(feed_.counts().live_ranks, 2u);
}

// What a broken stream may have lost comes again, and what it had brought with it.
TEST_F(FeedTest, WhatComesAgainCountsOnce) {
  const auto numbered = [&](int rank, int64_t step, uint64_t number) {
    FoldBatch batch = Step(rank, step);
    batch.steps[0].number = number;
    return batch;
  };
  feed_.Connect(1, 0, "host-a", 77);
  feed_.Ranks(1, {{0, true}, {1, true}});
  feed_.Folds(1, numbered(0, 0, 1), now_);
  feed_.Folds(1, numbered(1, 0, 2), now_);
  feed_.Folds(1, numbered(0, 1, 3), now_);
  feed_.Connect(2, 0, "host-a", 77);
  feed_.Ranks(2, {{0, true}, {1, true}});
  feed_.Folds(2, numbered(0, 1, 3), now_);
  feed_.Folds(2, numbered(1, 1, 4), now_);
  feed_.Folds(2, numbered(0, 0, 5), now_);  // the job was started again, at its first step
  EXPECT_EQ(feed_.counts().again, 1u);
  EXPECT_EQ(feed_.counts().steps, 5u);
  // Another life of the proxy, whose numbers begin anew; and one that does not number them.
  feed_.Connect(3, 0, "host-a", 78);
  feed_.Ranks(3, {{0, true}, {1, true}});
  feed_.Folds(3, numbered(0, 1, 1), now_);
  feed_.Connect(4, 0, "host-a");
  feed_.Ranks(4, {{0, true}, {1, true}});
  feed_.Folds(4, Step(0, 2), now_);
  EXPECT_EQ(feed_.counts().again, 1u);
  EXPECT_EQ(feed_.counts().steps, 7u);
}

TEST_F(FeedTest, CountsWhatTheEngineDoesNotUse) {
  feed_.Connect(1, 0, "host-a");
  for (int i = 0; i < 3; ++i) feed_.Folds(1, Step(0, 5), now_);
  EXPECT_EQ(feed_.counts().steps, 3u);
  EXPECT_EQ(feed_.counts().unused, 2u);
}

TEST_F(FeedTest, SaysWhyNoStepComes) {
  const auto said = [this] { return feed_.report().notes.at(0).text; };
  EXPECT_EQ(said(), "no node has connected yet; only 0 steps can be judged so far; 10 are needed");
  feed_.Connect(1, 0, "host-a");
  EXPECT_THAT(said(), ::testing::StartsWith("no rank has made a mark yet: PyTorch makes them where "));
  feed_.Ranks(1, {{0, true}, {1, true}});
  EXPECT_EQ(said(), "marks are off (taskd switch all=on)") << "nobody has switched them on";
  feed_.Ranks(1, {{0, true, 0}, {1, true, kSteps}});
  EXPECT_THAT(said(), ::testing::StartsWith("steps are switched off in 1 of 2 ranks (taskd switch all=on); "));
  feed_.Ranks(1, {{0, true, kSteps}, {1, true, kSteps}});
  EXPECT_THAT(said(), ::testing::StartsWith("communication is switched off, so waits look like work (taskd switch"));
  feed_.Ranks(1, {{0, true, kAllKindsMask}, {1, true, kAllKindsMask}});
  EXPECT_THAT(said(), ::testing::StartsWith("no step has ended yet"));
  feed_.Folds(1, Step(0, 0), now_);
  EXPECT_EQ(said(), "only 0 steps can be judged so far; 10 are needed");
}

TEST_F(FeedTest, SaysThatRanksEndedWithoutAStep) {
  const auto said = [this] { return feed_.report().notes.at(0).text; };
  feed_.Connect(1, 0, "host-a");
  feed_.Ranks(1, {{0, true}, {1, true}});
  feed_.Ranks(1, {{0, false}, {1, false}});
  EXPECT_THAT(said(), ::testing::StartsWith("the ranks have ended, and marks were off (taskd switch all=on"));
  feed_.Ranks(1, {{0, true, kSteps}});
  feed_.Ranks(1, {});
  EXPECT_THAT(
      said(),
      ::testing::StartsWith(
          "the ranks have ended without a step: only what a rank marks as \"step N\" is one (docs/marks.md); "));
}

TEST_F(FeedTest, SaysThatAJobWhoseNodesHaveLeftMadeNoMark) {
  feed_.Connect(1, 0, "host-a");
  feed_.Disconnect(1, now_);
  feed_.Advance(now_);
  EXPECT_THAT(feed_.report().notes.at(0).text, ::testing::StartsWith("no rank has made a mark: "));
}

TEST_F(FeedTest, MarksThatAreOffAreSaidFirst) {
  feed_.Connect(1, 0, "host-a");
  feed_.Ranks(1, {{0, true, kAllKindsMask}, {1, true, kAllKindsMask}});
  TakeTwentySteps();
  const std::string before = diagnosis::WriteHeadline(feed_.report());
  feed_.Ranks(1, {{0, true, 0}, {1, true, kSteps}});
  EXPECT_THAT(diagnosis::WriteHeadline(feed_.report()),
              ::testing::EndsWith(": steps are switched off in 1 of 2 ranks (taskd switch all=on)"));
  feed_.Ranks(1, {{0, true, 0}, {1, true, 0}});
  EXPECT_THAT(diagnosis::WriteHeadline(feed_.report()),
              ::testing::EndsWith(": marks are off since step 19 (taskd switch all=on)"));
  feed_.Ranks(1, {{0, false, 0}, {1, false, 0}});
  EXPECT_EQ(diagnosis::WriteHeadline(feed_.report()), before) << "nobody is there who could record";
}

TEST_F(FeedTest, WithoutMarksAVerdictIsNotJudged) {
  TestJob job;
  job.slow = {{3, 1.5}};
  Connect(job);
  uint64_t end_ns = job.begin_ns;
  const auto run = [&](int64_t first, int64_t last) {
    for (int64_t step = first; step <= last; ++step) {
      FoldBatch batch;
      for (const StepFold& fold : job.Step(step, end_ns))
        batch.steps.push_back({static_cast<int>(batch.steps.size()), fold});
      feed_.Folds(1, std::move(batch), now_);
      feed_.Advance(now_);
    }
  };
  const auto record = [&](KindMask kinds) {
    std::vector<RankPresence> ranks;
    for (int rank = 0; rank < job.ranks; ++rank) ranks.push_back({rank, true, kinds});
    feed_.Ranks(1, ranks);
  };
  record(kAllKindsMask);
  run(0, 79);
  ASSERT_TRUE(IsNamed(3));
  const diagnosis::Verdict before = feed_.report().verdicts[0];
  record(0);
  const diagnosis::Report off = feed_.report();
  ASSERT_EQ(off.verdicts.size(), 1u);
  EXPECT_FALSE(off.verdicts[0].open);
  EXPECT_TRUE(off.verdicts[0].unjudged);
  EXPECT_EQ(off.verdicts[0].last_step, 79);
  EXPECT_EQ(off.state, diagnosis::JobState::kUnknown);
  record(kAllKindsMask);
  run(140, 150);
  const diagnosis::Report on = feed_.report();
  ASSERT_EQ(on.verdicts.size(), 1u);
  EXPECT_TRUE(on.verdicts[0].open);
  EXPECT_EQ(on.verdicts[0].id, before.id);
  EXPECT_EQ(on.verdicts[0].since_step, before.since_step);
}

TEST_F(FeedTest, AdviceIsNotToDoWhatIsDone) {
  feed_.Connect(1, 0, "host-a");
  feed_.Ranks(1, {{0, true, kSteps}, {1, true, kSteps}});
  TakeTwentySteps();
  auto said = [this] {
    std::string text;
    for (const diagnosis::Note& note : feed_.report().notes) text += note.text;
    return text;
  };
  EXPECT_THAT(said(), ::testing::HasSubstr("taskd switch communication=on"));
  feed_.Ranks(1, {{0, true, kAllKindsMask}, {1, true, kAllKindsMask}});
  EXPECT_THAT(said(), ::testing::HasSubstr("communication is switched on, but nothing"));
  EXPECT_THAT(said(), ::testing::Not(::testing::HasSubstr("taskd switch")));
}

TEST_F(FeedTest, FoldsAloneClaimWhatNobodyHas) {
  feed_.Connect(1, 0, "host-a");
  feed_.Connect(2, 1, "host-b");
  EXPECT_EQ(Taken(1, 7), 1u) << "the folds may come before the list of ranks";
  EXPECT_EQ(Taken(2, 7), 0u);
  feed_.Disconnect(1, now_);
  EXPECT_EQ(Taken(2, 7), 1u);
  EXPECT_EQ(feed_.owner(7), 2u);
  EXPECT_EQ(feed_.place(7).node, 1);
}

TEST_F(FeedTest, RanksThatCannotBeAreRefused) {
  feed_.Connect(1, 0, "host-a");
  feed_.Ranks(1, {{-1, true}, {kMaxRanks, true}, {INT32_MIN, true}, {INT32_MAX, false}, {kMaxRanks - 1, true}});
  for (int rank : {-1, INT32_MIN, kMaxRanks, INT32_MAX}) {
    EXPECT_EQ(Taken(1, rank), 0u) << rank;
    EXPECT_EQ(feed_.owner(rank), 0u);
    FoldBatch groups;
    groups.groups.push_back({rank, {GroupInfo{"g", "dp", {{0, 1, 2}}}}});
    feed_.Folds(1, std::move(groups), now_);
  }
  EXPECT_EQ(Taken(1, kMaxRanks - 1), 1u);
  EXPECT_EQ(feed_.counts().live_ranks, 1u);
}

// A few bytes that stand for all ranks that a job can have, with another name each time.
TEST_F(FeedTest, GroupsAreForgottenWithTheWordAndWithTheRank) {
  std::map<int, std::vector<GroupInfo>> shown;
  DiagnosisFeed::Options options;
  options.on_groups = [&](int, int rank, const std::vector<GroupInfo>& groups) { shown[rank] = groups; };
  DiagnosisFeed feed(options);
  feed.Connect(1, 0, "host-a");
  feed.Ranks(1, {{0, true}, {1, true}});
  for (int i = 0; i < 1000; ++i) {
    FoldBatch batch = Step(0, i);
    batch.groups.push_back({0, {{"g" + std::to_string(i), "dp", {{0, 1, kMaxRanks}}}, {"second", "", {{0, 1, 2}}}}});
    EXPECT_LT(BytesOf(batch), 2000u);
    feed.Folds(1, std::move(batch), now_);
  }
  EXPECT_LT(feed.counts().group_bytes, 2000u);
  EXPECT_EQ(feed.counts().groups_unused, 0u);
  EXPECT_THAT(shown[0], ::testing::SizeIs(2));
  FoldBatch fewer;
  fewer.groups.push_back({0, {{"g", "dp", {{0, 1, 2}}}}});
  feed.Folds(1, std::move(fewer), now_);
  EXPECT_THAT(shown[0], ::testing::SizeIs(1));
  const size_t one = feed.counts().group_bytes;
  EXPECT_LT(one, 1000u);
  feed.Ranks(1, {{1, true}});  // the rank has gone to where nobody knows
  EXPECT_EQ(feed.counts().group_bytes, 0u);
  EXPECT_THAT(shown[0], ::testing::IsEmpty());
}

TEST_F(FeedTest, AMemberThatIsNoRankCostsItsGroupAndNobodyElse) {
  std::map<int, std::vector<GroupInfo>> shown;
  DiagnosisFeed::Options options;
  options.on_groups = [&](int, int rank, const std::vector<GroupInfo>& groups) { shown[rank] = groups; };
  DiagnosisFeed feed(options);
  feed.Connect(1, 0, "host-a");
  FoldBatch batch;
  batch.bad_groups = 3;
  batch.groups.push_back({0, {{"bad", "dp", {{INT32_MIN, 1, 1}}}, {"good", "tp", {{0, 1, 2}}}}});
  feed.Folds(1, std::move(batch), now_);
  EXPECT_EQ(feed.counts().groups_unused, 4u);
  EXPECT_THAT(shown[0], ::testing::ElementsAre(GroupInfo{"bad", "dp", {}}, GroupInfo{"good", "tp", {{0, 1, 2}}}));
  std::string notes;
  for (const diagnosis::Note& note : feed.report().notes) notes += note.text + "\n";
  EXPECT_THAT(notes, ::testing::HasSubstr("members of groups of rank 0 are not used: one is no rank (0 to 131071)"));
  EXPECT_THAT(notes, ::testing::HasSubstr("no marks of rank 1: not judged")) << "a rank that there may be";
  EXPECT_THAT(notes, ::testing::Not(::testing::HasSubstr("-2147483648")));
}

TEST_F(FeedTest, AStreamHasNoMoreRanksThanANodeCan) {
  feed_.Connect(1, 0, "host-a");
  std::vector<RankPresence> ranks;
  for (int rank = 0; rank < kMaxRanksPerNode + 10; ++rank) ranks.push_back({rank, true});
  feed_.Ranks(1, ranks);
  EXPECT_EQ(feed_.counts().live_ranks, static_cast<uint64_t>(kMaxRanksPerNode));
  EXPECT_EQ(Taken(1, kMaxRanksPerNode + 5), 0u);
  feed_.Connect(2, 1, "host-b");
  EXPECT_EQ(Taken(2, kMaxRanksPerNode + 5), 1u);
}

TEST_F(FeedTest, UnknownStreamsHaveNoSay) {
  feed_.Ranks(9, {{0, true}});
  EXPECT_EQ(Taken(9, 0), 0u);
  feed_.Disconnect(9, now_);
  feed_.Advance(now_ + 100 * kSecond);
  EXPECT_EQ(feed_.owner(0), 0u);
}

TEST_F(FeedTest, TellsHowLongRanksWereStopped) {
  std::vector<std::pair<int, uint64_t>> stopped;
  DiagnosisFeed::Options options;
  options.on_stopped = [&](int rank, uint64_t stopped_ms) { stopped.emplace_back(rank, stopped_ms); };
  DiagnosisFeed feed(options);
  const auto report = [&](uint64_t stream, uint64_t of_0_ms, uint64_t of_1_ms) {
    std::vector<RankPresence> ranks = {{0, true}, {1, true}};
    ranks[0].stopped_ms = of_0_ms;
    ranks[1].stopped_ms = of_1_ms;
    feed.Ranks(stream, ranks);
  };
  feed.Connect(1, 0, "host-a");
  report(1, 700, 0);  // of before this manager
  report(1, 700, 300);
  report(1, 1700, 300);
  EXPECT_THAT(stopped, ::testing::ElementsAre(std::pair(1, 300), std::pair(0, 1000)));
  feed.Connect(2, 1, "host-b");
  report(2, 9000, 9000);  // not its ranks
  report(1, 0, 400);      // another proxy counts
  report(1, 100, 400);
  EXPECT_THAT(stopped,
              ::testing::ElementsAre(std::pair(1, 300), std::pair(0, 1000), std::pair(1, 100), std::pair(0, 100)));
}

TEST_F(FeedTest, TellsWhatRanksHaveSaved) {
  std::vector<std::pair<int, SavedInStep>> saved;
  DiagnosisFeed::Options options;
  options.on_saved = [&](int rank, const SavedInStep& of_rank) { saved.emplace_back(rank, of_rank); };
  DiagnosisFeed feed(options);
  std::vector<RankPresence> ranks = {{0, true}, {1, true}};
  ranks[1].saved = {7, 100};
  feed.Connect(1, 0, "host-a");
  feed.Ranks(1, ranks);
  ranks[1].attached = false;
  feed.Connect(2, 1, "host-b");
  feed.Ranks(2, {ranks[1]});  // not its rank
  ranks[1].saved = {7, 250};  // all of it, now that it has ended
  feed.Ranks(1, ranks);
  EXPECT_THAT(saved, ::testing::ElementsAre(std::pair(1, SavedInStep{7, 100}), std::pair(1, SavedInStep{7, 250})));
}

TEST_F(FeedTest, LocalRanksWhereTheyAreNumberedInRows) {
  feed_.Connect(1, 3, "host-d");
  feed_.Ranks(1, {{24, true}, {25, true}, {26, false}, {27, true}});
  EXPECT_EQ(feed_.place(24).local_rank, 0);
  EXPECT_EQ(feed_.place(27).local_rank, 3);
  feed_.Connect(2, 4, "host-e");
  feed_.Ranks(2, {{30, true}, {33, true}});
  EXPECT_EQ(feed_.place(33).local_rank, -1) << "a route plan has mixed them";
  EXPECT_EQ(feed_.place(33).node, 4);
  EXPECT_EQ(feed_.place(99), diagnosis::RankPlace{});
}

TEST_F(FeedTest, RanksThatDetachAreGoneAndTheirLastStepsCount) {
  feed_.Connect(1, 0, "host-a");
  feed_.Ranks(1, {{0, true}, {1, true}});
  EXPECT_EQ(Taken(1, 0) + Taken(1, 1), 2u);
  feed_.Ranks(1, {{0, true}, {1, false}});
  EXPECT_EQ(feed_.counts().live_ranks, 1u);
  EXPECT_EQ(Taken(1, 1), 1u) << "marks that the proxy drained after the end of the process";
  EXPECT_EQ(feed_.counts().live_ranks, 1u) << "nobody waits for more of them";
  feed_.Ranks(1, {{0, true}, {1, true}});
  EXPECT_EQ(feed_.counts().live_ranks, 2u) << "it was started again";
  feed_.Ranks(1, {{0, true}});
  EXPECT_EQ(feed_.counts().live_ranks, 1u);
  EXPECT_EQ(feed_.owner(1), 0u);
}

TEST_F(FeedTest, ANodeThatIsAwayForLongIsGone) {
  feed_.Connect(1, 0, "host-a");
  feed_.Ranks(1, {{0, true}, {1, true}});
  feed_.Disconnect(1, now_);
  EXPECT_TRUE(feed_.waits_for_time(now_));
  feed_.Advance(now_ + 29 * kSecond);
  EXPECT_EQ(feed_.counts().live_ranks, 2u) << "it may come back";
  // One rank does, by another stream.
  feed_.Connect(2, 0, "host-a");
  feed_.Ranks(2, {{1, true}});
  feed_.Advance(now_ + 31 * kSecond);
  EXPECT_EQ(feed_.counts().live_ranks, 1u);
  EXPECT_EQ(feed_.owner(0), 0u);
  EXPECT_EQ(feed_.owner(1), 2u);
  EXPECT_FALSE(feed_.waits_for_time(now_ + 31 * kSecond));
}

TEST_F(FeedTest, CountsWhatConnectedProxiesCouldNotSend) {
  feed_.Connect(1, 0, "host-a");
  feed_.Connect(2, 1, "host-b");
  FoldBatch batch = Step(0, 0);
  batch.proxy_dropped = 5;
  batch.unreadable = 2;
  feed_.Folds(1, batch, now_);
  batch.steps[0].rank = 1;
  feed_.Folds(2, batch, now_);
  EXPECT_EQ(feed_.counts().proxy_dropped, 10u);
  EXPECT_EQ(feed_.counts().refused, 4u);
  feed_.Disconnect(2, now_);
  EXPECT_EQ(feed_.counts().proxy_dropped, 5u);
}

// A process on another node says that it is rank 3, is faster, and reports first each time.
TEST_F(FeedTest, AnotherProcessWithARanksNumberHidesNobody) {
  TestJob job;
  uint64_t end_ns = job.begin_ns;
  Connect(job);
  feed_.Connect(66, 5, "host-b");
  for (int64_t step = 0; step < 160; ++step) {
    if (step == 40) feed_.Ranks(66, {{3, true}});
    if (step == 80) job.slow[3] = 1.61;
    FoldBatch batch, other;
    int rank = 0;
    for (StepFold& fold : job.Step(step, end_ns)) {
      if (rank == 2) {
        other.steps.push_back({3, fold});
        other.steps[0].fold.process_id = 99;
      }
      batch.steps.push_back({rank++, std::move(fold)});
    }
    now_ += kSecond / 10;
    feed_.Folds(66, std::move(other), now_);
    feed_.Folds(1, std::move(batch), now_);
    feed_.Advance(now_);
  }
  EXPECT_TRUE(IsNamed(3));
  EXPECT_EQ(feed_.report().notes.back().text,
            "rank 3 is reported by node 0 (host-a) and by node 5 (host-b): that of host-b is not used");
}

// A broken proxy sends what it likes, of its ranks and of everybody's. The others' verdict is the same.
TEST_F(FeedTest, ABrokenNodeCostsItsOwnRanks) {
  TestJob job;
  uint64_t end_ns = job.begin_ns;
  Connect(job);
  feed_.Connect(66, 1, "host-broken");
  for (int64_t step = 0; step < 160; ++step) {
    if (step == 80) job.slow[3] = 1.5;
    FoldBatch batch;
    int rank = 0;
    for (StepFold& fold : job.Step(step, end_ns)) batch.steps.push_back({rank++, std::move(fold)});
    now_ += kSecond / 10;
    feed_.Folds(1, std::move(batch), now_);
    FoldBatch broken;
    for (int claimed = 0; claimed < 12; ++claimed) {
      StepFold fold;
      fold.step = step % 3 == 0 ? INT64_MAX : step * 31 - 500;
      fold.end_ns = UINT64_MAX - static_cast<uint64_t>(step);
      fold.head_ns = UINT64_MAX / 2;
      fold.ops.resize(StepFold::kMaxOps, OpFold{0xffffffff, CommOp::kSend, 255, INT32_MIN, 0xffffffff, UINT64_MAX});
      broken.steps.push_back({claimed, fold});
    }
    feed_.Folds(66, std::move(broken), now_);
    feed_.Advance(now_);
  }
  now_ += 20 * kSecond;
  feed_.Advance(now_);
  EXPECT_EQ(feed_.counts().refused, 160u * 8);
  EXPECT_TRUE(IsNamed(3));
}

}  // namespace
}  // namespace taskd::manager
