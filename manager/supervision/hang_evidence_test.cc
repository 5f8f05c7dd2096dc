#include "manager/supervision/hang_evidence.h"

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace taskd::manager {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

HangVerdict Verdict(std::vector<int> behind) {
  HangVerdict verdict;
  verdict.number = 1;
  verdict.hung = true;
  verdict.origins = verdict.behind = std::move(behind);
  verdict.waiting = "0, 2, 3";
  verdict.text = "hang: no rank has ended a step for 40 s";
  return verdict;
}

HangEvidence Evidence(std::vector<int> origins) {
  HangEvidence evidence;
  evidence.is_found = true;
  evidence.kind = origins.empty() ? "unknown" : "missing";
  evidence.origins = std::move(origins);
  evidence.group = "default_pg,0";
  evidence.operation = "all_reduce";
  evidence.since_ns = 5;
  evidence.waiting = "0-2";
  evidence.frames = {"f (a.py:1)"};
  evidence.text = "rank 3 never entered all_reduce";
  evidence.sources.push_back({"/tmp/r_0", "flight_recorder", 0, 7, ""});
  return evidence;
}

TEST(MergeEvidenceTest, WithoutAnyTheStepsAnswer) {
  HangEvidence answer = MergeEvidence(Verdict({7, 1}), {});
  EXPECT_THAT(answer.origins, ElementsAre(1, 7));
  EXPECT_EQ(answer.kind, "missing");
  EXPECT_EQ(answer.waiting, "0, 2, 3");
  EXPECT_EQ(answer.text, "hang: no rank has ended a step for 40 s");
  answer = MergeEvidence(Verdict({}), {});
  EXPECT_EQ(answer.kind, "unknown");
  EXPECT_THAT(answer.sources, IsEmpty());
}

TEST(MergeEvidenceTest, WhoIsProvenIsNamed) {
  for (const HangVerdict& verdict : {Verdict({}), Verdict({1})}) {
    const HangEvidence answer = MergeEvidence(verdict, Evidence({3}));
    EXPECT_THAT(answer.origins, ElementsAre(3));
    EXPECT_EQ(answer.group, "default_pg,0");
    EXPECT_EQ(answer.waiting, "0-2");
    EXPECT_EQ(answer.since_ns, 5u);
    EXPECT_THAT(answer.frames, ElementsAre("f (a.py:1)"));
    EXPECT_EQ(answer.text, "hang: rank 3 never entered all_reduce; no rank has ended a step for 40 s");
    EXPECT_EQ(answer.sources.size(), 1u);
  }
}

TEST(MergeEvidenceTest, WhatProvesNobodyIsWhereAllStandAtOneStep) {
  EXPECT_EQ(MergeEvidence(Verdict({}), Evidence({})).operation, "all_reduce");
  const HangEvidence answer = MergeEvidence(Verdict({1}), Evidence({}));
  EXPECT_THAT(answer.origins, ElementsAre(1));
  EXPECT_EQ(answer.operation, "");
  EXPECT_THAT(answer.notes, ElementsAre("rank 3 never entered all_reduce"));
  EXPECT_EQ(answer.sources.size(), 1u);
}

TEST(MergeEvidenceTest, NotesAndSourcesAloneChangeNothingElse) {
  HangEvidence evidence;
  evidence.notes = {"NCCL RAS at localhost:28028: it does not answer in time"};
  const HangEvidence answer = MergeEvidence(Verdict({1}), evidence);
  EXPECT_THAT(answer.origins, ElementsAre(1));
  EXPECT_THAT(answer.notes, ElementsAre("NCCL RAS at localhost:28028: it does not answer in time"));
}

TEST(MergeEvidenceTest, AnOriginByOpenRangesStandsSomewhere) {
  HangVerdict verdict = Verdict({});
  verdict.origins = {1};
  verdict.operation = "all_reduce";
  verdict.since_ns = 7;
  verdict.cause = "rank 1 is in its data loader, in step 3, and 3 ranks wait in all_reduce";
  verdict.text = absl::StrCat("hang: ", verdict.cause, "; no rank has ended a step for 40 s");
  const HangFrames frames{{"select (selectors.py:415)", "main (t.py:12)"}, "main (t.py:12)"};
  const HangEvidence answer = MergeEvidence(verdict, {}, frames);
  EXPECT_THAT(answer.origins, ElementsAre(1));
  EXPECT_EQ(answer.kind, "missing");
  EXPECT_EQ(answer.operation, "all_reduce");
  EXPECT_EQ(answer.since_ns, 7u);
  EXPECT_THAT(answer.frames, ElementsAre("select (selectors.py:415)", "main (t.py:12)"));
  EXPECT_EQ(answer.text,
            "hang: rank 1 stands at main (t.py:12); rank 1 is in its data loader, in step 3, and 3 ranks wait in "
            "all_reduce; no rank has ended a step for 40 s");
  // What a library proves says it better.
  EXPECT_EQ(MergeEvidence(verdict, Evidence({3}), frames).text,
            "hang: rank 3 never entered all_reduce; no rank has ended a step for 40 s");
}

}  // namespace
}  // namespace taskd::manager
