#include "proxy/rank_gate.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace taskd::proxy {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kMs = 1'000'000;
constexpr KindMask kStep = MaskOf(SwitchKind::kStep);

// MSPTI's answer for these domains.
void Answer(ring::SegmentHeader& header, uint32_t domains, uint32_t code, int error) {
  header.source_code = code;
  header.source_error = error;
  header.source_domains = domains | ring::kSourceAnswered;
}

class RankGateTest : public ::testing::Test {
 protected:
  bool Look(uint64_t at_ms) { return gate_.TakeAnswer(header_, at_ms * kMs); }
  void Succeed(uint32_t domains) { Answer(header_, domains, ring::SourceCodeOf(domains), 0); }
  void Fail(uint32_t domains) { Answer(header_, domains, 0, 5); }

  ring::SegmentHeader header_{};
  RankGate gate_;
};

TEST_F(RankGateTest, MarksOfNoKindGoWithTheDefaultDomain) {
  EXPECT_EQ(GateOf(0), 0u);
  EXPECT_EQ(GateOf(kStep), ring::kGateStep | ring::kGateOther);
  EXPECT_EQ(GateOf(MaskOf(SwitchKind::kCommunication)), uint32_t{ring::kGateCommunication});
}

TEST_F(RankGateTest, WithoutMsptiTheGateIsTheAnswer) {
  EXPECT_FALSE(Look(1)) << "nothing was asked";
  gate_.Ask({kStep, 7}, 1 * kMs);
  EXPECT_TRUE(gate_.awaited());
  EXPECT_TRUE(Look(1));
  EXPECT_FALSE(gate_.awaited());
  EXPECT_EQ(gate_.applied(), kStep);
  EXPECT_EQ(gate_.applied_revision(), 7u);
  EXPECT_FALSE(Look(2)) << "no news";
  gate_.Ask({kStep, 7}, 3 * kMs);
  EXPECT_FALSE(gate_.awaited()) << "the same once more";
}

TEST_F(RankGateTest, WithMsptiItsAnswerCounts) {
  Succeed(0);
  gate_.Ask({kStep, 7}, 1 * kMs);
  EXPECT_FALSE(Look(1)) << "that is the answer to something else";
  EXPECT_EQ(gate_.applied_revision(), 0u);
  Succeed(ring::kSourceDefault);
  EXPECT_TRUE(Look(2));
  EXPECT_EQ(gate_.applied_revision(), 7u);
}

TEST_F(RankGateTest, FailsWhereMsptiFailsAndRecovers) {
  Fail(ring::kSourceDefault);
  gate_.Ask({kStep, 7}, 1 * kMs);
  EXPECT_TRUE(Look(1));
  EXPECT_EQ(gate_.failed_revision(), 7u);
  EXPECT_THAT(gate_.failure(), HasSubstr("it is tried again"));
  Succeed(ring::kSourceDefault);
  EXPECT_TRUE(Look(2));
  EXPECT_EQ(gate_.failed_revision(), 0u);
  EXPECT_EQ(gate_.applied_revision(), 7u);
  // A success that turns out to be none.
  Fail(ring::kSourceDefault);
  EXPECT_TRUE(Look(3));
  EXPECT_EQ(gate_.applied_revision(), 0u);
  EXPECT_EQ(gate_.applied(), 0u);
}

TEST_F(RankGateTest, FailsWhereMsptiIsSilentForASecond) {
  Succeed(0);
  gate_.Ask({kStep, 7}, 1 * kMs);
  EXPECT_FALSE(Look(RankGate::kAnswerMs));
  EXPECT_TRUE(gate_.awaited());
  EXPECT_TRUE(Look(RankGate::kAnswerMs + 1));
  EXPECT_EQ(gate_.failure(), "not applied: MSPTI has not answered");
  EXPECT_EQ(gate_.failed_revision(), 7u);
}

TEST_F(RankGateTest, AnotherProcessBeginsAnew) {
  gate_.Ask({kStep, 7}, 1 * kMs);
  EXPECT_TRUE(Look(1));
  gate_.Reset();
  EXPECT_EQ(gate_.applied_revision(), 0u);
  EXPECT_FALSE(gate_.awaited());
  gate_.Ask({kStep, 7}, 2 * kMs);
  EXPECT_TRUE(gate_.awaited());
}

}  // namespace
}  // namespace taskd::proxy
