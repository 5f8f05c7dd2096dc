#include "agent/trace/trace_writer.h"

#include <algorithm>
#include <cstdlib>
#include <map>
#include <random>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace taskd::trace {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr uint64_t kBase = 1'745'567'190'000'000'000;
constexpr char kSend[] = R"({\"count\": \"512\",\"dataType\": \"fp32\",\"groupName\": \"g1\",\"opName\": \"HcclSend\",)"
                         R"(\"srcRank\": \"0\",\"destRank\": \"1\"})";

struct Range {
  uint64_t start, end;
};

bool Crosses(const Range& a, const Range& b) {
  return (a.start < b.start && b.start < a.end && a.end < b.end) ||
         (b.start < a.start && a.start < b.end && b.end < a.end);
}

TEST(TraceLanesTest, NestedRangesNeedOneLane) {
  TraceLanes lanes;
  lanes.Open(0);
  for (uint64_t i = 0; i < 100'000; ++i) {  // far more than are kept
    lanes.Open(10 * i + 1);
    lanes.Open(10 * i + 2);
    EXPECT_EQ(lanes.Close(10 * i + 2, 10 * i + 5), 0);
    EXPECT_EQ(lanes.Close(10 * i + 1, 10 * i + 9), 0);
  }
  EXPECT_EQ(lanes.Close(0, 2'000'000), 0);
}

TEST(TraceLanesTest, CrossingRangesGetAnotherLane) {
  TraceLanes lanes;
  for (uint64_t start : {0, 5, 10}) lanes.Open(start);
  EXPECT_EQ(lanes.Close(0, 8), 0);
  EXPECT_EQ(lanes.Close(5, 12), 1);
  EXPECT_EQ(lanes.Close(10, 20), 0);
}

TEST(TraceLanesTest, TouchingRangesShareALane) {
  TraceLanes lanes;
  EXPECT_EQ(lanes.Close(0, 5), 0);
  EXPECT_EQ(lanes.Close(5, 9), 0);
  EXPECT_EQ(lanes.Close(9, 9), 0);
  EXPECT_EQ(lanes.Close(9, 12), 0);
}

// The file has the inner one first, and a viewer that does not sort by length would take it for the outer one.
TEST(TraceLanesTest, RangesThatBeginTogetherShareNoLane) {
  TraceLanes lanes;
  EXPECT_EQ(lanes.Close(0, 5), 0);
  EXPECT_EQ(lanes.Close(0, 9), 1);
}

TEST(TraceLanesTest, NoMoreLanesThanTheLimit) {
  TraceLanes lanes;
  for (uint64_t i = 0; i < TraceLanes::kMax; ++i) EXPECT_EQ(lanes.Close(i, 1000 + i), static_cast<int>(i));
  EXPECT_EQ(lanes.Close(500, 5000), -1);
}

// Whatever comes in whatever order: nothing on one lane crosses.
TEST(TraceLanesTest, NothingCrosses) {
  for (uint64_t seed = 0; seed < 40; ++seed) {
    std::mt19937_64 random(seed);
    std::vector<Range> ranges;
    for (int i = 0; i < 600; ++i) {
      uint64_t start = random() % 100'000;
      ranges.push_back({start, start + random() % (seed % 2 == 0 ? 300 : 5'000)});
    }
    if (seed % 4 < 2) std::sort(ranges.begin(), ranges.end(), [](auto& a, auto& b) { return a.end < b.end; });
    TraceLanes lanes;
    for (const Range& range : ranges) lanes.Open(range.start);
    std::map<int, std::vector<Range>> placed;
    for (const Range& range : ranges) {
      int lane = lanes.Close(range.start, range.end);
      for (const Range& other : placed[lane]) {
        ASSERT_FALSE(lane >= 0 && Crosses(range, other)) << "seed " << seed << ": " << range.start << "-" << range.end
                                                         << " on the lane of " << other.start << "-" << other.end;
      }
      placed[lane].push_back(range);
    }
  }
}

TEST(AppendMicrosecondsTest, SurvivesAViewersConversion) {
  std::mt19937_64 random(7);
  for (int i = 0; i < 200'000; ++i) {
    uint64_t ns = random() >> (12 + random() % 50);  // up to 52 days
    std::string text;
    AppendMicroseconds(ns, text);
    ASSERT_EQ(static_cast<uint64_t>(std::strtod(text.c_str(), nullptr) * 1000.0), ns) << text;
    ASSERT_EQ(json::parse(text).get<double>(), std::strtod(text.c_str(), nullptr));
  }
}

TEST(AppendMicrosecondsTest, IsShortWhereItCanBe) {
  auto text = [](uint64_t ns) {
    std::string out;
    AppendMicroseconds(ns, out);
    return out;
  };
  EXPECT_EQ(text(0), "0");
  EXPECT_EQ(text(7), "0.007");
  EXPECT_EQ(text(1500), "1.500");
  EXPECT_EQ(text(2'000'000), "2000");
  EXPECT_THAT(text(1001), HasSubstr("1.001"));  // 1.001 * 1000 is below 1001 as a double
}

TEST(JsonStringTest, IsValidWhateverItHolds) {
  EXPECT_EQ(JsonString("a\"b\\c\n"), R"("a\"b\\c\n")");
  EXPECT_EQ(json::parse(JsonString("a\xff")).get<std::string>(), "a\xef\xbf\xbd");
  // A terminal obeys C1 characters and overrides of direction.
  EXPECT_EQ(JsonString("\xc2\x9b\xe2\x80\xae"), R"("\u009b\u202e")");
}

class TraceWriterTest : public ::testing::Test {
 protected:
  void Begin(TraceRank rank = {}) {
    if (rank.name.empty()) rank.name = "rank";
    writer_.BeginRank(std::move(rank));
  }
  void Host(MarkRecord::Phase phase, uint64_t time, uint64_t id, std::string_view name = "",
            std::string_view domain = "", uint32_t pid = 100) {
    writer_.Add({phase, false, kBase + time, id, pid, 1, name, domain});
  }
  void Device(MarkRecord::Phase phase, uint64_t time, uint64_t id, uint32_t stream = 3) {
    writer_.Add({phase, true, kBase + time, id, 0, stream, "", ""});
  }
  void Start(uint64_t time, uint64_t id, std::string_view name, std::string_view domain = "default") {
    Host(MarkRecord::Phase::kStart, time, id, name, domain);
  }
  void End(uint64_t time, uint64_t id) { Host(MarkRecord::Phase::kEnd, time, id); }
  json Finish() {
    EXPECT_TRUE(writer_.Finish("").ok());
    return json::parse(text_);
  }
  // "track: name [ts, dur]" of each event of these phases.
  static std::vector<std::string> Lines(const json& file, const std::string& phases = "X") {
    std::map<int, std::string> tracks;
    std::vector<std::string> lines;
    for (const json& event : file["traceEvents"]) {
      if (event["name"] == "thread_name") tracks[event["tid"]] = event["args"]["name"];
    }
    for (const json& event : file["traceEvents"]) {
      if (phases.find(event["ph"].get<std::string>()) == std::string::npos) continue;
      std::string line = tracks[event["tid"]] + ": " + event["name"].get<std::string>() + " " + event["ts"].dump();
      if (event.contains("dur")) line += "+" + event["dur"].dump();
      lines.push_back(line);
    }
    return lines;
  }

  std::string text_;
  absl::Status fail_with_;
  TraceWriter writer_{kBase, [this](std::string_view text) {
                        text_ += text;
                        return fail_with_;
                      }};
};

TEST_F(TraceWriterTest, KindsAndDevicesHaveTracksOfTheirOwn) {
  Begin();
  Start(0, 1, "step 7");
  Start(1000, 2, "forward");
  Device(MarkRecord::Phase::kStart, 3000, 2);
  End(2000, 2);
  Start(2000, 3, "ours", "mine");
  End(4000, 3);
  End(5000, 1);
  Device(MarkRecord::Phase::kEnd, 9000, 2);  // the device is behind
  Host(MarkRecord::Phase::kInstant, 6000, 4, "here", "default");
  writer_.EndRank();
  json file = Finish();
  EXPECT_THAT(Lines(file), ElementsAre("forward: forward 1+1", "other: ours 2+2", "step: step 7 0+5",
                                       "forward (device, stream 3): forward 3+6"));
  EXPECT_THAT(Lines(file, "i"), ElementsAre("other: here 6"));
  EXPECT_EQ(file["otherData"]["unix_start_ns"], std::to_string(kBase));
  EXPECT_EQ(writer_.events(), 5u);
  EXPECT_EQ(writer_.unmatched(), 0u);
}

TEST_F(TraceWriterTest, CommunicationSaysGroupOperationBytesAndPeer) {
  TraceRank rank;
  rank.groups = {{"g1", "pp", {{4, 8, 2}}}};
  Begin(rank);
  Start(0, 1, kSend, "communication");
  End(10, 1);
  Start(20, 2, R"({"count": "1","groupName": "g2","opName": "HcclMagic"})", "communication");
  End(30, 2);
  Start(40, 3, "no json at all", "communication");
  End(50, 3);
  writer_.EndRank();
  json file = Finish();
  EXPECT_THAT(Lines(file), ElementsAre("communication pp: send pp 0+0.01", "communication g2: other g2 0.02+0.01",
                                       "communication: no json at all 0.04+0.01"));
  std::vector<json> events;
  for (const json& event : file["traceEvents"]) {
    if (event["ph"] == "X") events.push_back(event["args"]);
  }
  EXPECT_EQ(events[0], json({{"group", "g1"}, {"op", "send"}, {"bytes", 2048}, {"peer", 12}}));
  EXPECT_THAT(events[1]["mark"].get<std::string>(), HasSubstr("HcclMagic"));
}

// Two groups with one label are distinguished by name.
TEST_F(TraceWriterTest, LabelsThatAreNotUniqueGetTheName) {
  TraceRank rank;
  rank.groups = {{"g1", "dp", {}}, {"g2", "dp", {}}};
  Begin(rank);
  Start(0, 1, kSend, "communication");
  End(10, 1);
  writer_.EndRank();
  EXPECT_THAT(Lines(Finish()), ElementsAre("communication dp (g1): send dp (g1) 0+0.01"));
}

TEST_F(TraceWriterTest, CrossingRangesGoToFurtherThreads) {
  Begin();
  Start(0, 1, "a", "x");
  Start(5, 2, "b", "x");
  End(10, 1);
  End(15, 2);
  writer_.EndRank();
  EXPECT_THAT(Lines(Finish()), ElementsAre("other: a 0+0.01", "other 2: b 0.005+0.01"));
}

TEST_F(TraceWriterTest, OpenRangesEndWithTheirProcess) {
  Begin();
  Host(MarkRecord::Phase::kStart, 0, 1, "step 1", "default", 100);
  Host(MarkRecord::Phase::kStart, 2000, 2, "forward", "default", 100);
  Host(MarkRecord::Phase::kStart, 9000, 1, "step 1", "default", 200);  // the next life: ids begin again
  Host(MarkRecord::Phase::kEnd, 12000, 1, "", "", 200);
  writer_.EndRank();
  json file = Finish();
  EXPECT_THAT(Lines(file), ElementsAre("step: step 1 0+2", "step: step 1 9+3", "forward: forward 2+0"));
  EXPECT_EQ(file["traceEvents"][4]["args"]["open"], true);
}

TEST_F(TraceWriterTest, WhatDoesNotFitIsCounted) {
  Begin();
  End(0, 1);
  Device(MarkRecord::Phase::kStart, 0, 9);
  Device(MarkRecord::Phase::kEnd, 5, 9);
  Start(10, 2, "a");
  Host(MarkRecord::Phase::kEnd, 20, 2, "", "", 999);  // of another process
  writer_.EndRank();
  Finish();
  EXPECT_EQ(writer_.unmatched(), 4u);
}

TEST_F(TraceWriterTest, ClocksAreAlignedAndNothingIsNegative) {
  TraceRank rank;
  rank.clock_offset_ns = 1000;
  Begin(rank);
  Start(500, 1, "step 1");
  End(6000, 1);
  writer_.EndRank();
  EXPECT_THAT(Lines(Finish()), ElementsAre("step: step 1 0+5"));
}

TEST_F(TraceWriterTest, WindowsSelectWhatOverlaps) {
  TraceRank rank;
  rank.windows = {{kBase + 100, kBase + 200}, {kBase + 500, kBase + 600}};
  Begin(rank);
  for (uint64_t i = 0; i < 10; ++i) {
    Start(100 * i + 20, i, "r" + std::to_string(i), "x");
    Host(MarkRecord::Phase::kInstant, 100 * i + 30, 100 + i, "i" + std::to_string(i), "x");
    End(100 * i + 90, i);
  }
  Start(1000, 50, "after", "x");
  writer_.EndRank();
  json file = Finish();
  EXPECT_THAT(Lines(file), ElementsAre("other: r1 0.12+0.07", "other: r5 0.52+0.07"));
  EXPECT_THAT(Lines(file, "i"), ElementsAre("other: i1 0.13", "other: i5 0.53"));
}

TEST_F(TraceWriterTest, SpansLieOverTheirSteps) {
  TraceRank rank;
  rank.spans = {{"slow", R"("text":"why")", 2, 3}, {"never", "", 50, 60}};
  Begin(rank);
  for (uint64_t i = 0; i < 5; ++i) {
    Start(1000 * i, i, "step " + std::to_string(i));
    End(1000 * i + 900, i);
  }
  writer_.GlobalInstant("slow", R"("text":"why")", kBase + 2000);
  writer_.EndRank();
  json file = Finish();
  EXPECT_THAT(Lines(file), ::testing::Contains("verdict: slow 2+1.9"));
  EXPECT_THAT(Lines(file), SizeIs(6));
  EXPECT_THAT(Lines(file, "i"), ElementsAre("verdict: slow 2"));
  EXPECT_EQ(file["traceEvents"].back()["args"]["text"], "why");
}

TEST_F(TraceWriterTest, TidsAreUniqueInTheFileAndNoPid) {
  std::map<int, int> tids;
  for (int rank : {0, 1, 131071}) {
    TraceRank what;
    what.rank = rank;
    Begin(what);
    Start(0, 1, "step 1");
    End(10, 1);
    writer_.EndRank();
  }
  json file = Finish();
  for (const json& event : file["traceEvents"]) {
    if (event["name"] == "thread_name") ++tids[event["tid"]];
  }
  EXPECT_THAT(tids, SizeIs(3));
  for (auto [tid, count] : tids) {
    EXPECT_GT(tid, 131071);
    EXPECT_EQ(count, 1);
  }
}

TEST_F(TraceWriterTest, RangesThatNeverEndDoNotPileUp) {
  Begin();
  size_t more = 1000;
  for (uint64_t i = 0; i < TraceWriter::kMaxOpen + more; ++i) Start(i, i, "r", "x");
  EXPECT_GE(writer_.events() + writer_.left_out(), more);
  writer_.EndRank();
  json file = Finish();
  EXPECT_EQ(writer_.events() + writer_.left_out(), TraceWriter::kMaxOpen + more);
}

TEST_F(TraceWriterTest, NothingAtAllIsStillAFile) {
  json file = Finish();
  EXPECT_THAT(file["traceEvents"], IsEmpty());
  EXPECT_EQ(file["displayTimeUnit"], "ms");
}

TEST_F(TraceWriterTest, FileErrorIsReturned) {
  fail_with_ = absl::ResourceExhaustedError("full");
  Begin();
  EXPECT_EQ(writer_.Finish("").message(), "full");
  EXPECT_EQ(writer_.status().message(), "full");
}

}  // namespace
}  // namespace taskd::trace
