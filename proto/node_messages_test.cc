#include "proto/node_messages.h"

#include <array>
#include <random>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "marks/step_fold.h"

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
                             .saved = {101, 250},
                             .recorded = 64000,
                             .cpu_busy_ms = 3000,
                             .io_busy_ms = 2000,
                             .left_loop = true,
                             .open = {OpenPhase::Kind::kCommunication, 17, "all_reduce"}};
  v1::RankStatus message;
  FillRankReport(report, &message);
  EXPECT_EQ(message.marks().step(), 1u);
  EXPECT_EQ(message.marks().save_checkpoint(), 2u);
  EXPECT_EQ(message.marks().fp(), 3u);
  EXPECT_EQ(message.marks().dataloader(), 4u);
  EXPECT_EQ(message.marks().communication(), 5u);
  EXPECT_EQ(message.marks().other(), 6u);
  EXPECT_EQ(*ReadRankReport(message.SerializeAsString()), report);
}

// What Protobuf's own object says of a report.
RankReport ReportOf(const v1::RankStatus& message) {
  RankReport report = {
      .rank = message.rank(),
      .pid = message.pid(),
      .attached = message.attached(),
      .reason = message.reason(),
      .applied_revision = message.applied_revision(),
      .failed_revision = message.failed_revision(),
      .applied = ReadKinds(message.applied()),
      .step = message.step() < 0 || message.step() > StepFold::kMaxStep ? -1 : message.step(),
      .step_ms = message.step_ms(),
      .marks = {message.marks().step(), message.marks().save_checkpoint(), message.marks().fp(),
                message.marks().dataloader(), message.marks().communication(), message.marks().other()},
      .lost = message.lost(),
      .overhead_ns_per_mark = message.overhead_ns_per_mark(),
      .stopped_ms = message.stopped_ms(),
      .saved = {},
      .recorded = message.recorded(),
      .cpu_busy_ms = message.cpu_busy_ms(),
      .io_busy_ms = message.io_busy_ms(),
      .left_loop = message.left_loop(),
      .open = {OpenPhase::Kind::kNone, message.open_since_ns(), message.open_operation()}};
  if (message.open_kind() <= 4) report.open.kind = static_cast<OpenPhase::Kind>(message.open_kind());
  if (message.has_local_rank() && message.local_rank() >= 0) report.local_rank = message.local_rank();
  if (message.has_saved_step() && message.saved_step() >= 0 && message.saved_step() <= StepFold::kMaxStep) {
    report.saved = {message.saved_step(), message.saved_ns()};
  }
  return report;
}

void AppendNumber(uint64_t number, std::string* wire) {
  for (; number >= 0x80; number >>= 7) *wire += static_cast<char>(number | 0x80);
  *wire += static_cast<char>(number);
}

// Fields in any order, more than once, of other types than they should be, and some that nobody knows.
std::string AnyFields(std::mt19937_64& random, uint32_t highest, int depth) {
  std::string wire;
  for (uint64_t i = random() % 12; i > 0; --i) {
    const uint64_t type = std::array<uint64_t, 6>{0, 0, 1, 2, 2, 5}[random() % 6];
    AppendNumber((1 + random() % highest) << 3 | type, &wire);
    if (type == 0) AppendNumber(random() >> random() % 64, &wire);
    if (type == 1) wire += std::string(6, '\0') + "\x29\x40";  // 12.5, and others where it is no double
    if (type == 5) wire += "four";
    if (type != 2) continue;
    const std::string within = depth > 0 ? AnyFields(random, 7, depth - 1) : "\xc3\xa9";
    AppendNumber(within.size(), &wire);
    wire += within;
  }
  return wire;
}

TEST(NodeMessages, ReportsAreReadAsProtobufReadsThem) {
  std::mt19937_64 random(5);
  int read = 0, refused = 0, groups = 0;
  for (int round = 0; round < 5'000; ++round) {
    std::string wire = AnyFields(random, 23, 1);
    if (round % 4 == 0 && !wire.empty()) wire[random() % wire.size()] = static_cast<char>(random());
    if (round % 7 == 0) wire.resize(random() % (wire.size() + 1));
    v1::RankStatus message;
    const bool parsed = message.ParseFromString(wire);
    const absl::StatusOr<RankReport> report = ReadRankReport(wire);
    ++(report.ok() ? read : parsed ? groups : refused);
    if (!report.ok()) continue;
    ASSERT_TRUE(parsed) << round;
    ASSERT_EQ(*report, ReportOf(message)) << round;
  }
  EXPECT_LT(groups, 20);  // which nobody sends, and which are refused here
  EXPECT_GT(read, 2'000);
  EXPECT_GT(refused, 200);
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
