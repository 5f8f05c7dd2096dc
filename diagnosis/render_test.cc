#include "diagnosis/render.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <sstream>

#include "nlohmann/json.hpp"

namespace taskd::diagnosis {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

Report SlowReport() {
  Verdict verdict;
  verdict.id = 3;
  verdict.scope = Scope::kRank;
  verdict.ids = {7};
  verdict.alternatives = {{.scope = Scope::kLink, .ids = {}, .links = {{3, 7}}, .probability = 0.0204}};
  verdict.cause = Cause::kCompute;
  verdict.since_step = 103;
  verdict.since_ns = 1'767'225'600'123'456'789;
  verdict.last_step = 120;
  verdict.slowdown = 1.20959;
  verdict.cost_ms_per_step = 11.4321;
  verdict.slowdown_interval = {1.19, 1.2311};
  verdict.cost_interval_ms = {10.5, 12.25};
  verdict.confidence = 0.98;
  verdict.evidence = {{.feature = "own_time",
                       .value = 77.12345,
                       .reference = 66,
                       .peers = 15,
                       .z = 9.3456,
                       .first_step = 103,
                       .last_step = 120},
                      {.feature = "dataloader", .value = 0.00012346, .peers = 0}};
  verdict.text = "rank 7 (node 0) computes 21 % longer than its 15 peers since step 103";
  Report report;
  report.ranks = 64;
  report.first_step = 0;
  report.last_step = 120;
  report.state = JobState::kSlow;
  report.verdicts = {verdict};
  report.notes = {{NoteKind::kNoData, "rank 5 left no marks", 7}};
  report.coverage = {{0, 0.30749, true, 0.0312}, {63, 0, false}};
  report.own_time = {.ratio = 0.031, .steps = 120, .worst_rank = 7, .worst_ratio = 0.045};
  report.step_ms = 77.6;
  return report;
}

std::vector<std::string> Lines(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

TEST(RenderJson, SaysWhichOtherCauseItMayBe) {
  Report report = SlowReport();
  report.verdicts[0].alternatives = {
      {.scope = Scope::kRank, .ids = {7}, .links = {}, .probability = 0.3, .cause = Cause::kGc}};
  EXPECT_THAT(RenderJson(report, "default/llm"),
              HasSubstr(R"("alternatives":[{"scope":"rank","ids":[7],"p":0.3,"cause":"gc"}],"cause":"compute")"));
}

TEST(RenderJson, IsTheDesignsObjectToTheByte) {
  Report report = SlowReport();
  report.verdicts[0].nodes = {{0, "train-1", "train-1", "worker-7"}};
  EXPECT_EQ(
      RenderJson(report, "default/llm"),
      R"({"schema":1,"job":"default/llm","ranks":64,"steps":{"first":0,"last":120},"state":"slow","verdicts":[)"
      R"({"scope":"rank","ids":[7],"alternatives":[{"scope":"link","ids":[[3,7]],"p":0.02}],"cause":"compute",)"
      R"("state":"open","since_step":103,"since_time":"2026-01-01T00:00:00.123Z","slowdown":1.21,)"
      R"("slowdown_interval":[1.19,1.231],"cost_ms_per_step":11.43,"cost_interval_ms":[10.5,12.25],"confidence":0.98,"evidence":[)"
      R"({"feature":"own_time","value":77.12,"reference":66.0,"peers":15,"z":9.346,"steps":[103,120]},)"
      R"({"feature":"dataloader","value":0.0001235,"reference":0.0,"peers":0,"z":0.0,"steps":[0,0]}],)"
      R"("nodes":[{"rank":0,"host":"train-1","pod":"train-1","node_name":"worker-7"}],)"
      R"("text":"rank 7 (node 0) computes 21 % longer than its 15 peers since step 103"}],)"
      R"("notes":[{"kind":"no_data","since_step":7,"until_step":null,"text":"rank 5 left no marks"}],)"
      R"("coverage":[{"rank":0,"ratio":0.307,"sufficient":true,"resolution":0.0312},)"
      R"({"rank":63,"ratio":0.0,"sufficient":false,"resolution":null}],)"
      R"("resolution":{"own_time":{"ratio":0.031,"steps":120,"confidence":0.99,"worst":{"rank":7,"ratio":0.045}},)"
      R"("dataloader":null,"transfer":null}})");
}

TEST(RenderJson, HealthyAndEmpty) {
  Report report;
  EXPECT_EQ(
      RenderJson(report, ""),
      R"({"schema":1,"job":"","ranks":0,"steps":{"first":-1,"last":-1},"state":"unknown","verdicts":[],"notes":[],"coverage":[],"resolution":{"own_time":null,"dataloader":null,"transfer":null}})");
  report.state = JobState::kOk;
  EXPECT_THAT(RenderJson(report, ""), HasSubstr(R"("state":"ok")"));
}

TEST(RenderJson, IdsByScope) {
  Report report = SlowReport();
  Verdict& verdict = report.verdicts[0];
  auto ids = [&] { return nlohmann::json::parse(RenderJson(report, ""))["verdicts"][0]["ids"].dump(); };
  verdict.scope = Scope::kLink;
  verdict.links = {{0, 4}, {1, 5}};
  EXPECT_EQ(ids(), "[[0,4],[1,5]]");
  verdict.scope = Scope::kGroup;
  verdict.ids = {0, 4, 8};
  EXPECT_EQ(ids(), "[0,4,8]");
  verdict.scope = Scope::kJob;
  verdict.ids = {};
  EXPECT_EQ(ids(), "[]");
}

TEST(RenderText, NamesTheNodesOfAVerdict) {
  Report report = SlowReport();
  EXPECT_THAT(RenderText(report, ""), Not(HasSubstr(" on ")));
  report.verdicts[0].nodes = {
      {0, "train-1", "train-1", "worker-7"}, {1, "n2", "", "n2"}, {2, "train-3", "train-3", ""}};
  EXPECT_THAT(RenderText(report, ""), HasSubstr("\n     on worker-7 (host train-1), n2, train-3\n"));
  report.verdicts[0].nodes.resize(6, {3, "n4", "", "n4"});
  EXPECT_THAT(RenderText(report, ""), HasSubstr("n4 and 2 more\n"));
}

TEST(RenderJson, NamesMayHoldAnything) {
  Report report = SlowReport();
  report.notes[0].text = "group \"tp\xff\"\n<0>";
  nlohmann::json json = nlohmann::json::parse(RenderJson(report, "a/\"b\xc3\\"));
  EXPECT_EQ(json["job"], "a/\"b\xef\xbf\xbd\\");
  EXPECT_EQ(json["notes"][0]["text"], "group \"tp\xef\xbf\xbd\"\n<0>");
}

TEST(RenderJson, NumbersStayNumbersAndTimeMayBeUnknown) {
  Report report = SlowReport();
  report.verdicts[0].evidence[0].z = std::numeric_limits<double>::infinity();
  report.verdicts[0].evidence[0].value = std::numeric_limits<double>::quiet_NaN();
  report.verdicts[0].since_ns = 0;
  report.verdicts[0].open = false;
  nlohmann::json verdict = nlohmann::json::parse(RenderJson(report, ""))["verdicts"][0];
  EXPECT_TRUE(verdict["evidence"][0]["z"].is_number());
  EXPECT_EQ(verdict["evidence"][0]["value"], 0.0);
  EXPECT_TRUE(verdict["since_time"].is_null());
  EXPECT_EQ(verdict["state"], "cleared");
}

TEST(RenderText, BeginsWithTheAnswer) {
  Report report = SlowReport();
  EXPECT_THAT(RenderText(report, "default/llm"), StartsWith("slow: rank 7 (node 0) computes 21 % longer"));
  report.state = JobState::kOk;
  report.verdicts.clear();
  report.notes.clear();
  report.step_ms = 0;
  EXPECT_EQ(RenderText(report, ""), "ok: 64 ranks, steps 0-120, nobody is slow by 3.1 % or more\n");
  report.own_time.reset();
  EXPECT_EQ(RenderText(report, ""), "ok: 64 ranks, steps 0-120, nobody is slow\n");
  report.state = JobState::kUnknown;
  report.notes = {{NoteKind::kDesign, "the last stage is longer"}, {NoteKind::kShort, "only 4 steps were seen"}};
  EXPECT_EQ(RenderText(report, ""),
            "unknown: 64 ranks, steps 0-120, cannot say: only 4 steps were seen\n\nnote: the last stage is longer\n");
  EXPECT_EQ(RenderText(Report(), ""), "unknown: 0 ranks, no steps, cannot say: no rank has reported a step yet\n");
}

TEST(RenderText, SaysWhatTheMarksLack) {
  Report report;
  report.ranks = 2;
  report.first_step = 0;
  report.last_step = 80;
  report.notes = {{NoteKind::kNoData, "2 lines are no marks"},
                  {NoteKind::kCoverage, "nothing is marked: see docs/marks.md"}};
  EXPECT_EQ(WriteHeadline(report), "unknown: 2 ranks, steps 0-80, cannot say: nothing is marked: see docs/marks.md");
}

TEST(RenderText, TellsEvidenceCostAndAlternatives) {
  std::string text = RenderText(SlowReport(), "default/llm");
  EXPECT_THAT(text, HasSubstr("\njob default/llm, 64 ranks, steps 0-120, a step takes 77.6 ms now (median of ten)\n"));
  EXPECT_THAT(text, HasSubstr("\n  1. rank 7: compute since step 103 (2026-01-01T00:00:00.123Z), confidence 98 %\n"));
  EXPECT_THAT(text,
              HasSubstr("\n     cost: 11.43 ms of each step; steps are 21.0 % longer with it (19.0 to 23.1 %)\n"));
  EXPECT_THAT(text, HasSubstr("\n     self time           77.123           66  15 peers         9.35  103-120\n"));
  EXPECT_THAT(text, HasSubstr("its own past"));
  EXPECT_THAT(text, HasSubstr("\n     or instead: the link of ranks 3-7 (2 %)\n"));
  EXPECT_THAT(text, HasSubstr("\nnote: rank 5 left no marks\n"));
  // The sentence stands at the top and is not repeated.
  EXPECT_EQ(text.find("computes"), text.rfind("computes"));
}

TEST(RenderText, WhatIsNotKnownIsNoNumber) {
  Report report = SlowReport();
  Verdict& verdict = report.verdicts[0];
  verdict.slowdown_interval[1] = std::numeric_limits<double>::infinity();
  EXPECT_THAT(RenderText(report, ""), HasSubstr("; steps are 21.0 % longer with it (at least 19.0 %)\n"));
  EXPECT_THAT(RenderJson(report, ""), HasSubstr(R"("slowdown_interval":[1.19,null])"));
  verdict.slowdown = 1;
  EXPECT_THAT(RenderText(report, ""), HasSubstr("\n     cost: 11.43 ms of each step\n"));
  verdict.open = false;
  EXPECT_THAT(RenderText(report, ""),
              HasSubstr("\ncleared: rank 7: compute, steps 103-120, cost 11.43 ms of each step\n"));
  verdict.last_step = 31;
  EXPECT_THAT(RenderText(report, ""),
              HasSubstr("\ncleared: rank 7: compute, from step 103 to step 31 of a later attempt,"));
}

TEST(RenderText, SecondVerdictHasItsSentenceAndClearedOnesOneLine) {
  Report report = SlowReport();
  Verdict second = report.verdicts[0];
  second.ids = {9};
  second.text = "rank 9 loads its data slowly";
  Verdict cleared = second;
  cleared.open = false;
  cleared.ids = {0, 1, 2, 3, 8};
  cleared.scope = Scope::kNode;
  cleared.since_step = 10;
  cleared.last_step = 40;
  report.verdicts.push_back(second);
  report.verdicts.push_back(cleared);
  std::string text = RenderText(report, "");
  EXPECT_THAT(text, HasSubstr("\n  2. rank 9: compute since step 103"));
  EXPECT_THAT(text, HasSubstr("\n     rank 9 loads its data slowly\n"));
  EXPECT_THAT(text, HasSubstr("\ncleared: nodes 0-3, 8: compute, steps 10-40, cost 11.43 ms of each step (21.0 %)\n"));
}

TEST(RenderText, NoLineIsLongerThan120ColumnsWhateverIsInIt) {
  Report report = SlowReport();
  std::string words;
  for (int i = 0; i < 60; ++i) words += "w\xc3\xb6rter ";
  report.verdicts[0].text = words;
  report.verdicts[0].evidence[0].feature = std::string(200, 'f');
  report.verdicts[0].ids.clear();
  for (int i = 0; i < 3000; i += 2) report.verdicts[0].ids.push_back(i);
  report.notes[0].text = std::string(500, 'x');
  report.notes.push_back({NoteKind::kDesign, std::string("escape \x1b[2J and \xc2\x9b") + "31m and \xff"});
  std::string text = RenderText(report, std::string(300, 'j'));
  for (const std::string& line : Lines(text)) {
    size_t characters = std::count_if(line.begin(), line.end(), [](char c) { return (c & 0xc0) != 0x80; });
    EXPECT_LE(characters, 120u) << line;
  }
  EXPECT_THAT(text, HasSubstr("and 1488 more"));
  EXPECT_THAT(text, Not(HasSubstr("\x1b")));
  EXPECT_THAT(text, Not(HasSubstr("\x9b")));
  // Nothing is lost by wrapping.
  EXPECT_EQ(std::count(text.begin(), text.end(), 'j'), 301);
  EXPECT_EQ(std::count(text.begin(), text.end(), 'x'), 500 + 1 + 2) << "and two in escapes";
}

}  // namespace
}  // namespace taskd::diagnosis
