#include "diagnosis/rank_trace.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace taskd::diagnosis {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

DetectorTrace OwnTimeOf(TraceState state, Held held = {}) {
  return {.feature = "own_time",
          .state = state,
          .value_ms = 112,
          .reference_ms = 100,
          .excess = 0.12,
          .statistic = 5.5,
          .threshold = 11,
          .since_step = 300,
          .peers = 15,
          .held = held,
          .needs = ""};
}

std::string TextOf(const DetectorTrace& trace, const std::string& verdict = "") {
  return WriteTraceText({.rank = 7, .text = "", .detectors = {trace}}, "", verdict);
}

TEST(RankTrace, SaysInOneSentenceWhatWasDecided) {
  const std::string rank7 = "rank 7: self time 12 % above its 15 peers since step 300; ";
  EXPECT_EQ(TextOf(OwnTimeOf(TraceState::kBelowThreshold)),
            rank7 + "no verdict: the sum of deviations is 5.5 of the 11 that chance does not explain");
  EXPECT_EQ(TextOf(OwnTimeOf(TraceState::kVerdict), "rank 7 computes 12 % longer"),
            rank7 + "verdict: rank 7 computes 12 % longer");
  const struct {
    Held held;
    const char* why;
  } cases[] = {
      {{Veto::kNoiseBurst, 2.1e9, 8e9}, "the rise has lasted 2.1 s of the 8.0 s that noise bursts last in this job"},
      {{Veto::kNoiseBurst}, "it is slow in noise bursts that hit all ranks by turns"},
      {{Veto::kWarmUp, 1e9, 3e9},
       "the rise has lasted 1.0 s of the 3.0 s that it has to last until the job has shown "
       "its noise bursts"},
      {{Veto::kDuration, 4.25e9, 15e9}, "the rise has lasted 4.2 s of the 15 s that a small peer group needs"},
      {{Veto::kCost, 0.4e6, 1.5e6}, "it costs 0.4 ms of each step, a verdict needs 1.5 ms"},
      {{Veto::kPlannedChange}, "all ranks have changed at the same time"},
      {{Veto::kLoad}, "its work explains it"},
      {{Veto::kSignificance}, "means of as many steps vary by as much in this job"},
      {{Veto::kFading}, "it is about to end, or has ended"},
      {{Veto::kSecondFault}, "it follows from another fault of the same ranks"},
      {{Veto::kAttribution}, "the evidence may still point to other ranks"},
  };
  for (const auto& [held, why] : cases) {
    EXPECT_EQ(TextOf(OwnTimeOf(TraceState::kVetoed, held)), rank7 + "no verdict: " + why);
  }
}

TEST(RankTrace, NamesTheReference) {
  DetectorTrace trace = OwnTimeOf(TraceState::kBelowThreshold);
  trace.peers = 1;
  EXPECT_THAT(TextOf(trace), HasSubstr(" above its peer since"));
  trace.peers = 0;
  EXPECT_THAT(TextOf(trace), HasSubstr(" above its own past since"));
  trace.feature = "dataloader";
  EXPECT_THAT(TextOf(trace), HasSubstr("data loading 12 % of the step above"));
  trace.since_step = -1;
  trace.statistic = 0;
  trace.excess = -0.02;
  EXPECT_EQ(TextOf(trace), "rank 7: data loading 2 % of the step below its own past; no verdict: nothing rises");
}

TEST(RankTrace, SpeaksOfWhatComesNearestToAVerdict) {
  RankTrace trace{.rank = 7, .text = "", .detectors = {}};
  EXPECT_EQ(trace.nearest(), nullptr);
  trace.detectors = {{.feature = "transfer", .needs = "marks"}, OwnTimeOf(TraceState::kBelowThreshold)};
  EXPECT_EQ(trace.nearest(), &trace.detectors[1]);
  trace.detectors.push_back(OwnTimeOf(TraceState::kBelowThreshold));
  trace.detectors[2].statistic = 9;
  EXPECT_EQ(trace.nearest(), &trace.detectors[2]);
  trace.detectors.push_back(OwnTimeOf(TraceState::kVetoed, {Veto::kFading}));
  trace.detectors[3].statistic = 1;
  EXPECT_EQ(trace.nearest(), &trace.detectors[3]);
}

TEST(RankTrace, SaysWhatIsMissing) {
  RankTrace trace{.rank = 7, .text = "", .detectors = {}};
  EXPECT_EQ(WriteTraceText(trace, "no marks since step 4", ""), "rank 7: no marks since step 4; no verdict");
  EXPECT_EQ(WriteTraceText(trace, "no marks since step 4", "it was slow"),
            "rank 7: no marks since step 4; verdict: it was slow");
  trace.detectors = {{.feature = "own_time", .needs = "a rank with the same work"}};
  EXPECT_EQ(WriteTraceText(trace, "", ""),
            "rank 7: nothing could be compared; no verdict: needs a rank with the same work");
}

TEST(RankTrace, WritesJsonWithNullsWhereNothingIsKnown) {
  RankTrace trace{
      .rank = 7, .text = "why", .detectors = {OwnTimeOf(TraceState::kVetoed, {Veto::kNoiseBurst, 2e9, 8e9})}};
  trace.detectors[0].needs = "6.0 s more";
  trace.detectors.push_back({.feature = "dataloader", .needs = "marks of the data loader"});
  EXPECT_EQ(
      RenderTraceJson(trace),
      R"({"rank":7,"text":"why","detectors":[{"feature":"own_time","value":112.0,"reference":100.0,"excess":0.12,)"
      R"("statistic":5.5,"threshold":11.0,"since_step":300,"decision":"vetoed","veto":"noise_burst",)"
      R"("needs":"6.0 s more"},{"feature":"dataloader","value":null,"reference":null,"excess":null,)"
      R"("statistic":null,"threshold":null,"since_step":null,"decision":"no_data","veto":null,)"
      R"("needs":"marks of the data loader"}]})");
  const std::string text = RenderTraceText(trace);
  EXPECT_THAT(text, HasSubstr("why\n\ndetector "));
  EXPECT_THAT(text, HasSubstr("noise_burst     6.0 s more\n"));
  EXPECT_THAT(text, HasSubstr("no_data         marks of the data loader\n"));
}

TEST(RankTrace, TheFirstRuleThatHoldsDecides) {
  EXPECT_FALSE(FirstOf({}).holds());
  EXPECT_FALSE(FirstOf({Held{}, Held{}}).holds());
  EXPECT_EQ(FirstOf({Held{}, {Veto::kCost, 1, 2}, {Veto::kFading}}).veto, Veto::kCost);
}

TEST(RankTrace, EachVetoHasAName) {
  for (int i = 1; i <= static_cast<int>(Veto::kAttribution); ++i) EXPECT_STRNE(Name(static_cast<Veto>(i)), "") << i;
}

}  // namespace
}  // namespace taskd::diagnosis
