#include "store/tier_core.h"

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
using Asked = CoreClients::Asked;
using Result = StoreCore::Result;
using Strings = std::vector<std::string>;
using Type = TierFrame::Type;

constexpr uint8_t kCopied = kPresent | kCopy | kHasValue;
constexpr uint64_t kTierBelow = 100;

// The test plays the store above a tier.
class TierCoreTest : public ::testing::Test {
 protected:
  TierCoreTest() {
    clients_.set_core(&tier_);
    clients_.set_tier(kTierBelow);
  }

  Asked Get(uint64_t stream, const std::string& key) { return clients_.Ask(stream, StoreOp::kGet, {key}); }
  Asked Add(uint64_t stream, int64_t number) { return clients_.Ask(stream, StoreOp::kAdd, {"n"}, {}, number); }
  Asked Wait(uint64_t stream, const std::string& key) { return clients_.Ask(stream, StoreOp::kWait, {key}); }
  bool IsAnswered(const Asked& asked) { return clients_.AnswerTo(asked).has_value(); }
  int64_t NumberOf(const Asked& asked) { return clients_.AnswerTo(asked).value().number; }
  std::string ValueOf(const Asked& asked) { return clients_.AnswerTo(asked).value().values.at(0); }

  // Returns the frames that were sent up since the last call.
  std::vector<TierFrame> TakeSent() { return std::exchange(sent_, {}); }
  // Returns the only frame that was sent.
  TierFrame TakeOne() {
    std::vector<TierFrame> sent = TakeSent();
    EXPECT_EQ(sent.size(), 1u);
    return sent.empty() ? TierFrame() : std::move(sent[0]);
  }
  // Ends the round: the frames are written.
  std::vector<TierFrame> Flush() {
    tier_.BeforeFlush();
    tier_.Flushed();
    return TakeSent();
  }
  TierFrame FlushOne() {
    std::vector<TierFrame> sent = Flush();
    EXPECT_EQ(sent.size(), 1u);
    return sent.empty() ? TierFrame() : std::move(sent[0]);
  }

  // The store above has executed all frames, and answers.
  void Reply(const TierFrame& request, std::vector<uint8_t> states, Strings values = {}, int64_t number = 0) {
    TierFrame reply;
    reply.type = Type::kReply;
    reply.id = request.id;
    reply.number = number;
    reply.states = std::move(states);
    reply.values = std::move(values);
    Receive(std::move(reply));
  }
  void Receive(TierFrame frame) {
    frame.processed = counted_;
    tier_.Received(std::move(frame));
  }
  void Receive(Type type, uint64_t id, Strings keys = {}) {
    TierFrame frame;
    frame.type = type;
    frame.id = id;
    frame.keys = std::move(keys);
    Receive(std::move(frame));
  }

  CoreClients clients_;
  std::vector<TierFrame> sent_;
  uint64_t counted_ = 0;  // sent frames that the store above counts
  Sharing sharing_{[this](uint64_t stream, uint64_t batch, const Strings&) { revoked_.emplace_back(stream, batch); }};
  std::vector<std::pair<uint64_t, uint64_t>> revoked_;  // from tiers below: (stream, batch)
  TierCore tier_{clients_.Host(), &sharing_, [this](const TierFrame& frame) {
                   counted_ += frame.type != Type::kAcknowledge;
                   sent_.push_back(frame);
                 }};
};

// ---- Reads

TEST_F(TierCoreTest, EqualReadsGoUpOnceAndTheCopyServesThoseThatFollow) {
  const Asked first = Get(1, "k"), second = Get(2, "k"), third = Get(3, "k");
  const TierFrame read = FlushOne();
  EXPECT_EQ(read.op, StoreOp::kMultiGet);
  EXPECT_THAT(read.keys, ElementsAre("k"));
  Reply(read, {kCopied}, {"v"});
  for (const Asked& asked : {first, second, third}) EXPECT_EQ(ValueOf(asked), "v");
  EXPECT_EQ(ValueOf(Get(4, "k")), "v");
  EXPECT_EQ(clients_.AnswerOf(4, StoreOp::kCheck, {"k"})->number, 1);
  EXPECT_TRUE(IsAnswered(Wait(4, "k")));
  EXPECT_THAT(Flush(), IsEmpty());
}

TEST_F(TierCoreTest, WhoAsksAfterTheQuestionWentUpGetsNoOlderAnswer) {
  const Asked early = Get(1, "k");
  const TierFrame read = FlushOne();
  const Asked late = Get(2, "k");
  EXPECT_THAT(Flush(), IsEmpty());
  Reply(read, {kPresent | kHasValue}, {"v"});  // without a copy: the value may have changed since
  EXPECT_EQ(ValueOf(early), "v");
  EXPECT_FALSE(IsAnswered(late));
  Reply(FlushOne(), {kPresent | kHasValue}, {"w"});
  EXPECT_EQ(ValueOf(late), "w");
}

TEST_F(TierCoreTest, AnAnswerInPartsLeavesTheOtherKeysToBeAskedForAgain) {
  const Asked asked = clients_.Ask(1, StoreOp::kMultiGet, {"a", "b", "c"});
  Reply(FlushOne(), {kPresent | kHasValue}, {"1"});
  const StoreAnswer answer = clients_.AnswerTo(asked).value();
  EXPECT_THAT(answer.values, ElementsAre("1"));
  EXPECT_THAT(answer.rest, ElementsAre("b", "c"));
}

TEST_F(TierCoreTest, AMalformedAnswerEndsItsClientAlone) {
  const std::vector<std::pair<std::vector<uint8_t>, Strings>> bad = {
      {{}, {}}, {{kPresent, kPresent, kPresent}, {}}, {{kCopied, kCopied, kCopied}, {"1", "2", "3"}}};
  for (const auto& [states, values] : bad) {
    const Asked asked = clients_.Ask(1, StoreOp::kMultiGet, {"a", "b"});
    Reply(FlushOne(), states, values);
    EXPECT_TRUE(clients_.AnswerTo(asked).value().fault) << states.size();
    // Copies that it brought can be revoked.
    Receive(Type::kRevoke, 7, {"a", "b"});
    TakeSent();
  }
  // A state may promise a value that does not come: then the key counts as absent.
  const Asked asked = clients_.Ask(1, StoreOp::kMultiGet, {"a", "b"});
  Reply(FlushOne(), {kCopied, kCopied}, {"1"});
  EXPECT_THAT(clients_.AnswerTo(asked).value().values, ElementsAre("1", ""));
  // Unknown answers and frame types that never come down are ignored.
  Reply(TierFrame(), {kCopied}, {"v"});
  for (Type type : {Type::kFault, Type::kWakeOne, Type::kHello, Type::kRequest, Type::kCancel}) Receive(type, 4711);
  EXPECT_THAT(Flush(), IsEmpty());
  const Asked next = Get(2, "c");
  Receive(Type::kFault, FlushOne().id);
  EXPECT_TRUE(clients_.AnswerTo(next).value().fault);
}

// ---- Counters

TEST_F(TierCoreTest, AddsGoUpAsTheirSumAndEachGetsItsTicket) {
  const Asked one = Add(1, 1), two = Add(2, 2), three = Add(3, 3);
  const TierFrame sum = FlushOne();
  EXPECT_EQ(sum.op, StoreOp::kAdd);
  EXPECT_EQ(sum.number, 6);
  // ADDs that come meanwhile are the next sum.
  const Asked four = Add(4, 4), five = Add(5, -5);
  EXPECT_THAT(Flush(), IsEmpty());
  Reply(sum, {}, {}, 106);
  EXPECT_EQ(NumberOf(one), 101);
  EXPECT_EQ(NumberOf(two), 103);
  EXPECT_EQ(NumberOf(three), 106);
  const TierFrame next = FlushOne();
  EXPECT_EQ(next.number, -1);
  Reply(next, {}, {}, 105);
  EXPECT_EQ(NumberOf(four), 110);
  EXPECT_EQ(NumberOf(five), 105);
  EXPECT_THAT(Flush(), IsEmpty());
}

TEST_F(TierCoreTest, AnAddThatFailsFailsForAllOfItsSum) {
  const Asked one = Add(1, 1), two = Add(2, 2);
  Receive(Type::kFault, FlushOne().id);
  EXPECT_TRUE(clients_.AnswerTo(one).value().fault);
  EXPECT_TRUE(clients_.AnswerTo(two).value().fault);
}

// ---- Waits

TEST_F(TierCoreTest, OneWaitStandsForAllEqualOnes) {
  const Asked first = Wait(1, "k");
  const TierFrame wait = FlushOne();
  EXPECT_EQ(wait.op, StoreOp::kWait);
  const Asked second = Wait(2, "k"), third = Wait(3, "k");
  EXPECT_EQ(tier_.waiting(), 3u);
  tier_.Cancel(2, second.id);
  EXPECT_THAT(Flush(), IsEmpty());
  Reply(wait, {kCopied}, {"v"});
  EXPECT_TRUE(IsAnswered(first));
  EXPECT_FALSE(IsAnswered(second));
  EXPECT_TRUE(IsAnswered(third));
  EXPECT_EQ(tier_.waiting(), 0u);
  EXPECT_EQ(ValueOf(Get(1, "k")), "v") << "the news brought it";
  EXPECT_THAT(Flush(), IsEmpty());
}

TEST_F(TierCoreTest, TheLastWhoLeavesEndsTheWait) {
  const Asked first = Wait(1, "k");
  Wait(2, "k");
  const TierFrame wait = FlushOne();
  tier_.Gone(2);
  EXPECT_THAT(Flush(), IsEmpty());
  tier_.Cancel(1, first.id);
  tier_.Cancel(1, first.id);
  const TierFrame cancel = FlushOne();
  EXPECT_EQ(cancel.type, Type::kCancel);
  EXPECT_EQ(cancel.id, wait.id);
  Reply(wait, {kCopied}, {"v"});  // too late
  EXPECT_FALSE(IsAnswered(first));
  EXPECT_EQ(tier_.waiting(), 0u);
}

TEST_F(TierCoreTest, APushWakesOneClientAndIsGivenBackWhereThereIsNone) {
  const Asked first = Wait(1, "q"), second = Wait(2, "q");
  const TierFrame wait = FlushOne();
  Receive(Type::kWakeOne, wait.id, {"q"});
  EXPECT_TRUE(IsAnswered(first));
  EXPECT_FALSE(IsAnswered(second));
  Receive(Type::kWakeOne, wait.id, {"q"});
  EXPECT_TRUE(IsAnswered(second));
  EXPECT_EQ(FlushOne().type, Type::kCancel) << "nobody waits any more";
  Receive(Type::kWakeOne, wait.id, {"q"});
  const TierFrame back = FlushOne();
  EXPECT_EQ(back.type, Type::kWakeBack);
  EXPECT_THAT(back.keys, ElementsAre("q"));
}

TEST_F(TierCoreTest, EachBarrierGoesUpByItself) {
  const Asked first = clients_.Ask(1, StoreOp::kBarrier, {"b"}, {}, 2);
  const Asked second = clients_.Ask(2, StoreOp::kBarrier, {"b"}, {}, 2);
  const std::vector<TierFrame> sent = Flush();
  ASSERT_EQ(sent.size(), 2u);
  EXPECT_EQ(sent[0].number, 2);
  EXPECT_EQ(tier_.waiting(), 2u);
  tier_.Cancel(1, first.id);
  EXPECT_EQ(FlushOne().type, Type::kCancel);
  Reply(sent[1], {});
  EXPECT_FALSE(IsAnswered(first));
  EXPECT_TRUE(IsAnswered(second));
}

// ---- Writes

TEST_F(TierCoreTest, WritesGoUpInTheirOrderAndTheirWriterReadsNothingOlder) {
  Get(1, "k");
  Reply(FlushOne(), {kCopied}, {"old"});
  EXPECT_FALSE(clients_.AnswerOf(1, StoreOp::kSet, {"k"}, {"new"}).has_value());
  clients_.Ask(1, StoreOp::kMultiSet, {"a", "b"}, {"1", "2"});
  clients_.Ask(1, StoreOp::kDelete, {"c"});
  const std::vector<TierFrame> sent = Flush();
  ASSERT_EQ(sent.size(), 3u);
  EXPECT_EQ(sent[0].op, StoreOp::kSet);
  EXPECT_THAT(sent[0].values, ElementsAre("new"));
  EXPECT_EQ(sent[1].op, StoreOp::kMultiSet);
  EXPECT_EQ(sent[2].op, StoreOp::kDelete);
  EXPECT_EQ(tier_.keys(), 0u) << "its copy is old";
  // This holds even for keys with a copy, until the root is known to have executed the writes.
  const Asked read = Get(1, "k");
  const Asked ping = clients_.Ask(1, StoreOp::kPing, {}, {}, 5);
  const std::vector<TierFrame> asked = Flush();
  ASSERT_EQ(asked.size(), 2u);
  Reply(asked[0], {kCopied}, {"new"});
  EXPECT_EQ(ValueOf(read), "new");
  Reply(asked[1], {}, {}, 5);
  EXPECT_EQ(NumberOf(ping), 5);
  EXPECT_EQ(clients_.AnswerOf(1, StoreOp::kPing, {}, {}, 6)->number, 6) << "nothing is unseen: answered here";
}

TEST_F(TierCoreTest, ACopyThatIsOlderThanAWriteIsNotKept) {
  const Asked read = Get(1, "k");
  const TierFrame asked = FlushOne();
  const uint64_t before = counted_;
  clients_.Ask(2, StoreOp::kSet, {"k"}, {"new"});
  Flush();
  TierFrame reply;
  reply.type = Type::kReply;
  reply.id = asked.id;
  reply.processed = before;  // the root has not executed the write yet
  reply.states = {kCopied};
  reply.values = {"old"};
  tier_.Received(reply);
  EXPECT_EQ(ValueOf(read), "old") << "it asked before";
  EXPECT_EQ(tier_.keys(), 0u);
}

TEST_F(TierCoreTest, AWriteThatFailsAboveEndsItsWriter) {
  const Asked set = clients_.Ask(3, StoreOp::kAppend, {"k"}, {"v"});
  Receive(Type::kFault, FlushOne().id);
  EXPECT_TRUE(clients_.AnswerTo(set).value().fault);
}

TEST_F(TierCoreTest, WhoOnlyWritesIsProbedFor) {
  size_t probes = 0;
  TierFrame probe;
  for (int i = 0; i < 10'000; ++i) {
    clients_.Ask(1, StoreOp::kSet, {std::to_string(i)}, {"v"});
    for (TierFrame& frame : TakeSent()) {
      if (frame.op != StoreOp::kPing) continue;
      ++probes;
      probe = std::move(frame);
    }
  }
  EXPECT_EQ(probes, 1u) << "one is under way";
  EXPECT_EQ(probe.id, 0u);
  Reply(probe, {});
  Get(2, "9999");
  Reply(FlushOne(), {kCopied}, {"v"});
  EXPECT_EQ(tier_.keys(), 1u) << "the writes are known to be executed";
}

// ---- Copies

TEST_F(TierCoreTest, ACopyIsGivenBackWhenTheStoreAboveAsksForIt) {
  Get(1, "k");
  Reply(FlushOne(), {kCopied}, {"v"});
  Receive(Type::kRevoke, 9, {"k", "never had"});
  const TierFrame acknowledge = TakeOne();
  EXPECT_EQ(acknowledge.type, Type::kAcknowledge);
  EXPECT_EQ(acknowledge.id, 9u);
  EXPECT_EQ(tier_.bytes(), 0u);
  Get(1, "k");
  EXPECT_EQ(FlushOne().op, StoreOp::kMultiGet);
}

TEST_F(TierCoreTest, ATierBelowGivesItsCopyBackFirst) {
  clients_.Ask(kTierBelow, StoreOp::kMultiGet, {"k"});
  Reply(FlushOne(), {kCopied}, {"v"});
  Receive(Type::kRevoke, 9, {"k"});
  ASSERT_EQ(revoked_.size(), 1u);
  EXPECT_EQ(revoked_[0].first, kTierBelow);
  EXPECT_THAT(TakeSent(), IsEmpty());
  EXPECT_EQ(Get(1, "k").result, Result::kBlocked);
  tier_.Acknowledge(kTierBelow, revoked_[0].second);
  EXPECT_EQ(TakeOne().type, Type::kAcknowledge);
  EXPECT_THAT(clients_.TakeResumed(), ElementsAre(1));
}

TEST_F(TierCoreTest, ATierBelowThatHasGoneGetsNoCopy) {
  clients_.Ask(kTierBelow, StoreOp::kMultiGet, {"k"});
  const TierFrame read = FlushOne();
  tier_.Gone(kTierBelow);
  Reply(read, {kCopied}, {"v"});
  Receive(Type::kRevoke, 9, {"k"});
  EXPECT_THAT(revoked_, IsEmpty()) << "nobody would give it back";
  EXPECT_EQ(TakeOne().type, Type::kAcknowledge);
  EXPECT_EQ(Get(1, "k").result, Result::kDone);
}

TEST_F(TierCoreTest, ATierBelowGetsCopiesOfWhatIsCopiedHereAlone) {
  const Asked asked = clients_.Ask(kTierBelow, StoreOp::kMultiGet, {"copied", "busy"});
  Reply(FlushOne(), {kCopied, kPresent | kHasValue}, {"1", "2"});
  const StoreAnswer answer = clients_.AnswerTo(asked).value();
  EXPECT_THAT(answer.states, ElementsAre(kCopied, kPresent | kHasValue));
  EXPECT_THAT(answer.values, ElementsAre("1", "2"));
}

// ---- Many callers of one answer

constexpr size_t kMany = 2 * StoreCore::kMaxVisits + 2;

TEST_F(TierCoreTest, AnswersManyWaitsInSlicesAndGivesCopiesInTheFirst) {
  std::vector<Asked> waits;
  for (size_t i = 0; i < kMany; ++i) waits.push_back(Wait(kTierBelow, "k"));
  Reply(FlushOne(), {kCopied}, {"v"});
  size_t answered = 0;
  for (; answered < kMany; ++answered) {
    const std::optional<StoreAnswer> answer = clients_.AnswerTo(waits[answered]);
    if (!answer) break;
    EXPECT_THAT(answer->states, ElementsAre(kCopied));
  }
  EXPECT_LE(answered, StoreCore::kMaxVisits);
  EXPECT_EQ(tier_.waiting(), kMany - answered);
  tier_.Cancel(kTierBelow, waits.back().id);
  while (tier_.has_work()) tier_.Work();
  EXPECT_THAT(clients_.AnswerTo(waits[answered])->states, ElementsAre(kPresent | kHasValue)) << "it may be older";
  EXPECT_TRUE(IsAnswered(waits[kMany - 2]));
  EXPECT_FALSE(IsAnswered(waits.back())) << "it was cancelled";
  EXPECT_EQ(tier_.waiting(), 0u);
}

TEST_F(TierCoreTest, AnswersWithABigValueInSlices) {
  const std::string value(StoreCore::kMaxVisits / 4 * StoreCore::kVisitBytes, 'x');
  std::vector<Asked> gets;
  for (uint64_t stream = 1; stream <= 10; ++stream) gets.push_back(Get(stream, "k"));
  Reply(FlushOne(), {kPresent | kHasValue}, {value});
  EXPECT_TRUE(IsAnswered(gets.front()));
  EXPECT_FALSE(IsAnswered(gets[4]));
  while (tier_.has_work()) tier_.Work();
  EXPECT_EQ(ValueOf(gets.back()).size(), value.size());
}

TEST_F(TierCoreTest, AnswersManyAddsInSlices) {
  std::vector<Asked> adds;
  for (size_t i = 0; i < kMany; ++i) adds.push_back(Add(kTierBelow, 1));
  Reply(FlushOne(), {}, {}, static_cast<int64_t>(kMany));
  EXPECT_EQ(NumberOf(adds.front()), 1);
  EXPECT_FALSE(IsAnswered(adds.back()));
  while (tier_.has_work()) tier_.Work();
  EXPECT_EQ(NumberOf(adds.back()), static_cast<int64_t>(kMany));
}

TEST_F(TierCoreTest, ForgetsWaitsOfATierThatHasGoneInSlices) {
  for (size_t i = 0; i < kMany; ++i) Wait(kTierBelow, "q");
  const Asked other = Wait(2, "q");
  const TierFrame wait = FlushOne();
  tier_.Gone(kTierBelow);
  EXPECT_GT(tier_.waiting(), kMany - StoreCore::kMaxVisits);
  Receive(Type::kWakeOne, wait.id, {"q"});
  while (tier_.has_work()) tier_.Work();
  EXPECT_EQ(tier_.waiting(), 0u);
  EXPECT_TRUE(IsAnswered(other)) << "the element is for one that is here";
}

TEST_F(TierCoreTest, CopiesTakeALimitedMemory) {
  const std::string value(16 * 1024 * 1024, 'x');
  std::vector<TierFrame> forgotten;
  for (int i = 0; i < 12; ++i) {
    const Asked asked = Get(1, std::to_string(i));
    Reply(FlushOne(), {kCopied}, {value});
    while (tier_.has_work()) tier_.Work();
    EXPECT_TRUE(IsAnswered(asked));
    EXPECT_LE(tier_.bytes(), TierCore::kMaxCopyBytes + value.size() + 1024);
    for (TierFrame& frame : TakeSent()) forgotten.push_back(std::move(frame));
  }
  ASSERT_FALSE(forgotten.empty());
  EXPECT_EQ(forgotten[0].type, Type::kForget) << "the store above is told";
  EXPECT_FALSE(forgotten[0].keys.empty());
}

}  // namespace
}  // namespace taskd::store
