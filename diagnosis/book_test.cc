#include "diagnosis/book.h"

#include "gtest/gtest.h"

namespace taskd::diagnosis {
namespace {

Accusation Accuse(Scope scope, std::vector<int> ids, Cause cause, std::set<int> concerns, int64_t since_step = 10) {
  Accusation accusation;
  accusation.verdict.scope = scope;
  accusation.verdict.ids = std::move(ids);
  accusation.verdict.cause = cause;
  accusation.verdict.since_step = since_step;
  accusation.key = KeyOf(accusation.verdict);
  accusation.concerns = std::move(concerns);
  return accusation;
}

Accusation SlowRank(int rank, int64_t since_step = 10) {
  return Accuse(Scope::kRank, {rank}, Cause::kCompute, {rank}, since_step);
}

TEST(KeyOf, IsTheSameForNamesOfOneTrouble) {
  Verdict link;
  link.scope = Scope::kLink;
  link.links = {{0, 8}};
  link.cause = Cause::kPpLink;
  EXPECT_EQ(KeyOf(link), "transfer:link::0-8");
  const struct {
    Cause cause;
    std::string key;
  } cases[] = {
      // However own time became longer, it is own time.
      {Cause::kCompute, "own:rank:7"},
      {Cause::kMemory, "own:rank:7"},
      {Cause::kHost, "own:rank:7"},
      {Cause::kGc, "own:rank:7"},
      {Cause::kUnknown, "own:rank:7"},
      {Cause::kNetwork, "transfer:rank:7"},
      {Cause::kIntraNodeLink, "transfer:rank:7"},
      {Cause::kPpLink, "transfer:rank:7"},
      {Cause::kDataloader, "dataloader:rank:7"},
      {Cause::kCheckpoint, "checkpoint:rank:7"},
      {Cause::kFabric, "fabric:rank:7"},
      {Cause::kConfig, "config:rank:7"},
  };
  for (const auto& [cause, key] : cases) {
    Verdict verdict;
    verdict.ids = {7};
    verdict.cause = cause;
    EXPECT_EQ(KeyOf(verdict), key);
  }
}

TEST(Book, OpensContinuesAndClears) {
  Book book;
  EXPECT_TRUE(book.Update({SlowRank(7)}, 12));
  ASSERT_EQ(book.verdicts().size(), 1u);
  EXPECT_EQ(book.verdicts()[0].id, 1u);
  EXPECT_TRUE(book.verdicts()[0].open);
  EXPECT_EQ(book.verdicts()[0].last_step, 12);
  EXPECT_TRUE(book.IsOpen("own:rank:7"));

  EXPECT_FALSE(book.Update({SlowRank(7)}, 13)) << "nothing new but the numbers";
  EXPECT_EQ(book.verdicts()[0].last_step, 13);

  EXPECT_TRUE(book.Update({}, 14));
  EXPECT_FALSE(book.any_open());
  EXPECT_FALSE(book.verdicts()[0].open);
  EXPECT_EQ(book.verdicts()[0].last_step, 13) << "the last step that it was seen in";
  EXPECT_FALSE(book.Update({}, 15));
}

TEST(Book, ReportsAnotherCauseAsAChange) {
  Book book;
  book.Update({SlowRank(7)}, 12);
  EXPECT_TRUE(book.Update({Accuse(Scope::kRank, {7}, Cause::kGc, {7})}, 13));
  ASSERT_EQ(book.verdicts().size(), 1u);
  EXPECT_EQ(book.verdicts()[0].cause, Cause::kGc);
  EXPECT_EQ(book.verdicts()[0].id, 1u);
}

TEST(Book, OpensNothingThatIsNotConfirmedButKeepsItOpen) {
  Book book;
  Accusation young = SlowRank(7);
  young.confirmed = false;
  EXPECT_FALSE(book.Update({young}, 11));
  EXPECT_TRUE(book.verdicts().empty());
  book.Update({SlowRank(7)}, 12);
  EXPECT_FALSE(book.Update({young}, 13));
  EXPECT_TRUE(book.any_open());
}

TEST(Book, GoesOnWithOneVerdictWhenTheTroubleIsSeenSharper) {
  const Accusation rank = SlowRank(7);
  const struct {
    Accusation next;
    uint64_t id;  // 1: the rank's verdict goes on
    size_t verdicts;
    std::string why;
  } cases[] = {
      {Accuse(Scope::kNode, {3}, Cause::kHost, {6, 7}), 1, 1, "the rank's node"},
      {Accuse(Scope::kNode, {2}, Cause::kHost, {4, 5}), 2, 2, "other ranks: the first one is cleared"},
      {Accuse(Scope::kNode, {3}, Cause::kNetwork, {6, 7}), 2, 2, "the same ranks, but transfers are another trouble"},
  };
  for (const auto& item : cases) {
    Book book;
    book.Update({rank}, 12);
    EXPECT_TRUE(book.Update({item.next}, 13));
    ASSERT_EQ(book.verdicts().size(), item.verdicts) << item.why;
    EXPECT_EQ(book.verdicts()[0].id, item.id) << item.why;
  }
}

TEST(Book, KeepsBothWhenTheFirstIsStillAccused) {
  Book book;
  book.Update({SlowRank(7)}, 12);
  book.Update({SlowRank(7), Accuse(Scope::kNode, {3}, Cause::kHost, {6, 7})}, 13);
  ASSERT_EQ(book.verdicts().size(), 2u);
  EXPECT_TRUE(book.verdicts()[0].open && book.verdicts()[1].open);
  EXPECT_NE(book.verdicts()[0].id, book.verdicts()[1].id);
}

TEST(Book, ReopensTheClearedOneOnlyIfItBeganInTheSameStep) {
  Book book;
  book.Update({SlowRank(7, 10)}, 12);
  book.Update({}, 13);
  book.Update({SlowRank(7, 10)}, 14);
  ASSERT_EQ(book.verdicts().size(), 1u);
  EXPECT_EQ(book.verdicts()[0].id, 1u);
  book.Update({}, 15);
  book.Update({SlowRank(7, 100)}, 102);
  ASSERT_EQ(book.verdicts().size(), 2u);
  EXPECT_EQ(book.verdicts()[0].id, 2u);
}

TEST(Book, RemembersWhenAVerdictBegan) {
  // The engine forgets when old steps ended, and then gives 0 or a later end.
  const struct {
    int64_t since_step;
    uint64_t since_ns, expected_ns;
  } cases[] = {
      {10, 0, 5000},     // the same onset: what was known first
      {10, 9000, 5000},  //
      {9, 9000, 9000},   // another onset: its own
      {9, 0, 0},
  };
  for (const auto& item : cases) {
    Book book;
    Accusation first = SlowRank(7, 10);
    first.verdict.since_ns = 5000;
    book.Update({first}, 12);
    Accusation next = SlowRank(7, item.since_step);
    next.verdict.since_ns = item.since_ns;
    book.Update({next}, 13);
    EXPECT_EQ(book.verdicts()[0].since_ns, item.expected_ns);
  }
}

TEST(Book, ListsOpenOnesFirstEachPartByCost) {
  Book book;
  Accusation costs_5 = SlowRank(1), costs_9 = SlowRank(2), costs_7 = SlowRank(3), costs_99 = SlowRank(4);
  costs_5.verdict.cost_ms_per_step = 5;
  costs_9.verdict.cost_ms_per_step = 9;
  costs_7.verdict.cost_ms_per_step = 7;
  costs_99.verdict.cost_ms_per_step = 99;
  book.Update({costs_5, costs_9, costs_7, costs_99}, 12);
  book.Update({costs_5, costs_9}, 13);
  std::vector<int> order;
  for (const Verdict& verdict : book.verdicts()) order.push_back(verdict.ids[0]);
  EXPECT_EQ(order, (std::vector<int>{2, 1, 4, 3}));
}

TEST(Book, ForgetsTheOldestClearedOnes) {
  Book book;
  for (int i = 0; i <= static_cast<int>(Book::kMaxCleared); ++i) {
    book.Update({SlowRank(i, i)}, i);
    book.Update({}, i);
  }
  EXPECT_EQ(book.verdicts().size(), Book::kMaxCleared);
  EXPECT_EQ(book.verdicts()[0].id, 2u);
}

TEST(Book, TakesOverAnEarlierLife) {
  Verdict open = SlowRank(7).verdict;
  open.id = 4;
  Verdict cleared = SlowRank(2).verdict;
  cleared.id = 9;
  cleared.open = false;
  Book book;
  book.Restore({open, cleared});
  EXPECT_TRUE(book.IsOpen("own:rank:7"));
  EXPECT_FALSE(book.IsOpen("own:rank:2"));
  // The restored one goes on as the verdict of its node; a new one has an id that was never used.
  book.Update({Accuse(Scope::kNode, {3}, Cause::kHost, {6, 7}), SlowRank(30)}, 20);
  ASSERT_EQ(book.verdicts().size(), 3u);
  EXPECT_EQ(book.verdicts()[0].id, 4u);
  EXPECT_EQ(book.verdicts()[1].id, 10u);
}

}  // namespace
}  // namespace taskd::diagnosis
