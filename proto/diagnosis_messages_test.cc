#include "proto/diagnosis_messages.h"

#include "gtest/gtest.h"

namespace taskd::proto {
namespace {

using diagnosis::Cause;
using diagnosis::Scope;
using diagnosis::Verdict;

Verdict Everything() {
  Verdict verdict;
  verdict.id = uint64_t{1} << 63;
  verdict.scope = Scope::kNode;
  verdict.ids = {2, 65535};
  verdict.alternatives = {{Scope::kRank, {7}, {}, 0.25, Cause::kGc}, {Scope::kLink, {}, {{3, 4}, {5, 6}}, 0.125}};
  verdict.cause = Cause::kIntraNodeLink;
  verdict.open = false;
  verdict.since_step = -5;
  verdict.since_ns = 1'790'000'000'123'456'789;
  verdict.last_step = INT64_MAX;
  verdict.slowdown = 1.21;
  verdict.cost_ms_per_step = 11.4;
  verdict.slowdown_interval = {1.19, 1.23};
  verdict.cost_interval_ms = {10.5, 12.25};
  verdict.confidence = 0.98;
  verdict.evidence = {{"own_time", 1.5, 1.25, 15, 9.3, 103, 120}, {"", 0, 0, 0, -1, 0, 0}};
  verdict.text = "one sentence";
  return verdict;
}

TEST(DiagnosisMessagesTest, AReportComesBackAsItWas) {
  diagnosis::Report report;
  report.ranks = 64;
  report.first_step = 3;
  report.last_step = 120;
  report.state = diagnosis::JobState::kSlow;
  report.step_ms = 66.5;
  report.verdicts = {Everything(), Verdict{}};
  report.verdicts[1].scope = Scope::kLink;
  report.verdicts[1].links = {{1, 2}, {8, 0}};
  report.notes = {{diagnosis::NoteKind::kRotation, "a note"},
                  {diagnosis::NoteKind::kCoverage, ""},
                  {diagnosis::NoteKind::kRestless, ""}};
  report.coverage = {{0, 0.25, true, 0.5}, {63, 0, false}};
  report.own_time = {.ratio = 0.031, .steps = 120, .worst_rank = 7, .worst_ratio = 0.045};
  report.transfer = {.ratio = 0.5, .steps = 12, .worst_rank = -1, .worst_ratio = 0.5};
  v1::DiagnosisReport message;
  FillReport(report, "ns/job", &message);
  EXPECT_EQ(message.job(), "ns/job");
  // Through the wire's bytes.
  v1::DiagnosisReport received;
  ASSERT_TRUE(received.ParseFromString(message.SerializeAsString()));
  absl::StatusOr<diagnosis::Report> back = ReadReport(received);
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(back->ranks, report.ranks);
  EXPECT_EQ(back->first_step, report.first_step);
  EXPECT_EQ(back->last_step, report.last_step);
  EXPECT_EQ(back->state, report.state);
  EXPECT_EQ(back->step_ms, report.step_ms);
  EXPECT_EQ(back->verdicts, report.verdicts);
  EXPECT_EQ(back->notes, report.notes);
  EXPECT_EQ(back->coverage, report.coverage);
  EXPECT_EQ(back->own_time, report.own_time);
  EXPECT_FALSE(back->dataloader);
  EXPECT_EQ(back->transfer, report.transfer);
  received.mutable_coverage_ratios()->RemoveLast();
  EXPECT_FALSE(ReadReport(received).ok());
}

TEST(DiagnosisMessagesTest, EveryWordIsReadBack) {
  for (int scope = 0; scope <= static_cast<int>(Scope::kJob); ++scope) {
    for (int cause = 0; cause < diagnosis::kCauses; ++cause) {
      Verdict verdict;
      verdict.scope = static_cast<Scope>(scope);
      verdict.cause = static_cast<Cause>(cause);
      v1::Verdict message;
      FillVerdict(verdict, &message);
      absl::StatusOr<Verdict> back = ReadVerdict(message);
      ASSERT_TRUE(back.ok()) << back.status();
      EXPECT_EQ(*back, verdict);
    }
  }
}

TEST(DiagnosisMessagesTest, WhatIsNotKnownIsAnError) {
  v1::Verdict good;
  FillVerdict(Everything(), &good);
  auto broken = [&](auto edit) {
    v1::Verdict message = good;
    edit(message);
    return ReadVerdict(message).status();
  };
  EXPECT_TRUE(absl::IsInvalidArgument(broken([](v1::Verdict& m) { m.set_scope("Rank"); })));
  EXPECT_TRUE(absl::IsInvalidArgument(broken([](v1::Verdict& m) { m.clear_cause(); })));
  EXPECT_TRUE(absl::IsInvalidArgument(broken([](v1::Verdict& m) {
    m.set_scope("link");
    m.add_ids(1);
  })));
  EXPECT_TRUE(absl::IsInvalidArgument(broken([](v1::Verdict& m) { m.mutable_alternatives(1)->add_ids(1); })));
  EXPECT_TRUE(broken([](v1::Verdict&) {}).ok());
  v1::DiagnosisReport report;
  report.add_notes()->set_kind("gossip");
  EXPECT_TRUE(absl::IsInvalidArgument(ReadReport(report).status()));
}

TEST(DiagnosisMessagesTest, TracesComeBackAsTheyWere) {
  diagnosis::RankTrace trace{.rank = 7, .text = "why", .detectors = {}};
  trace.detectors.push_back({.feature = "own_time",
                             .state = diagnosis::TraceState::kVetoed,
                             .value_ms = 112,
                             .reference_ms = 100,
                             .excess = 0.12,
                             .statistic = 5.5,
                             .threshold = 11,
                             .since_step = 300,
                             .peers = 0,
                             .held = {diagnosis::Veto::kNoiseBurst},
                             .needs = "6 s more"});
  trace.detectors.push_back({.feature = "transfer", .needs = "marks"});
  v1::RankTrace message;
  FillTrace(trace, &message);
  const auto read = ReadTrace(message);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(RenderTraceJson(*read), RenderTraceJson(trace));
  message.mutable_detectors(0)->set_veto("whim");
  EXPECT_EQ(ReadTrace(message).status().message(), "veto 'whim' is not known");
}

}  // namespace
}  // namespace taskd::proto
