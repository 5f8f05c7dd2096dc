#include "store/root_core.h"

#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "store/testing/clients.h"

namespace taskd::store {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;
using Asked = CoreClients::Asked;
using Result = StoreCore::Result;
using Strings = std::vector<std::string>;

constexpr uint64_t kTier = 100;
constexpr uint64_t kOtherTier = 101;

class RootCoreTest : public ::testing::Test {
 protected:
  struct Revoked {
    uint64_t stream;
    uint64_t batch;
    Strings keys;
  };

  RootCoreTest() {
    clients_.set_core(&root_);
    clients_.set_tier(kTier);
    clients_.set_tier(kOtherTier);
  }

  void Set(const std::string& key, const std::string& value) { clients_.Ask(1, StoreOp::kSet, {key}, {value}); }
  Strings Get(Strings keys) { return clients_.AnswerOf(1, StoreOp::kMultiGet, std::move(keys))->values; }
  StoreAnswer Add(const std::string& key, int64_t number) {
    return *clients_.AnswerOf(1, StoreOp::kAdd, {key}, {}, number);
  }
  std::string CompareSet(const std::string& key, const std::string& expected, const std::string& desired) {
    return clients_.AnswerOf(1, StoreOp::kCompareSet, {key}, {expected, desired})->values.at(0);
  }
  int64_t Number(StoreOp op, Strings keys = {}) { return clients_.AnswerOf(1, op, std::move(keys))->number; }
  Asked Wait(uint64_t stream, Strings keys) { return clients_.Ask(stream, StoreOp::kWait, std::move(keys)); }
  bool IsAnswered(const Asked& asked) { return clients_.AnswerTo(asked).has_value(); }

  CoreClients clients_;
  std::vector<Revoked> revoked_;
  Sharing sharing_{[this](uint64_t stream, uint64_t batch, const Strings& keys) {
    revoked_.push_back({stream, batch, keys});
  }};
  RootCore root_{clients_.Host(), &sharing_};
};

// ---- Values

TEST_F(RootCoreTest, AValueIsWhatWasSetLast) {
  EXPECT_FALSE(clients_.AnswerOf(1, StoreOp::kSet, {"k"}, {"old"}).has_value()) << "no reply";
  Set("k", std::string("\0new", 4));
  EXPECT_THAT(Get({"k"}), ElementsAre(std::string("\0new", 4)));
  clients_.Ask(1, StoreOp::kMultiSet, {"a", "b"}, {"1", ""});
  EXPECT_THAT(Get({"a", "b", "a"}), ElementsAre("1", "", "1"));
  EXPECT_EQ(Number(StoreOp::kCheck, {"a", "b"}), 1);
  EXPECT_EQ(Number(StoreOp::kCheck, {"a", "c"}), 0);
  EXPECT_EQ(Number(StoreOp::kNumKeys), 3);
  EXPECT_THAT(clients_.AnswerOf(1, StoreOp::kListKeys)->values, UnorderedElementsAre("k", "a", "b"));
  EXPECT_EQ(clients_.AnswerOf(1, StoreOp::kPing, {}, {}, 77)->number, 77);
}

TEST_F(RootCoreTest, AKeyThatIsNotThereIsEmptyOrTheEndOfAnOldClient) {
  EXPECT_THAT(Get({"k"}), ElementsAre(""));
  clients_.BeOld();
  EXPECT_TRUE(clients_.AnswerOf(1, StoreOp::kGet, {"k"})->fault);
}

TEST_F(RootCoreTest, AddCountsFromNothingAndFromAnyNumber) {
  EXPECT_EQ(Add("k", 5).number, 5);
  EXPECT_EQ(Add("k", -7).number, -2);
  EXPECT_THAT(Get({"k"}), ElementsAre("-2"));
  Set("k", " +12 apples");  // PyTorch's server reads this as a number
  EXPECT_EQ(Add("k", 1).number, 13);
  Set("k", std::to_string(std::numeric_limits<int64_t>::max()));
  EXPECT_EQ(Add("k", 1).number, std::numeric_limits<int64_t>::min());
  for (const char* none : {"", "apples", "99999999999999999999"}) {
    Set("k", none);
    EXPECT_TRUE(Add("k", 1).fault) << none;
    EXPECT_THAT(Get({"k"}), ElementsAre(none));
  }
}

TEST_F(RootCoreTest, CompareSetChangesWhatIsAsExpected) {
  EXPECT_EQ(CompareSet("k", "old", "new"), "old") << "not there: the answer is what was expected";
  EXPECT_EQ(root_.keys(), 0u);
  EXPECT_EQ(CompareSet("k", "", "new"), "new");
  EXPECT_EQ(CompareSet("k", "old", "newer"), "new");
  EXPECT_EQ(CompareSet("k", "new", "newer"), "newer");
  EXPECT_EQ(CompareSet("k", "", "newest"), "newer") << "empty is not what it is";
}

TEST_F(RootCoreTest, DeleteSaysWhetherThereWasOne) {
  Set("k", "v");
  EXPECT_EQ(Number(StoreOp::kDelete, {"k"}), 1);
  EXPECT_EQ(Number(StoreOp::kDelete, {"k"}), 0);
  EXPECT_EQ(Number(StoreOp::kNumKeys), 0);
  EXPECT_EQ(root_.bytes(), 0u);
}

TEST_F(RootCoreTest, AppendGrowsAValueUpToWhatASetMayBring) {
  clients_.Ask(1, StoreOp::kAppend, {"k"}, {"a"});
  clients_.Ask(1, StoreOp::kAppend, {"k"}, {"b"});
  EXPECT_THAT(Get({"k"}), ElementsAre("ab"));
  const std::string rest(kMaxValueBytes - 2, 'x');
  EXPECT_FALSE(clients_.AnswerOf(1, StoreOp::kAppend, {"k"}, {rest}).has_value());
  EXPECT_TRUE(clients_.AnswerOf(1, StoreOp::kAppend, {"k"}, {"y"})->fault);
  EXPECT_EQ(Get({"k"})[0].size(), kMaxValueBytes);
}

TEST_F(RootCoreTest, AnAnswerHoldsSoMuchAndNamesTheKeysThatAreLeft) {
  const std::string half(kMaxAnswerBytes / 2, 'x');
  for (const char* key : {"a", "b", "c", "d"}) Set(key, half);
  const std::optional<StoreAnswer> answer = clients_.AnswerOf(1, StoreOp::kMultiGet, {"a", "b", "c", "d"});
  EXPECT_EQ(answer->values.size(), 2u);
  EXPECT_THAT(answer->rest, ElementsAre("c", "d"));
  const StoreRequest all = {.op = StoreOp::kMultiGet, .keys = {"a", "b", "c", "d"}, .values = {}, .number = 0};
  EXPECT_GT(root_.AnswerBytes(all, SIZE_MAX), 2 * kMaxAnswerBytes);
  EXPECT_LE(root_.AnswerBytes(all, 1), kMaxAnswerBytes) << "not counted on beyond what is asked for";
}

// ---- Waits

TEST_F(RootCoreTest, AWaitIsOverWhenTheLastOfItsKeysIsThere) {
  Set("a", "1");
  EXPECT_TRUE(IsAnswered(Wait(2, {"a"})));
  const Asked waits = Wait(2, {"a", "b", "c", "b"});
  EXPECT_EQ(root_.waiting(), 1u);
  Set("b", "2");
  EXPECT_FALSE(IsAnswered(waits));
  EXPECT_EQ(Number(StoreOp::kDelete, {"b"}), 1) << "it has been there: that is enough";
  Add("c", 1);
  EXPECT_TRUE(IsAnswered(waits));
  EXPECT_EQ(root_.waiting(), 0u);
}

TEST_F(RootCoreTest, AWaitEndsWithItsCancelOrItsClient) {
  const Asked one = Wait(2, {"k"});
  const Asked other = Wait(3, {"k"});
  root_.Cancel(2, one.id);
  root_.Cancel(2, one.id);
  root_.Cancel(9, 1);
  root_.Gone(3);
  EXPECT_EQ(root_.waiting(), 0u);
  Set("k", "v");
  EXPECT_FALSE(IsAnswered(one));
  EXPECT_FALSE(IsAnswered(other));
}

TEST_F(RootCoreTest, ABarrierOpensWhenAllHaveCome) {
  auto come = [this](uint64_t stream, int64_t world) {
    return clients_.Ask(stream, StoreOp::kBarrier, {"b"}, {}, world);
  };
  const Asked first = come(1, 3), second = come(2, 3);
  EXPECT_FALSE(IsAnswered(first));
  const Asked third = come(3, 3);
  EXPECT_TRUE(IsAnswered(first) && IsAnswered(second) && IsAnswered(third));
  EXPECT_THAT(Get({"b"}), ElementsAre("3"));
  // A client that expects fewer is released; one that expects more goes on waiting and may leave.
  EXPECT_TRUE(IsAnswered(come(1, 4)));
  const Asked waits = come(2, 9);
  root_.Cancel(2, waits.id);
  EXPECT_EQ(root_.waiting(), 0u);
  Set("b", "no number");
  EXPECT_TRUE(clients_.AnswerTo(come(1, 3))->fault);
}

// ---- Many waits

constexpr size_t kMany = 2 * StoreCore::kMaxVisits + 2;

class ManyWaitsTest : public RootCoreTest {
 protected:
  std::vector<Asked> WaitManyTimes(uint64_t stream, const std::string& key) {
    std::vector<Asked> waits;
    for (size_t i = 0; i < kMany; ++i) waits.push_back(Wait(stream, {key}));
    return waits;
  }
  // Returns the index of the first of `waits` that is not answered.
  size_t AnsweredInOrder(const std::vector<Asked>& waits) {
    size_t answered = 0;
    while (answered < waits.size() && IsAnswered(waits[answered])) ++answered;
    return answered;
  }
  int RoundsUntilDone() {
    int rounds = 1;
    for (root_.Work(); root_.has_work(); root_.Work()) ++rounds;
    return rounds;
  }
};

TEST_F(ManyWaitsTest, AnswersASliceInARoundInOrderOfArrival) {
  const std::vector<Asked> waits = WaitManyTimes(kTier, "k");
  Set("k", "v");
  const size_t at_once = AnsweredInOrder(waits);
  EXPECT_GT(at_once, 0u);
  EXPECT_LE(at_once, StoreCore::kMaxVisits);
  EXPECT_EQ(Number(StoreOp::kPing), 0) << "others are answered in between";
  EXPECT_EQ(root_.waiting(), kMany - at_once);
  EXPECT_EQ(clients_.AnswerOf(1, StoreOp::kDelete, {"k"}).has_value(), false) << "its copies come back first";
  EXPECT_LE(RoundsUntilDone(), 5);
  EXPECT_EQ(AnsweredInOrder({waits.begin() + static_cast<ptrdiff_t>(at_once), waits.end()}), kMany - at_once);
  EXPECT_EQ(root_.waiting(), 0u);
}

TEST_F(ManyWaitsTest, OpensABarrierInSlices) {
  std::vector<Asked> waits;
  for (size_t i = 0; i < kMany; ++i) {
    waits.push_back(clients_.Ask(kTier, StoreOp::kBarrier, {"b"}, {}, static_cast<int64_t>(kMany)));
  }
  EXPECT_LE(AnsweredInOrder(waits), StoreCore::kMaxVisits);
  // The number is set back, and a client comes that has to wait.
  Set("b", "0");
  const Asked late = clients_.Ask(2, StoreOp::kBarrier, {"b"}, {}, 2);
  EXPECT_LE(RoundsUntilDone(), 4);
  EXPECT_EQ(root_.waiting(), 1u);
  EXPECT_FALSE(IsAnswered(late));
  EXPECT_TRUE(IsAnswered(clients_.Ask(3, StoreOp::kBarrier, {"b"}, {}, 2)));
  EXPECT_TRUE(IsAnswered(late));
}

TEST_F(ManyWaitsTest, ForgetsAStreamThatHasGoneInSlices) {
  WaitManyTimes(kTier, "k");
  const Asked other = Wait(2, {"k"});
  root_.Gone(kTier);
  EXPECT_GT(root_.waiting(), kMany - StoreCore::kMaxVisits);
  EXPECT_LE(RoundsUntilDone(), 5);
  EXPECT_EQ(root_.waiting(), 1u);
  Set("k", "v");
  EXPECT_TRUE(IsAnswered(other));
}

TEST_F(ManyWaitsTest, GivesNoCopyAndNoElementToAStreamThatHasGone) {
  WaitManyTimes(kTier, "k");
  WaitManyTimes(kTier, "q");
  const Asked other = Wait(2, {"q"});
  root_.Gone(kTier);
  clients_.Ask(1, StoreOp::kQueuePush, {"q"}, {"x"});
  Set("k", "v");
  RoundsUntilDone();
  EXPECT_TRUE(IsAnswered(other));
  EXPECT_EQ(clients_.Ask(1, StoreOp::kSet, {"k"}, {"w"}).result, Result::kDone) << "nobody has a copy";
}

TEST_F(ManyWaitsTest, HoldsWaitsBackWhileTooMuchIsToBeForgotten) {
  const Strings keys = [] {
    Strings names;
    for (size_t i = 0; i < kMaxKeys; ++i) names.push_back(std::to_string(i));
    return names;
  }();
  for (uint64_t stream = 1000; stream < 1003; ++stream) Wait(stream, keys);
  for (uint64_t stream = 1000; stream < 1003; ++stream) root_.Gone(stream);
  EXPECT_FALSE(root_.may_wait());
  EXPECT_TRUE(root_.has_work());
  RoundsUntilDone();
  EXPECT_TRUE(root_.may_wait());
}

// The pushes of each round need more visits than a round has.
TEST_F(ManyWaitsTest, ForgetsAStreamThatHasGoneWhileOthersPushWithoutEnd) {
  WaitManyTimes(kTier, "k");
  root_.Gone(kTier);
  Strings keys = {"q"};
  for (int i = 0; i < 100; ++i) keys.push_back("missing " + std::to_string(i));
  size_t pushes = 0;
  for (int round = 0; round < 20; ++round, root_.Work()) {
    for (size_t i = 0; i < StoreCore::kMaxVisits / 100; ++i, ++pushes) {
      Wait(2, keys);
      clients_.Ask(1, StoreOp::kQueuePush, {"q"}, {"x"});
    }
  }
  EXPECT_EQ(root_.waiting(), pushes) << "only those who push";
}

// ---- Queues

TEST_F(RootCoreTest, AQueueIsFirstInFirstOut) {
  for (const char* value : {"a", "b"}) clients_.Ask(1, StoreOp::kQueuePush, {"q"}, {value});
  EXPECT_EQ(Number(StoreOp::kQueueLen, {"q"}), 2);
  EXPECT_EQ(Number(StoreOp::kCheck, {"q"}), 1);
  EXPECT_EQ(Number(StoreOp::kNumKeys), 0);
  std::optional<StoreAnswer> popped = clients_.AnswerOf(1, StoreOp::kQueuePop, {"q"});
  EXPECT_EQ(popped->number, 2) << "the length before";
  EXPECT_THAT(popped->values, ElementsAre("a"));
  EXPECT_THAT(clients_.AnswerOf(1, StoreOp::kQueuePop, {"q"})->values, ElementsAre("b"));
  popped = clients_.AnswerOf(1, StoreOp::kQueuePop, {"q"});
  EXPECT_EQ(popped->number, 0);
  EXPECT_THAT(popped->values, IsEmpty());
  EXPECT_EQ(Number(StoreOp::kQueueLen, {"q"}), 0);
  EXPECT_EQ(root_.bytes(), 0u);
}

TEST_F(RootCoreTest, APushWakesWhoHasWaitedLongest) {
  const Asked first = Wait(2, {"q"}), second = Wait(3, {"q"});
  clients_.Ask(1, StoreOp::kQueuePush, {"q"}, {"a"});
  EXPECT_TRUE(IsAnswered(first));
  EXPECT_FALSE(IsAnswered(second));
  clients_.Ask(1, StoreOp::kQueuePush, {"q"}, {"b"});
  EXPECT_TRUE(IsAnswered(second));
}

TEST_F(RootCoreTest, APushWakesATierForOneOfItsClients) {
  const Asked tier = Wait(kTier, {"q"}), client = Wait(2, {"q"});
  clients_.Ask(1, StoreOp::kQueuePush, {"q"}, {"a"});
  const std::optional<StoreAnswer> woken = clients_.AnswerTo(tier);
  ASSERT_TRUE(woken.has_value());
  EXPECT_TRUE(woken->wake_one);
  EXPECT_THAT(woken->values, ElementsAre("q"));
  EXPECT_FALSE(IsAnswered(client));
  EXPECT_EQ(root_.waiting(), 2u) << "the tier's stands for many";
  root_.WakeBack("q");  // the tier has no client left to wake
  EXPECT_TRUE(IsAnswered(client));
}

// ---- Tiers and their copies

TEST_F(RootCoreTest, ATierReadsStatesAndKeepsCopiesOfThem) {
  Set("there", "v");
  const std::optional<StoreAnswer> answer = clients_.AnswerOf(kTier, StoreOp::kMultiGet, {"there", "absent"});
  EXPECT_THAT(answer->states, ElementsAre(kPresent | kCopy | kHasValue, kCopy));
  EXPECT_THAT(answer->values, ElementsAre("v"));
}

TEST_F(RootCoreTest, AWriteWaitsUntilEveryCopyIsGivenBack) {
  Set("k", "old");
  clients_.Ask(kTier, StoreOp::kMultiGet, {"k"});
  clients_.Ask(kOtherTier, StoreOp::kMultiGet, {"k"});
  EXPECT_EQ(clients_.Ask(1, StoreOp::kSet, {"k"}, {"new"}).result, Result::kBlocked);
  EXPECT_EQ(clients_.Ask(2, StoreOp::kGet, {"k"}).result, Result::kBlocked) << "neither the old value nor the new";
  ASSERT_EQ(revoked_.size(), 2u);
  EXPECT_THAT(revoked_[0].keys, ElementsAre("k"));
  root_.Acknowledge(kTier, revoked_[0].batch);
  EXPECT_THAT(clients_.TakeResumed(), IsEmpty());
  root_.Gone(kOtherTier);  // a stream that has gone has no copies
  EXPECT_THAT(clients_.TakeResumed(), ElementsAre(1, 2));
  EXPECT_EQ(clients_.Ask(1, StoreOp::kSet, {"k"}, {"new"}).result, Result::kDone);
  EXPECT_THAT(Get({"k"}), ElementsAre("new"));
}

TEST_F(RootCoreTest, ATierThatWritesKnowsThatItsCopyIsOld) {
  clients_.Ask(kTier, StoreOp::kMultiGet, {"k"});
  EXPECT_EQ(clients_.Ask(kTier, StoreOp::kSet, {"k"}, {"v"}).result, Result::kDone);
  EXPECT_TRUE(revoked_.empty());
  // A tier that has forgotten its copy is not asked either.
  clients_.Ask(kOtherTier, StoreOp::kMultiGet, {"k"});
  root_.Forget(kOtherTier, {"k"});
  EXPECT_EQ(clients_.Ask(1, StoreOp::kSet, {"k"}, {"w"}).result, Result::kDone);
}

TEST_F(RootCoreTest, WhatChangesAllTheTimeOrIsLargeIsNotCopied) {
  auto state = [this](const std::string& key) {
    return clients_.AnswerOf(kTier, StoreOp::kMultiGet, {key})->states.at(0);
  };
  Add("counter", 1);
  EXPECT_EQ(state("counter"), kPresent | kHasValue);
  for (int i = 0; i <= RootCore::kMaxChangesOfCopied + 1; ++i) Set("busy", std::to_string(i));
  EXPECT_EQ(state("busy"), kPresent | kHasValue);
  Set("large", std::string(RootCore::kMaxCopiedBytes + 1, 'x'));
  EXPECT_EQ(state("large"), kPresent | kHasValue);
  clients_.Ask(1, StoreOp::kQueuePush, {"queue"}, {"x"});
  EXPECT_EQ(state("queue"), kPresent);
}

TEST_F(RootCoreTest, NewsOfAKeyBringItsValueIfThatIsSmall) {
  const Asked small = Wait(kTier, {"small"}), large = Wait(kTier, {"large"});
  Set("small", std::string(kMaxUnaskedBytes, 's'));
  Set("large", std::string(kMaxUnaskedBytes + 1, 'l'));
  EXPECT_THAT(clients_.AnswerTo(small)->states, ElementsAre(kPresent | kCopy | kHasValue));
  EXPECT_THAT(clients_.AnswerTo(large)->states, ElementsAre(kPresent | kCopy));
  EXPECT_THAT(clients_.AnswerOf(kTier, StoreOp::kCheck, {"large"})->states, ElementsAre(kPresent | kCopy));
}

// ---- The end of a try

TEST_F(RootCoreTest, ANewTryForgetsItsKeysOrAll) {
  Set("of the try", "v");
  clients_.Ask(1, StoreOp::kQueuePush, {"q"}, {"x"});
  clients_.BeOld();
  Set("for good", "v");
  clients_.Ask(kTier, StoreOp::kMultiGet, {"of the try"});
  root_.ForgetTry(false);
  ASSERT_EQ(revoked_.size(), 1u) << "the copy first";
  EXPECT_EQ(root_.keys(), 2u);
  root_.Acknowledge(kTier, revoked_[0].batch);
  EXPECT_EQ(root_.keys(), 1u);
  EXPECT_EQ(Number(StoreOp::kQueueLen, {"q"}), 0);
  root_.ForgetTry(true);
  EXPECT_EQ(root_.keys(), 0u);
  EXPECT_EQ(root_.bytes(), 0u);
}

TEST_F(RootCoreTest, AKeyWhoseCopyIsNotGivenBackDoesNotOutliveItsTry) {
  Set("written", "v");
  Set("other", "v");
  clients_.Ask(kTier, StoreOp::kMultiGet, {"written"});
  EXPECT_EQ(clients_.Ask(1, StoreOp::kSet, {"written"}, {"w"}).result, Result::kBlocked);
  root_.Gone(1);
  root_.ForgetTry(false);
  EXPECT_EQ(root_.keys(), 0u);
  EXPECT_EQ(clients_.Ask(2, StoreOp::kSet, {"other"}, {"of the next"}).result, Result::kDone)
      << "of which none has copies";
  root_.Acknowledge(kTier, revoked_.at(0).batch);
  EXPECT_EQ(Number(StoreOp::kCheck, {"written"}), 0);
  EXPECT_THAT(Get({"other"}), ElementsAre("of the next"));
}

}  // namespace
}  // namespace taskd::store
