#include "proto/node_messages.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace taskd::proto {
namespace {

TEST(NodeMessages, EachKindHasItsFieldAndItsBit) {
  auto kinds = [](const std::function<void(v1::KindStates&)>& set) {
    v1::KindStates message;
    set(message);
    return ReadKinds(message);
  };
  EXPECT_EQ(kinds([](auto&) {}), 0u);
  EXPECT_EQ(kinds([](auto& m) { m.set_step(true); }), 1u);
  EXPECT_EQ(kinds([](auto& m) { m.set_save_checkpoint(true); }), 2u);
  EXPECT_EQ(kinds([](auto& m) { m.set_fp(true); }), 4u);
  EXPECT_EQ(kinds([](auto& m) { m.set_dataloader(true); }), 8u);
  EXPECT_EQ(kinds([](auto& m) { m.set_communication(true); }), 16u);
  for (KindMask mask = 0; mask <= kAllKindsMask; ++mask) {
    v1::KindStates message;
    FillKinds(kAllKindsMask, &message);
    FillKinds(mask, &message);
    EXPECT_EQ(ReadKinds(message), mask);
  }
}

TEST(NodeMessages, WhatIsWantedIsWhatIsRecordedNotWhatWasAskedFor) {
  v1::WantedState message;
  FillWanted({7, 31, 5}, &message);
  EXPECT_EQ(message.revision(), 7u);
  EXPECT_EQ(ReadKinds(message.kinds()), 5u);
}

TEST(NodeMessages, ReasonsAreUtf8) {
  RankReport report;
  report.reason = "/tmp/\xff: is gone";
  RankAnswer answer;
  answer.reason = report.reason;
  v1::RankStatus status;
  v1::RankAnswer answered;
  FillRankReport(report, &status);
  FillRankAnswer(answer, &answered);
  EXPECT_EQ(status.reason(), "/tmp/\uFFFD: is gone");
  EXPECT_EQ(answered.reason(), status.reason());
}

TEST(NodeMessages, AReportComesBackAsItWas) {
  const RankReport report = {.rank = 3,
                             .pid = 4711,
                             .local_rank = 0,
                             .attached = true,
                             .reason = "not applied: MSPTI has not answered",
                             .applied_revision = 8,
                             .failed_revision = 9,
                             .applied = 21,
                             .step = 100,
                             .step_ms = 12.5,
                             .marks = {1, 2, 3, 4, 5, 6},
                             .lost = 7,
                             .overhead_ns_per_mark = 81.25,
                             .stopped_ms = 5000,
                             .saved = {101, 250}};
  v1::RankStatus message;
  FillRankReport(report, &message);
  EXPECT_EQ(message.marks().step(), 1u);
  EXPECT_EQ(message.marks().save_checkpoint(), 2u);
  EXPECT_EQ(message.marks().fp(), 3u);
  EXPECT_EQ(message.marks().dataloader(), 4u);
  EXPECT_EQ(message.marks().communication(), 5u);
  EXPECT_EQ(message.marks().other(), 6u);
  v1::RankStatus sent;
  ASSERT_TRUE(sent.ParseFromString(message.SerializeAsString()));
  EXPECT_EQ(ReadRankReport(sent), report);
}

TEST(NodeMessages, AnAnswerComesBackAsItWas) {
  for (const RankAnswer& answer : {RankAnswer{3, 1, RankAnswer::State::kApplied, 2.5, ""},
                                   RankAnswer{4, 1, RankAnswer::State::kFailed, 0, "its ring is unusable"},
                                   RankAnswer{5, -1, RankAnswer::State::kUnreachable, 0, "never attached"}}) {
    v1::RankAnswer message;
    FillRankAnswer(answer, &message);
    v1::RankAnswer sent;
    ASSERT_TRUE(sent.ParseFromString(message.SerializeAsString()));
    EXPECT_EQ(ReadRankAnswer(sent), answer);
  }
  v1::RankAnswer later;
  later.set_state(static_cast<v1::RankAnswer::State>(9));
  EXPECT_EQ(ReadRankAnswer(later).state, RankAnswer::State::kUnreachable);
}

}  // namespace
}  // namespace taskd::proto
