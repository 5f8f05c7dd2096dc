#include "diagnosis/hang.h"

#include <gtest/gtest.h>

namespace taskd::diagnosis {
namespace {

// Calls 0 to 2 are all_reduce, broadcast and send.
HangFacts Facts(std::vector<HangGroup> groups) {
  HangFacts facts;
  facts.groups = std::move(groups);
  for (const char* name : {"all_reduce", "broadcast", "send"}) {
    HangCall call;
    call.name = name;
    call.frames = std::string("in ") + name;
    facts.calls.push_back(call);
  }
  return facts;
}

// The next operation of a rank.
void Add(HangFacts& facts, int rank, uint32_t group, uint64_t number, OpState state, uint32_t call = 0) {
  std::vector<HangOp>& ops = facts.ranks[rank].ops;
  const uint64_t order = ops.size();
  ops.push_back(
      {.group = group, .call = call, .number = number, .order = order, .created_ns = 1000 + order, .state = state});
}

constexpr OpState kStarted = OpState::kStarted, kCompleted = OpState::kCompleted, kScheduled = OpState::kScheduled;

TEST(Hang, NothingWaits) {
  HangFacts facts = Facts({{"world", {0, 1}}});
  EXPECT_FALSE(FindHang(facts));
  Add(facts, 0, 0, 1, kCompleted);
  Add(facts, 1, 0, 1, kCompleted);
  EXPECT_FALSE(FindHang(facts));
}

TEST(Hang, WhoeverHasNotEnteredIsTheOrigin) {
  HangFacts facts = Facts({{"world", {0, 1, 2}}});
  for (int rank : {0, 1, 2}) Add(facts, rank, 0, 1, kCompleted);
  for (int rank : {0, 2}) Add(facts, rank, 0, 2, kStarted, 1);
  const std::optional<Hang> hang = FindHang(facts);
  ASSERT_TRUE(hang);
  EXPECT_EQ(hang->origins, std::vector<int>{1});
  EXPECT_EQ(hang->waiting, (std::vector<int>{0, 2}));
  EXPECT_EQ(hang->kind, "missing");
  EXPECT_EQ(hang->since_ns, 1001u);
  EXPECT_EQ(hang->frames, "in all_reduce");
  EXPECT_EQ(hang->text, "rank 1 never entered broadcast 2 of world; 2 ranks wait for it");
}

// 3 waits for 2, 2 for 1, 1 for 0, each in another group.
TEST(Hang, GroupsAreFollowedToTheOrigin) {
  HangFacts facts = Facts({{"a", {0, 1}}, {"b", {1, 2}}, {"c", {2, 3}}});
  facts.ranks[0];
  for (uint32_t rank : {1u, 2u, 3u}) Add(facts, static_cast<int>(rank), rank - 1, 1, kStarted);
  const std::optional<Hang> hang = FindHang(facts);
  ASSERT_TRUE(hang);
  EXPECT_EQ(hang->origins, std::vector<int>{0});
  EXPECT_EQ(hang->group, "a");
}

// Untimed recorders call what runs and what is behind it alike.
TEST(Hang, WhatIsBehindAnotherHasNotBeenEntered) {
  HangFacts facts = Facts({{"a", {0, 1}}, {"b", {1, 2}}});
  facts.ranks[0];
  Add(facts, 1, 0, 1, kScheduled);
  Add(facts, 1, 1, 1, kScheduled);
  Add(facts, 2, 1, 1, kScheduled);
  const std::optional<Hang> hang = FindHang(facts);
  ASSERT_TRUE(hang);
  EXPECT_EQ(hang->origins, std::vector<int>{0});
  EXPECT_EQ(hang->waiting, (std::vector<int>{1, 2}));
}

// Two ranks of two groups have not come, and a third group waits for both.
TEST(Hang, AllOriginsAreNamed) {
  HangFacts facts = Facts({{"a", {0, 1}}, {"b", {2, 3}}, {"all", {0, 1, 2, 3}}});
  for (int rank : {0, 1, 2, 3}) Add(facts, rank, static_cast<uint32_t>(rank) / 2, 1, kCompleted);
  Add(facts, 1, 0, 2, kStarted);
  Add(facts, 3, 2, 1, kStarted);
  EXPECT_EQ(FindHang(facts)->origins, (std::vector<int>{0, 2}));
  // The same where dumps have only what is open, and a status beside it.
  for (int rank : {0, 2}) {
    facts.ranks[rank].ops.clear();
    facts.ranks[rank].is_cut = true;
  }
  EXPECT_TRUE(FindHang(facts)->origins.empty());
  for (int rank : {0, 2}) facts.ranks[rank].called = {{static_cast<uint32_t>(rank) / 2, 1}, {2, 0}};
  EXPECT_EQ(FindHang(facts)->origins, (std::vector<int>{0, 2}));
}

// 0's process still waits for an operation that 1 and 2 are through with.
TEST(Hang, WhoStandsInWhatTheOthersAreThroughWithIsAnOrigin) {
  for (uint32_t call : {0u, 1u}) {
    HangFacts facts = Facts({{"world", {0, 1, 2}}});
    Add(facts, 0, 0, 1, kScheduled, call);
    for (int rank : {1, 2}) {
      Add(facts, rank, 0, 1, kCompleted, call);
      Add(facts, rank, 0, 2, kScheduled);
    }
    EXPECT_EQ(FindHang(facts)->origins, std::vector<int>{0});
    // If 1 waits as well, only an operation that takes all parts shows that these have come.
    facts.ranks[1].ops.clear();
    Add(facts, 1, 0, 1, kScheduled, call);
    const bool needs_all = call == 0;
    EXPECT_EQ(FindHang(facts)->origins, needs_all ? (std::vector<int>{0, 1}) : std::vector<int>());
  }
}

TEST(Hang, DeviceThatHasNotBegunWhatOthersHaveBegun) {
  HangFacts facts = Facts({{"world", {0, 1, 2}}});
  for (int rank : {0, 1}) Add(facts, rank, 0, 1, kStarted);
  Add(facts, 2, 0, 1, kScheduled);
  EXPECT_EQ(FindHang(facts)->origins, std::vector<int>{2});
  EXPECT_EQ(FindHang(facts)->waiting, (std::vector<int>{0, 1}));
}

// 2 waits for 1, and 1 stands with 0 in an operation that both have entered.
TEST(Hang, WhoOnlyWaitsIsNeverNamed) {
  HangFacts facts = Facts({{"a", {0, 1}}, {"b", {1, 2}}});
  Add(facts, 0, 0, 1, kStarted);
  Add(facts, 1, 0, 1, kStarted);
  Add(facts, 2, 1, 1, kStarted);
  const std::optional<Hang> hang = FindHang(facts);
  ASSERT_TRUE(hang);
  EXPECT_TRUE(hang->origins.empty());
  EXPECT_EQ(hang->kind, "unknown");
  EXPECT_EQ(hang->group, "a");
}

TEST(Hang, WhatIsNotKnownIsNotSaid) {
  for (int how : {0, 1, 2}) {
    HangFacts facts = Facts({{"world", {0, 1, 2}}});
    for (int rank : {0, 1}) Add(facts, rank, 0, 2, kStarted);
    if (how == 1) facts.ranks[2].is_cut = true;
    if (how == 2) {
      Add(facts, 2, 0, 1, kCompleted);
      facts.ranks[2].is_partial = true;
    }
    const std::optional<Hang> hang = FindHang(facts);
    ASSERT_TRUE(hang);
    EXPECT_TRUE(hang->origins.empty()) << how;
    EXPECT_EQ(hang->kind, "unknown");
    EXPECT_NE(hang->text.find("cannot say"), std::string::npos);
  }
}

TEST(Hang, OneThatDoesAnotherThing) {
  HangFacts facts = Facts({{"world", {0, 1, 2}}});
  for (int rank : {0, 1}) Add(facts, rank, 0, 1, kStarted);
  Add(facts, 2, 0, 1, kStarted, 1);
  const std::optional<Hang> hang = FindHang(facts);
  ASSERT_TRUE(hang);
  EXPECT_EQ(hang->origins, std::vector<int>{2});
  EXPECT_EQ(hang->kind, "order");
  EXPECT_EQ(hang->frames, "in broadcast");
}

TEST(Hang, SizesAreComparedWhereAllHaveCome) {
  HangFacts facts = Facts({{"world", {0, 1, 2, 3}}});
  for (int rank : {0, 1, 2}) Add(facts, rank, 0, 1, kStarted);
  facts.calls[0].amount = "8";
  facts.calls.push_back(facts.calls[0]);
  facts.calls.back().amount = "9";
  facts.calls.back().sizes = "3x3";
  facts.ranks[1].ops[0].call = 3;
  facts.ranks[3];
  EXPECT_EQ(FindHang(facts)->origins, std::vector<int>{3});
  EXPECT_EQ(FindHang(facts)->kind, "missing");
  Add(facts, 3, 0, 1, kStarted);
  EXPECT_EQ(FindHang(facts)->origins, std::vector<int>{1});
  EXPECT_EQ(FindHang(facts)->kind, "size");
}

TEST(Hang, FewerOnesInACircle) {
  HangFacts facts = Facts({{"a", {0, 1, 2}}, {"b", {0, 1, 2}}});
  for (int rank : {0, 1}) Add(facts, rank, 0, 1, kStarted);
  Add(facts, 2, 1, 1, kStarted);
  const std::optional<Hang> hang = FindHang(facts);
  ASSERT_TRUE(hang);
  EXPECT_EQ(hang->origins, std::vector<int>{2});
  EXPECT_EQ(hang->kind, "order");
}

TEST(Hang, MessagesAreFollowed) {
  HangFacts facts = Facts({{"world", {0, 1, 2}}});
  for (int rank : {0, 1}) {
    Add(facts, rank, 0, 0, kStarted, 2);
    facts.ranks[rank].ops[0].peer = rank + 1;
    facts.ranks[rank].ops[0].sends = true;
  }
  facts.ranks[2];
  std::optional<Hang> hang = FindHang(facts);
  ASSERT_TRUE(hang);
  EXPECT_EQ(hang->origins, std::vector<int>{2});
  EXPECT_EQ(hang->text, "rank 2 never came to the other end of send to rank 2 of world; 2 ranks wait for it");
  facts.ranks.erase(2);
  hang = FindHang(facts);
  ASSERT_TRUE(hang);
  EXPECT_TRUE(hang->origins.empty());
}

// 1 stands in a receive from anybody, and 0 waits for it elsewhere.
TEST(Hang, WhoReceivesFromAnybodyWaits) {
  HangFacts facts = Facts({{"world", {0, 1}}});
  Add(facts, 0, 0, 1, kStarted);
  Add(facts, 1, 0, 0, kStarted, 2);
  facts.ranks[1].ops[0].peer = HangOp::kAnyPeer;
  const std::optional<Hang> hang = FindHang(facts);
  ASSERT_TRUE(hang);
  EXPECT_TRUE(hang->origins.empty());
  EXPECT_EQ(hang->waiting, (std::vector<int>{0, 1}));
}

TEST(Hang, WhoAnswersNoMoreIsTheOrigin) {
  HangFacts facts = Facts({{"world", {0, 1}}});
  Add(facts, 0, 0, 5, kStarted);
  facts.ranks[1].is_gone = true;
  const std::optional<Hang> hang = FindHang(facts);
  ASSERT_TRUE(hang);
  EXPECT_EQ(hang->origins, std::vector<int>{1});
  EXPECT_NE(hang->text.find("rank 1 does not answer"), std::string::npos);
}

}  // namespace
}  // namespace taskd::diagnosis
