#include "proxy/segment_drain.h"

#include <sys/resource.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <set>

#include "absl/strings/str_split.h"
#include "fmt/format.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "marks/mark_line.h"
#include "proxy/testing/fake_segment.h"
#include "proxy/testing/temp_dir.h"

namespace taskd::proxy {
namespace {

using ::testing::ElementsAre;
using testing::FakeSegment;
using ::testing::IsEmpty;
using testing::MarkFiles;
using testing::ReadFile;
using testing::TempDir;

constexpr uint64_t kStartNs = 1'000'000'000;

class SegmentDrainTest : public ::testing::Test {
 protected:
  SegmentDrainTest()
      : dir_(temp_ / "profiling", "task"), files_(std::make_shared<RankFiles>(dir_, 3)), fake_(kStartNs) {
    fake_.header().undecided_keep = ring::kGateAllKinds | ring::kGateUndecided;
    ring_ = fake_.AddRing();
  }

  std::unique_ptr<SegmentDrain> NewDrain(std::shared_ptr<RankFold> fold = nullptr) {
    auto segment = RingSegment::Open(fake_.Fd());
    EXPECT_TRUE(segment.ok());
    return std::make_unique<SegmentDrain>(*std::move(segment), files_, std::move(fold));
  }
  absl::Status FlushAll(SegmentDrain& drain) { return drain.Flush(ReadMonotonicNs(), true, true); }

  // All lines of the rank, oldest first.
  std::vector<std::string> Lines() {
    std::vector<std::string> lines;
    for (const std::string& file : MarkFiles(folder())) {
      for (absl::string_view line : absl::StrSplit(ReadFile(folder() + "/" + file), '\n', absl::SkipEmpty())) {
        lines.emplace_back(line);
      }
    }
    return lines;
  }
  // "<flag> <id> <name>" of each line.
  std::vector<std::string> Brief() {
    std::vector<std::string> brief;
    for (const std::string& line : Lines()) {
      auto mark = ParseMarkLine(line);
      EXPECT_TRUE(mark.has_value()) << line;
      if (mark) brief.push_back(fmt::format("{} {} {}", mark->flag, mark->id, mark->name));
    }
    return brief;
  }
  std::string folder() { return temp_ / "profiling/task/3"; }

  void Start(uint64_t ticks, uint64_t id, const std::string& name, ring::Kind kind, uint32_t flags = 0, int ring = 0) {
    fake_.Append(ring, {ring::kRecordRangeStart, ticks, id, name, kind, flags});
  }
  void End(uint64_t ticks, uint64_t id, int ring = 0) { fake_.Append(ring, {ring::kRecordRangeEnd, ticks, id}); }
  // MSPTI's records: its own times and ids, all written by one thread of ours.
  static constexpr uint64_t kMsptiNs = 1'745'567'190'000'000'000;
  void Host(ring::RecordType type, uint64_t ns, uint64_t id, const std::string& name = {},
            ring::Kind kind = ring::kKindOther, uint32_t flags = ring::kFlagStream,
            uint32_t domain = ring::kDomainDefault) {
    fake_.Append(
        0, {type, ++mspti_ticks_, id, name, kind, ring::kFlagSource | flags, domain, 77, kMsptiNs + ns, 4242, 1000});
  }
  void Device(ring::RecordType type, uint64_t ns, uint64_t id) {
    fake_.Append(0, {type, ++mspti_ticks_, id, "", ring::kKindStep,
                     ring::kFlagSource | ring::kFlagDevice | ring::kFlagStream, 0, 77, kMsptiNs + ns, 2, 9});
  }

  TempDir temp_;
  ProfilingDir dir_;
  std::shared_ptr<RankFiles> files_;
  FakeSegment fake_;
  int ring_;
  uint64_t mspti_ticks_ = kStartNs;
};

TEST_F(SegmentDrainTest, WritesMarksWithTheirFlagsAndTimes) {
  Start(kStartNs + 5, 1, "step 7", ring::kKindStep);
  Start(kStartNs + 6, 2, "dataloader", ring::kKindDataLoader);
  End(kStartNs + 7, 2);
  fake_.Append(0, {ring::kRecordMark, kStartNs + 8, 3, "note", ring::kKindOther});
  fake_.Append(0, {ring::kRecordMark, kStartNs + 9, 4, "on a stream", ring::kKindOther, ring::kFlagStream});
  Start(kStartNs + 10, 5, "dataloader", ring::kKindDataLoader, ring::kFlagStream);
  End(kStartNs + 11, 5);
  End(kStartNs + 2'000'005, 1);
  auto drain = NewDrain();
  ASSERT_TRUE(FlushAll(*drain).ok());
  EXPECT_THAT(Brief(), ElementsAre("16 1 step 7", "2 2 dataloader", "4 2 ", "1 3 note", "8 4 on a stream",
                                   "16 5 dataloader", "32 5 ", "32 1 "));
  EXPECT_EQ(ParseMarkLine(Lines()[0])->timestamp_ns, FakeSegment::kRealtimeStartNs + 5);
  EXPECT_EQ(ParseMarkLine(Lines()[0])->process_id, 4242u);
  SegmentDrain::Counters counters = drain->counters();
  EXPECT_EQ(counters.step, 7);
  EXPECT_DOUBLE_EQ(counters.step_ms, 2.0);
  EXPECT_THAT(counters.written, ElementsAre(1, 0, 0, 2, 0, 2));
}

TEST_F(SegmentDrainTest, LeavesOutEndsWithoutAStart) {
  End(kStartNs + 1, 99);
  Start(kStartNs + 2, 1, "forward", ring::kKindForward);
  End(kStartNs + 3, 1);
  End(kStartNs + 4, 1);
  auto drain = NewDrain();
  ASSERT_TRUE(FlushAll(*drain).ok());
  EXPECT_THAT(Brief(), ElementsAre("16 1 forward", "32 1 "));
}

TEST_F(SegmentDrainTest, OnlyTheNameOfAStepIsAStep) {
  Start(kStartNs + 1, 1, "step 12x", ring::kKindStep);  // the recorder does not say so
  End(kStartNs + 2, 1);
  auto drain = NewDrain();
  ASSERT_TRUE(FlushAll(*drain).ok());
  EXPECT_EQ(drain->counters().step, -1);
}

TEST_F(SegmentDrainTest, AnEndOfAnotherThreadComesAfterItsStart) {
  int other = fake_.AddRing();
  End(kStartNs + 3, 1, other);
  Start(kStartNs + 2, 1, "forward", ring::kKindForward, 0, ring_);
  auto drain = NewDrain();
  ASSERT_TRUE(FlushAll(*drain).ok());
  EXPECT_THAT(Brief(), ElementsAre("16 1 forward", "32 1 "));
}

// Its counter may be read before the load that learned the id (proxy/range_order.h).
TEST_F(SegmentDrainTest, AnEndStampedBeforeItsStartComesAfterIt) {
  const int other = fake_.AddRing();
  for (const uint64_t early : {0, 3}) {
    End(kStartNs + 10, early + 1, ring_);
    Start(kStartNs + 10 + early, early + 1, "forward", ring::kKindForward, 0, other);
  }
  End(kStartNs + 11, 1, ring_);  // a second one
  auto drain = NewDrain();
  ASSERT_TRUE(FlushAll(*drain).ok());
  EXPECT_THAT(Brief(), ElementsAre("16 1 forward", "32 1 ", "16 4 forward", "32 4 "));
  EXPECT_EQ(ParseMarkLine(Lines()[3])->timestamp_ns, FakeSegment::kRealtimeStartNs + 13) << "not before its start";
}

TEST_F(SegmentDrainTest, AnEndIsNotTakenBeforeItsStartCanHaveCome) {
  const int other = fake_.AddRing();
  const uint64_t begin = ReadMonotonicNs() + 1'000'000;
  constexpr uint64_t kRanges = 50;
  for (uint64_t i = 0; i < kRanges; ++i) {
    End(begin + i * 200'000, i + 1, ring_);
    Start(begin + i * 200'000 + kMaxEarlyNs - 1000, i + 1, "x", ring::kKindOther, 0, other);
  }
  // Reads at many moments between the two.
  auto drain = NewDrain();
  while (!drain->drained()) ASSERT_TRUE(drain->Flush(ReadMonotonicNs(), true, false).ok());
  EXPECT_EQ(Lines().size(), 2 * kRanges);
}

TEST_F(SegmentDrainTest, KeepsOfTheUndecidedWhatIsWanted) {
  fake_.header().undecided_keep = ring::kGateStep | ring::kGateUndecided;
  Start(kStartNs + 1, 1, "step 1", ring::kKindStep, ring::kFlagUndecided);
  Start(kStartNs + 2, 2, "forward", ring::kKindForward, ring::kFlagUndecided);
  End(kStartNs + 3, 2);
  End(kStartNs + 4, 1);
  Start(kStartNs + 5, 3, "forward", ring::kKindForward);
  auto drain = NewDrain();
  ASSERT_TRUE(FlushAll(*drain).ok());
  EXPECT_THAT(Brief(), ElementsAre("16 1 step 1", "32 1 ", "16 3 forward"));
}

TEST_F(SegmentDrainTest, WaitsUntilItIsWorthAWrite) {
  Start(kStartNs + 1, 1, "step 1", ring::kKindStep);
  auto drain = NewDrain();
  uint64_t now = ReadMonotonicNs();
  ASSERT_TRUE(drain->Flush(now, false, false).ok());
  EXPECT_THAT(Lines(), IsEmpty());
  ASSERT_TRUE(drain->Flush(now + 600'000'000, false, false).ok());
  EXPECT_EQ(Lines().size(), 1u);
  for (int i = 0; i < 3000; ++i) fake_.Append(0, {ring::kRecordMark, kStartNs + 2, 7, "full", ring::kKindOther});
  ASSERT_TRUE(drain->Flush(now + 600'000'001, false, false).ok());
  EXPECT_EQ(Lines().size(), 3001u);
}

// TaskD contract §4.3 and §4.5, byte for byte.
TEST_F(SegmentDrainTest, ContractARangeOfMsptiWithAStreamIsFourLines) {
  Host(ring::kRecordRangeStart, 1, 7, "step 3", ring::kKindStep);
  Host(ring::kRecordRangeEnd, 4, 7);
  Device(ring::kRecordRangeStart, 2, 7);
  Device(ring::kRecordRangeEnd, 1'000'009, 7);
  auto drain = NewDrain();
  ASSERT_TRUE(FlushAll(*drain).ok());
  const std::string host = R"("MsptiObjectId":{"Pt":{"ProcessId":4242,"ThreadId":1000},)"
                           R"("Ds":{"DeviceId":4242,"StreamId":1000}},)";
  const std::string device = R"("MsptiObjectId":{"Pt":{"ProcessId":2,"ThreadId":9},"Ds":{"DeviceId":2,"StreamId":9}},)";
  EXPECT_THAT(Lines(), ElementsAre(R"({"Kind":1,"Flag":16,"SourceKind":0,"Timestamp":1745567190000000001,"Id":7,)" +
                                       host + R"("Name":"step 3","Domain":"default"})",
                                   R"({"Kind":1,"Flag":32,"SourceKind":0,"Timestamp":1745567190000000004,"Id":7,)" +
                                       host + R"("Name":"","Domain":""})",
                                   R"({"Kind":1,"Flag":16,"SourceKind":1,"Timestamp":1745567190000000002,"Id":7,)" +
                                       device + R"("Name":"","Domain":""})",
                                   R"({"Kind":1,"Flag":32,"SourceKind":1,"Timestamp":1745567190001000009,"Id":7,)" +
                                       device + R"("Name":"","Domain":""})"));
  EXPECT_THAT(drain->counters().written, ElementsAre(1, 0, 0, 0, 0, 0)) << "device lines are not marks";
  EXPECT_EQ(drain->counters().step, 3);
}

TEST_F(SegmentDrainTest, ContractMsptisFlagsAreItsOwn) {
  Host(ring::kRecordRangeStart, 1, 1, "step 1", ring::kKindStep, 0);  // without a stream: 2 and 4, also a step's
  Host(ring::kRecordRangeStart, 2, 2, R"({\"count\": \"4\"})", ring::kKindCommunication, ring::kFlagStream,
       ring::kDomainCommunication);
  Host(ring::kRecordMark, 3, 3, "here", ring::kKindOther, 0);
  Host(ring::kRecordMark, 4, 4, "there");
  Device(ring::kRecordMark, 5, 4);
  Host(ring::kRecordRangeEnd, 6, 2);
  Host(ring::kRecordRangeEnd, 7, 1, "", ring::kKindOther, 0);
  auto drain = NewDrain();
  ASSERT_TRUE(FlushAll(*drain).ok());
  EXPECT_THAT(Brief(), ElementsAre("2 1 step 1", R"(16 2 {\"count\": \"4\"})", "1 3 here", "8 4 there", "8 4 ", "32 2 ",
                                   "4 1 "));
  EXPECT_EQ(ParseMarkLine(Lines()[1])->domain, "communication");
  EXPECT_TRUE(ParseMarkLine(Lines()[4])->device);
}

TEST_F(SegmentDrainTest, DeviceRecordsOfAnUnknownIdAreLeftOut) {
  Device(ring::kRecordRangeStart, 1, 1);  // before its host's
  Host(ring::kRecordRangeStart, 2, 1, "forward", ring::kKindForward);
  Device(ring::kRecordRangeEnd, 3, 1);
  Device(ring::kRecordRangeEnd, 4, 1);  // a second one
  Device(ring::kRecordMark, 5, 8);
  Host(ring::kRecordRangeStart, 6, 2, "dataloader", ring::kKindDataLoader, 0);
  Device(ring::kRecordRangeStart, 7, 2);  // without a stream there is nothing on the device
  Host(ring::kRecordRangeEnd, 8, 9);
  Device(ring::kRecordRangeStart, 9, 9);
  auto drain = NewDrain();
  ASSERT_TRUE(FlushAll(*drain).ok());
  EXPECT_THAT(Brief(), ElementsAre("16 1 forward", "32 1 ", "2 2 dataloader"));
  EXPECT_TRUE(ParseMarkLine(Lines()[1])->device);
}

// The device runs behind: its records may come in any later batch, also of the next proxy.
TEST_F(SegmentDrainTest, ContractASuccessorKeepsTheDevicesLines) {
  Start(kStartNs, ring::kFirstOwnId + 1, "step 9", ring::kKindStep);  // our own: no device will ever answer
  for (uint64_t id : {1, 2, 3}) Host(ring::kRecordRangeStart, id, id, "forward", ring::kKindForward);
  Host(ring::kRecordMark, 4, 4, "mark");
  Device(ring::kRecordRangeStart, 5, 1);
  Device(ring::kRecordRangeEnd, 6, 1);
  Device(ring::kRecordRangeStart, 7, 2);
  ASSERT_TRUE(FlushAll(*NewDrain()).ok());
  ASSERT_EQ(Lines().size(), 8u);

  auto drain = NewDrain();
  Device(ring::kRecordRangeEnd, 8, 1);  // is there
  Device(ring::kRecordRangeEnd, 9, 2);
  Device(ring::kRecordRangeStart, 10, 3);
  Device(ring::kRecordMark, 11, 4);
  Device(ring::kRecordRangeStart, 12, ring::kFirstOwnId + 1);
  Host(ring::kRecordRangeEnd, 13, 3);
  ASSERT_TRUE(FlushAll(*drain).ok());
  Device(ring::kRecordRangeEnd, 14, 3);
  ASSERT_TRUE(FlushAll(*drain).ok());
  std::vector<std::string> brief = Brief();
  EXPECT_THAT(std::vector<std::string>(brief.begin() + 8, brief.end()),
              ElementsAre("32 2 ", "16 3 ", "8 4 ", "32 3 ", "32 3 "));
  EXPECT_EQ(drain->counters().lost, 0u);
}

TEST_F(SegmentDrainTest, ContractASuccessorWritesDeviceLinesOnce) {
  Host(ring::kRecordRangeStart, 1, 1, "forward", ring::kKindForward);
  ASSERT_TRUE(FlushAll(*NewDrain()).ok());
  const std::string file = folder() + "/" + MarkFiles(folder()).at(0);
  const std::string before = ReadFile(file);
  const uint64_t consumed = fake_.slot(0).consumed;
  Device(ring::kRecordRangeStart, 2, 1);
  Host(ring::kRecordMark, 3, 2, "mark");
  Device(ring::kRecordRangeEnd, 4, 1);
  Device(ring::kRecordMark, 5, 2);
  ASSERT_TRUE(FlushAll(*NewDrain()).ok());
  const std::string after = ReadFile(file);
  ASSERT_EQ(Lines().size(), 5u);
  for (size_t bytes_done : {size_t{0}, size_t{300}, after.size() - before.size()}) {
    fake_.slot(0).consumed = consumed;
    fake_.slot(0).sequence = 1;
    fake_.header().intent.valid = 1;
    testing::WriteFile(file, after.substr(0, before.size() + bytes_done));
    auto drain = NewDrain();
    ASSERT_TRUE(FlushAll(*drain).ok());
    EXPECT_EQ(ReadFile(file), after) << bytes_done;
    EXPECT_EQ(drain->counters().lost, 0u);
  }
}

// MSPTI counts its ids from 1 in each process.
TEST_F(SegmentDrainTest, ContractTheNextLifeOfARankHasTheSameIds) {
  Host(ring::kRecordRangeStart, 1, 1, "forward", ring::kKindForward);
  Host(ring::kRecordRangeStart, 2, 2, "forward", ring::kKindForward);
  ASSERT_TRUE(FlushAll(*NewDrain()).ok());  // and is killed
  FakeSegment next(kStartNs);
  next.header().pid = 4243;
  next.header().undecided_keep = ring::kGateAllKinds | ring::kGateUndecided;
  next.AddRing();
  auto drain_next = [&] {
    auto segment = RingSegment::Open(next.Fd());
    EXPECT_TRUE(segment.ok());
    SegmentDrain drain(*std::move(segment), files_);
    EXPECT_TRUE(FlushAll(drain).ok());
  };
  auto append = [&](ring::RecordType type, uint32_t flags, uint64_t ticks, uint64_t id, uint32_t process_id) {
    next.Append(0, {type, kStartNs + ticks, id, "", ring::kKindOther, ring::kFlagSource | ring::kFlagStream | flags, 0,
                    77, kMsptiNs + ticks, process_id, 1});
  };
  append(ring::kRecordRangeStart, 0, 11, 1, 4243);
  append(ring::kRecordRangeStart, ring::kFlagDevice, 12, 2, 0);  // the old life's
  drain_next();
  // By now the segment has been taken on before, so the files are read back.
  append(ring::kRecordRangeStart, ring::kFlagDevice, 13, 2, 0);
  append(ring::kRecordRangeEnd, 0, 14, 2, 4243);
  append(ring::kRecordRangeStart, ring::kFlagDevice, 15, 1, 0);
  append(ring::kRecordRangeEnd, 0, 16, 1, 4243);
  drain_next();
  EXPECT_THAT(Brief(), ElementsAre("16 1 forward", "16 2 forward", "16 1 ", "16 1 ", "32 1 "));
  EXPECT_EQ(ParseMarkLine(Lines()[2])->process_id, 4243u);
  EXPECT_TRUE(ParseMarkLine(Lines()[3])->device);
}

TEST_F(SegmentDrainTest, DeviceLinesOfABatchThatCannotBeWrittenComeOnceItCan) {
  auto drain = NewDrain();
  Host(ring::kRecordRangeStart, 1, 1, "forward", ring::kKindForward);
  ASSERT_TRUE(FlushAll(*drain).ok());
  Device(ring::kRecordRangeStart, 2, 1);
  Device(ring::kRecordRangeEnd, 3, 1);
  Host(ring::kRecordRangeStart, 4, 2, "forward", ring::kKindForward);
  Device(ring::kRecordRangeStart, 5, 2);
  Device(ring::kRecordRangeEnd, 6, 2);
  std::signal(SIGXFSZ, SIG_IGN);
  rlimit old_limit;
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &old_limit), 0);
  rlimit limit = old_limit;
  limit.rlim_cur = 300;
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
  absl::Status full = FlushAll(*drain);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &old_limit), 0);
  EXPECT_FALSE(full.ok());
  ASSERT_TRUE(FlushAll(*drain).ok());
  EXPECT_THAT(Brief(), ElementsAre("16 1 forward", "16 1 ", "32 1 ", "16 2 forward", "16 2 ", "32 2 "));
}

// The host line of a batch that failed may be overwritten before the next proxy tries.
TEST_F(SegmentDrainTest, ADeviceLineNeverStandsWithoutItsHostLine) {
  auto drain = NewDrain();
  Start(kStartNs, 5, "x", ring::kKindOther);
  ASSERT_TRUE(FlushAll(*drain).ok());
  Host(ring::kRecordRangeStart, 1, 1, "forward", ring::kKindForward);
  std::signal(SIGXFSZ, SIG_IGN);
  rlimit old_limit;
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &old_limit), 0);
  rlimit limit = old_limit;
  limit.rlim_cur = 10;
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
  absl::Status full = FlushAll(*drain);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &old_limit), 0);
  EXPECT_FALSE(full.ok());
  for (uint64_t i = 0; i < 20'000; ++i) Host(ring::kRecordMark, 2, 100 + i, "m", ring::kKindOther, 0);
  drain = NewDrain();
  Device(ring::kRecordRangeStart, 3, 1);
  ASSERT_TRUE(FlushAll(*drain).ok());
  EXPECT_GT(drain->counters().lost, 0u);
  for (const std::string& line : Lines()) ASSERT_NE(ParseMarkLine(line)->id, 1u) << line;
}

TEST_F(SegmentDrainTest, ForgetsTheOldestOfTooManyRangesWithoutADevice) {
  auto drain = NewDrain();
  uint64_t id = 0;
  for (int batch = 0; batch < 20; ++batch) {
    for (int i = 0; i < 4000; ++i) Host(ring::kRecordMark, 1, ++id, "");
    ASSERT_TRUE(FlushAll(*drain).ok());
  }
  Device(ring::kRecordMark, 2, 1);
  Device(ring::kRecordMark, 2, id - 4000);
  Device(ring::kRecordMark, 2, id);
  ASSERT_TRUE(FlushAll(*drain).ok());
  EXPECT_EQ(Lines().size(), 80'002u);
}

// What a proxy that was killed at each point of a write leaves behind, and what its successor makes of it.
TEST_F(SegmentDrainTest, ASuccessorWritesEverythingOnce) {
  Start(kStartNs + 1, 1, "step 1", ring::kKindStep);
  End(kStartNs + 2, 1);
  {
    auto drain = NewDrain();
    ASSERT_TRUE(FlushAll(*drain).ok());
  }
  const std::vector<std::string> first = Lines();
  const std::string file = folder() + "/" + MarkFiles(folder()).at(0);
  const std::string before = ReadFile(file);
  const uint64_t consumed = fake_.slot(0).consumed;

  Start(kStartNs + 3, 2, "step 2", ring::kKindStep);
  {
    auto drain = NewDrain();
    ASSERT_TRUE(FlushAll(*drain).ok());
  }
  const std::string after = ReadFile(file);
  ASSERT_EQ(Lines().size(), 3u);

  // As if the kill had come between the note of the write and its end: the cursor is the old one, the note valid.
  for (size_t bytes_done : {size_t{0}, size_t{10}, after.size() - before.size()}) {
    fake_.slot(0).consumed = consumed;
    fake_.slot(0).sequence = 2;
    fake_.header().written[ring::kKindStep] = 1;
    fake_.header().intent.valid = 1;
    std::filesystem::resize_file(file, before.size());
    testing::WriteFile(file, after.substr(0, before.size() + bytes_done));
    auto drain = NewDrain();
    ASSERT_TRUE(FlushAll(*drain).ok());
    EXPECT_EQ(ReadFile(file), after) << bytes_done;
    EXPECT_EQ(fake_.header().intent.valid, 0u);
    EXPECT_EQ(drain->counters().lost, 0u);
    EXPECT_EQ(drain->counters().written[ring::kKindStep], 2u);
  }
  // And the range that was open at the kill still gets its end.
  End(kStartNs + 4, 2);
  auto drain = NewDrain();
  ASSERT_TRUE(FlushAll(*drain).ok());
  EXPECT_THAT(Brief(), ElementsAre("16 1 step 1", "32 1 ", "16 2 step 2", "32 2 "));
  EXPECT_EQ(drain->counters().step, 2);
}

TEST_F(SegmentDrainTest, GoesOnWhenThereIsRoomAgain) {
  auto drain = NewDrain();
  Start(kStartNs + 1, 1, "step 1", ring::kKindStep);
  ASSERT_TRUE(FlushAll(*drain).ok());
  const std::string before = Lines().at(0);

  // A full disk, as write(2) sees it: the file may not grow by a whole line.
  End(kStartNs + 2, 1);
  Start(kStartNs + 3, 2, "step 2", ring::kKindStep);
  std::signal(SIGXFSZ, SIG_IGN);
  rlimit old_limit;
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &old_limit), 0);
  rlimit limit = old_limit;
  limit.rlim_cur = before.size() + 20;
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
  absl::Status full = FlushAll(*drain);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &old_limit), 0);
  EXPECT_FALSE(full.ok());
  EXPECT_THAT(Lines(), ElementsAre(before));
  EXPECT_EQ(drain->counters().written[ring::kKindStep], 1u);

  ASSERT_TRUE(FlushAll(*drain).ok());
  EXPECT_THAT(Brief(), ElementsAre("16 1 step 1", "32 1 ", "16 2 step 2"));
  EXPECT_EQ(drain->counters().lost, 0u);
}

// Files cannot be written: as a full disk has it, for as long as an object lives.
class FullDisk {
 public:
  explicit FullDisk(rlim_t bytes) {
    std::signal(SIGXFSZ, SIG_IGN);
    EXPECT_EQ(getrlimit(RLIMIT_FSIZE, &old_), 0);
    rlimit limit = old_;
    limit.rlim_cur = bytes;
    EXPECT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
  }
  ~FullDisk() { EXPECT_EQ(setrlimit(RLIMIT_FSIZE, &old_), 0); }

 private:
  rlimit old_;
};

class BacklogTest : public SegmentDrainTest {
 protected:
  // Three times what a ring holds, while nothing can be written. Returns the id of the last mark.
  uint64_t Overflow(SegmentDrain& drain, size_t room_bytes) {
    FullDisk full(1);
    for (int i = 0; i < 40'000; ++i) {
      ++id_;
      fake_.Append(0, {ring::kRecordMark, kStartNs + id_, id_, "m", ring::kKindOther});
      if (i % 1000 != 0) continue;
      if (i % 10'000 == 0) {
        EXPECT_FALSE(FlushAll(drain).ok());
      }
      const size_t used = drain.backlog_bytes();
      drain.ReadAhead(room_bytes - std::min(room_bytes, used));
    }
    return id_;
  }
  std::vector<uint64_t> Ids() {
    std::vector<uint64_t> ids;
    for (const std::string& line : Lines()) ids.push_back(ParseMarkLine(line)->id);
    return ids;
  }
  uint64_t id_ = 0;
};

TEST_F(BacklogTest, NothingIsLostWhileFilesCannotBeWritten) {
  auto drain = NewDrain();
  for (int round = 0; round < 2; ++round) {
    const uint64_t last = Overflow(*drain, size_t{64} << 20);
    EXPECT_GT(drain->backlog_records(), 10'000u);
    EXPECT_FALSE(drain->drained());
    EXPECT_EQ(drain->lost(), 0u);
    ASSERT_TRUE(FlushAll(*drain).ok());
    std::vector<uint64_t> ids = Ids();
    ASSERT_EQ(ids.size(), last);
    for (uint64_t i = 0; i < last; ++i) ASSERT_EQ(ids[i], i + 1);
    EXPECT_EQ(drain->counters().written[ring::kKindOther], last);
    EXPECT_EQ(drain->counters().lost, 0u);
    EXPECT_EQ(drain->backlog_bytes(), 0u);
    EXPECT_TRUE(drain->drained());
  }
}

TEST_F(BacklogTest, HasALimitAndCountsWhatIsBeyond) {
  auto drain = NewDrain();
  const size_t room = size_t{5} << 20;  // one batch
  const uint64_t last = Overflow(*drain, room);
  EXPECT_LE(drain->backlog_bytes(), room + (size_t{4} << 20));
  ASSERT_TRUE(FlushAll(*drain).ok());
  EXPECT_GT(drain->counters().lost, 0u);
  EXPECT_EQ(Ids().size() + drain->counters().lost, last);
  EXPECT_EQ(Ids().back(), last);
}

// What a killed proxy had read ahead is in no file: the next one finds it in the ring, or counts it.
TEST_F(BacklogTest, ASuccessorWritesWhatTheRingsHoldAndCountsTheRest) {
  auto drain = NewDrain();
  for (int i = 0; i < 100; ++i) fake_.Append(0, {ring::kRecordMark, kStartNs + i + 1, ++id_, "m", ring::kKindOther});
  ASSERT_TRUE(FlushAll(*drain).ok());
  const uint64_t last = Overflow(*drain, size_t{64} << 20);
  drain = NewDrain();
  ASSERT_TRUE(FlushAll(*drain).ok());
  std::vector<uint64_t> ids = Ids();
  EXPECT_GT(drain->counters().lost, 0u);
  EXPECT_EQ(ids.size() + drain->counters().lost, last);
  EXPECT_EQ(std::set<uint64_t>(ids.begin(), ids.end()).size(), ids.size()) << "written twice";
  EXPECT_EQ(ids.back(), last);
}

TEST_F(BacklogTest, LeavesInTheRingWhatItHasRoomFor) {
  auto drain = NewDrain();
  FullDisk full(1);
  for (int i = 0; i < 5000; ++i) fake_.Append(0, {ring::kRecordMark, kStartNs + i + 1, ++id_, "m", ring::kKindOther});
  drain->ReadAhead(size_t{64} << 20);
  EXPECT_EQ(drain->backlog_records(), 0u);
}

TEST_F(BacklogTest, PeekingShowsStepsAndChangesNothing) {
  auto drain = NewDrain();
  const uint64_t before = drain->recorded();
  EXPECT_EQ(drain->Peek().begun_step, -1);
  {
    FullDisk full(1);
    for (uint64_t step = 0; step < 8; ++step) {
      Start(kStartNs + 10 * step + 1, 100 + step, "step " + std::to_string(step), ring::kKindStep, 0, ring_);
      EXPECT_FALSE(FlushAll(*drain).ok());
      EXPECT_EQ(drain->Peek().begun_step, static_cast<int64_t>(step));
      EXPECT_EQ(drain->Peek().begun_step, static_cast<int64_t>(step));
      End(kStartNs + 10 * step + 9, 100 + step, ring_);
      EXPECT_EQ(drain->counters().step, -1) << "not written";
    }
  }
  EXPECT_GT(drain->recorded(), before);
  drain->StopPeeking();
  ASSERT_TRUE(FlushAll(*drain).ok());
  ASSERT_TRUE(FlushAll(*drain).ok());
  EXPECT_EQ(Lines().size(), 16u);
  EXPECT_EQ(drain->counters().step, 7);
  EXPECT_EQ(drain->counters().lost, 0u);
}

TEST_F(BacklogTest, TheEndOfTheStepLoopHoldsUntilAStepBegins) {
  auto drain = NewDrain();
  Start(kStartNs + 1, 1, "step 0", ring::kKindStep, 0, ring_);
  ASSERT_TRUE(FlushAll(*drain).ok());
  EXPECT_FALSE(drain->counters().left_loop);
  fake_.Append(ring_, {ring::kRecordMark, kStartNs + 2, 2, "steps are over", ring::kKindOther});
  ASSERT_TRUE(FlushAll(*drain).ok());
  EXPECT_TRUE(drain->counters().left_loop);
  Start(kStartNs + 3, 3, "step 1", ring::kKindStep, 0, ring_);
  ASSERT_TRUE(FlushAll(*drain).ok());
  EXPECT_FALSE(drain->counters().left_loop);
}

TEST_F(BacklogTest, TheEndOfTheStepLoopIsSeenWhereFilesAreFull) {
  auto drain = NewDrain();
  Start(kStartNs + 1, 1, "step 0", ring::kKindStep, 0, ring_);
  fake_.Append(ring_, {ring::kRecordMark, kStartNs + 2, 2, "steps are over", ring::kKindOther});
  FullDisk full(1);
  EXPECT_TRUE(drain->Peek().left_loop);
  EXPECT_FALSE(FlushAll(*drain).ok());
  EXPECT_TRUE(drain->Peek().left_loop);
  Start(kStartNs + 3, 3, "step 1", ring::kKindStep, 0, ring_);
  EXPECT_FALSE(drain->Peek().left_loop);
}

TEST_F(BacklogTest, ReadsNothingBeforeAnInterruptedWriteIsSettled) {
  for (int i = 0; i < 100; ++i) fake_.Append(0, {ring::kRecordMark, kStartNs + i + 1, ++id_, "m", ring::kKindOther});
  ASSERT_TRUE(FlushAll(*NewDrain()).ok());
  fake_.header().intent.valid = 1;
  auto drain = NewDrain();
  for (int i = 0; i < 20'000; ++i)
    fake_.Append(0, {ring::kRecordMark, kStartNs + id_ + 1, ++id_, "m", ring::kKindOther});
  drain->ReadAhead(size_t{64} << 20);
  EXPECT_EQ(drain->backlog_records(), 0u);
  ASSERT_TRUE(FlushAll(*drain).ok());
  EXPECT_EQ(Ids().size() + drain->counters().lost, id_);
}

TEST_F(BacklogTest, AnEndStampedBeforeItsStartComesAfterItOutOfTheBacklog) {
  const int other = fake_.AddRing();
  auto drain = NewDrain();
  End(kStartNs + 10, 1, ring_);
  Start(kStartNs + 13, 1, "forward", ring::kKindForward, 0, other);
  for (uint64_t i = 0; i < 10'000; ++i) {
    fake_.Append(ring_, {ring::kRecordMark, kStartNs + 20 + i, 100 + i, "m", ring::kKindOther});
  }
  drain->ReadAhead(size_t{64} << 20);
  EXPECT_GT(drain->backlog_records(), 10'000u);
  ASSERT_TRUE(FlushAll(*drain).ok());
  EXPECT_EQ(Lines().size(), 10'002u);
  EXPECT_EQ(Brief()[0], "16 1 forward");
  EXPECT_EQ(Brief()[1], "32 1 ");
  EXPECT_EQ(ParseMarkLine(Lines()[1])->timestamp_ns, FakeSegment::kRealtimeStartNs + 13);
}

// Ends and starts that are apart by almost as much as they may be, read at many moments between the two: ahead, while
// nothing can be written, into the files, and by a proxy that takes over from a killed one, in turns.
class SplitRangesTest : public BacklogTest, public ::testing::WithParamInterface<bool> {};

TEST_P(SplitRangesTest, ComeOnceWithTheirEndsBehindTheirStarts) {
  const bool kills = GetParam();
  const int other = fake_.AddRing();
  const int full = fake_.AddRing();
  const uint64_t begin = ReadMonotonicNs() + 10'000'000;
  constexpr uint64_t kRanges = 1000;
  constexpr uint64_t kApartNs = 100'000;
  const uint64_t end = begin + kRanges * kApartNs;
  for (uint64_t i = 0; i < kRanges; ++i) {
    End(begin + i * kApartNs, i + 1, ring_);
    Start(begin + i * kApartNs + kMaxEarlyNs - 1000, i + 1, "x", ring::kKindOther, 0, other);
  }
  // A ring that is more than half full until the end: reason to read ahead.
  constexpr uint64_t kFill = 9000;
  for (uint64_t i = 0; i < kFill; ++i) {
    fake_.Append(full, {ring::kRecordMark, end, kRanges + 1 + i, "m", ring::kKindOther});
  }
  auto drain = NewDrain();
  size_t most_ahead = 0;
  for (int turn = 0; ReadMonotonicNs() < end; ++turn) {
    drain->ReadAhead(size_t{64} << 20);
    most_ahead = std::max(most_ahead, drain->backlog_records());
    if (turn % 16 == 7) {
      FullDisk full_disk(1);
      drain->Flush(ReadMonotonicNs(), true, false).IgnoreError();
    }
    if (turn % 16 == 15) {
      if (kills && turn % 64 == 63) drain = NewDrain();
      ASSERT_TRUE(drain->Flush(ReadMonotonicNs(), true, false).ok());
    }
  }
  drain->ReadAhead(size_t{64} << 20);  // a machine that stood still meanwhile has not done so once
  EXPECT_GT(std::max(most_ahead, drain->backlog_records()), 1u);
  ASSERT_TRUE(FlushAll(*drain).ok());
  EXPECT_EQ(drain->lost(), 0u);
  EXPECT_EQ(Lines().size(), 2 * kRanges + kFill);
  std::set<uint64_t> started, ended;
  for (const std::string& line : Lines()) {
    const auto mark = ParseMarkLine(line);
    if (mark->flag == kMarkStart) {
      EXPECT_TRUE(started.insert(mark->id).second) << "twice: " << line;
    }
    if (mark->flag != kMarkEnd) continue;
    EXPECT_TRUE(started.contains(mark->id)) << "before its start: " << line;
    EXPECT_TRUE(ended.insert(mark->id).second) << "twice: " << line;
  }
  EXPECT_EQ(ended.size(), kRanges);
}

INSTANTIATE_TEST_SUITE_P(, SplitRangesTest, ::testing::Bool(),
                         [](const auto& kills) { return kills.param ? "Kills" : "OneProxy"; });

// Times come from the counter at the mark, whatever CLOCK_REALTIME does later; and follow CLOCK_MONOTONIC.
TEST_F(SegmentDrainTest, ConvertsTheCounterWithTheClockItRanWith) {
  TickAnchor start = ReadAnchor();
  FakeSegment fake(1, ring::kClockCounter);
  fake.header().start_ticks = start.ticks;
  fake.header().start_monotonic_ns = start.monotonic_ns;
  fake.header().undecided_keep = ring::kGateAllKinds | ring::kGateUndecided;
  fake.AddRing();
  uint64_t low_ns = ReadMonotonicNs();
  fake.Append(0, {ring::kRecordMark, ReadCounter(), 1, "now", ring::kKindOther});
  uint64_t high_ns = ReadMonotonicNs();
  while (ReadMonotonicNs() < high_ns + 20'000'000) {
  }
  SegmentDrain drain(*RingSegment::Open(fake.Fd()), files_);
  ASSERT_TRUE(FlushAll(drain).ok());
  int64_t offset = static_cast<int64_t>(FakeSegment::kRealtimeStartNs - start.monotonic_ns);
  auto written = static_cast<int64_t>(ParseMarkLine(Lines().at(0))->timestamp_ns) - offset;
  EXPECT_GE(written, static_cast<int64_t>(low_ns) - 10'000);
  EXPECT_LE(written, static_cast<int64_t>(high_ns) + 10'000);
}

TEST_F(SegmentDrainTest, ForgetsTheOldestOfTooManyOpenRanges) {
  auto drain = NewDrain();
  uint64_t id = 0;
  for (int batch = 0; batch < 20; ++batch) {
    for (int i = 0; i < 4000; ++i) Start(kStartNs + 1, ++id, "", ring::kKindOther);
    ASSERT_TRUE(FlushAll(*drain).ok());
  }
  const size_t lines = Lines().size();
  EXPECT_EQ(lines, 80'000u);
  End(kStartNs + 2, 1);
  End(kStartNs + 2, id);
  ASSERT_TRUE(FlushAll(*drain).ok());
  EXPECT_EQ(Lines().size(), lines + 1);
}

// What the manager gets comes from the same records as the files, each once.
TEST_F(SegmentDrainTest, FoldsWhatItHasWritten) {
  auto fold = std::make_shared<RankFold>(dir_, 3);
  auto drain = NewDrain(fold);
  auto op = [&](uint64_t start_ns, uint64_t end_ns, uint64_t id) {
    fake_.Append(0, {ring::kRecordRangeStart, kStartNs + start_ns, id,
                     R"({\"count\": \"4\",\"dataType\": \"fp32\",\"groupName\": \"g\",\"opName\": \"HcclAllreduce\"})",
                     ring::kKindCommunication, ring::kFlagStream, ring::kDomainCommunication});
    End(kStartNs + end_ns, id);
  };
  Start(kStartNs + 100, 1, "step 7", ring::kKindStep);
  op(110, 120, 2);
  ASSERT_TRUE(FlushAll(*drain).ok());
  EXPECT_THAT(fold->TakeFinished(), IsEmpty());
  op(130, 150, 3);
  End(kStartNs + 200, 1);
  // A batch that cannot be written is not folded, until it is written.
  std::signal(SIGXFSZ, SIG_IGN);
  rlimit old_limit;
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &old_limit), 0);
  rlimit limit = old_limit;
  limit.rlim_cur = 1;
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
  absl::Status full = FlushAll(*drain);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &old_limit), 0);
  EXPECT_FALSE(full.ok());
  EXPECT_THAT(fold->TakeFinished(), IsEmpty());
  ASSERT_TRUE(FlushAll(*drain).ok());
  ASSERT_TRUE(FlushAll(*drain).ok());
  std::vector<StepFold> steps = fold->TakeFinished();
  ASSERT_EQ(steps.size(), 1u);
  EXPECT_EQ(steps[0].step, 7);
  EXPECT_EQ(steps[0].process_id, 4242u);
  EXPECT_EQ(steps[0].start_ns, FakeSegment::kRealtimeStartNs + 100);
  EXPECT_EQ(steps[0].end_ns, FakeSegment::kRealtimeStartNs + 200);
  EXPECT_EQ(steps[0].covered_ns, 30u);
  EXPECT_EQ(steps[0].head_ns, 10u);
  ASSERT_EQ(steps[0].ops.size(), 1u);
  EXPECT_EQ(steps[0].ops[0].count, 2u);
  EXPECT_EQ(steps[0].ops[0].bytes, 32u);
  EXPECT_EQ(steps[0].ops[0].gap_ns, 10u);
  EXPECT_EQ(fold->marks().groups()[0].name, "g");

  // A proxy that takes over begins with the next step: it has not seen the begin of the present one.
  Start(kStartNs + 210, 4, "step 8", ring::kKindStep);
  ASSERT_TRUE(FlushAll(*drain).ok());
  auto next_fold = std::make_shared<RankFold>(dir_, 3);
  drain = NewDrain(next_fold);
  op(220, 230, 5);
  End(kStartNs + 300, 4);
  Start(kStartNs + 310, 6, "step 9", ring::kKindStep);
  End(kStartNs + 400, 6);
  ASSERT_TRUE(FlushAll(*drain).ok());
  steps = next_fold->TakeFinished();
  ASSERT_EQ(steps.size(), 1u);
  EXPECT_EQ(steps[0].step, 9);
  EXPECT_EQ(steps[0].previous_end_ns, 0u);
  EXPECT_EQ(steps[0].broken, 0u);
}

class NoFolderTest : public SegmentDrainTest {
 protected:
  NoFolderTest() : none_(ProfilingDir::WithoutMarkFiles(temp_ / "proxy.sock")) {
    files_ = std::make_shared<RankFiles>(none_, 3);
  }
  std::vector<int64_t> Steps(RankFold& fold) {
    std::vector<int64_t> steps;
    for (const StepFold& step : fold.TakeFinished()) steps.push_back(step.step);
    return steps;
  }

  ProfilingDir none_;
};

TEST_F(NoFolderTest, CountsAndFoldsAndWritesNothing) {
  auto fold = std::make_shared<RankFold>(none_, 3);
  auto drain = NewDrain(fold);
  for (uint64_t step = 0; step < 3; ++step) {
    Start(kStartNs + 100 * step, step + 1, "step " + std::to_string(step), ring::kKindStep);
    End(kStartNs + 100 * step + 90, step + 1);
  }
  ASSERT_TRUE(FlushAll(*drain).ok());
  EXPECT_TRUE(drain->drained());
  EXPECT_THAT(Steps(*fold), ElementsAre(0, 1, 2));
  const SegmentDrain::Counters counters = drain->counters();
  EXPECT_EQ(counters.written[ring::kKindStep], 3u);
  EXPECT_EQ(counters.step, 2);
  EXPECT_EQ(counters.bytes, 0u) << "of files";
  EXPECT_EQ(counters.lost, 0u);
  EXPECT_EQ(fake_.header().intent.valid, 0u);
  EXPECT_TRUE(std::filesystem::is_empty(temp_.path()));

  // The next proxy goes on where this one was.
  fold = std::make_shared<RankFold>(none_, 3);
  drain = NewDrain(fold);
  Start(kStartNs + 400, 9, "step 3", ring::kKindStep);
  End(kStartNs + 490, 9);
  ASSERT_TRUE(FlushAll(*drain).ok());
  EXPECT_THAT(Steps(*fold), ElementsAre(3));
  EXPECT_EQ(drain->counters().written[ring::kKindStep], 4u);
}

TEST_F(NoFolderTest, TheNextProxyFoldsNothingTwiceWhereverTheLastOneWasKilled) {
  Start(kStartNs + 100, 1, "step 0", ring::kKindStep);
  End(kStartNs + 190, 1);
  ASSERT_TRUE(FlushAll(*NewDrain()).ok());
  // Killed when the note was made and the cursors were not committed.
  ring::ThreadSlot& slot = fake_.slot(ring_);
  const uint64_t consumed = slot.consumed;
  const uint64_t sequence = slot.sequence;
  slot.consumed_next = consumed;
  slot.sequence_next = sequence;
  slot.consumed = 0;
  slot.sequence = 0;
  fake_.header().intent.file = kNoMarkFile;
  fake_.header().intent.valid = 1;
  auto fold = std::make_shared<RankFold>(none_, 3);
  auto drain = NewDrain(fold);
  Start(kStartNs + 200, 2, "step 1", ring::kKindStep);
  End(kStartNs + 290, 2);
  ASSERT_TRUE(FlushAll(*drain).ok());
  EXPECT_THAT(Steps(*fold), ElementsAre(1));
  EXPECT_EQ(drain->counters().lost, 0u);
}

TEST_F(NoFolderTest, AFolderThatIsThereAgainGetsWhatFollows) {
  Start(kStartNs + 100, 1, "step 0", ring::kKindStep);
  ASSERT_TRUE(FlushAll(*NewDrain()).ok());
  files_ = std::make_shared<RankFiles>(dir_, 3);
  auto drain = NewDrain();
  End(kStartNs + 190, 1);  // of a range that is in no file
  Start(kStartNs + 200, 2, "step 1", ring::kKindStep);
  End(kStartNs + 290, 2);
  ASSERT_TRUE(FlushAll(*drain).ok());
  EXPECT_THAT(Brief(), ElementsAre("16 2 step 1", "32 2 "));

  // And the other way round, with a write under way that cannot be looked at any more.
  fake_.header().intent.file = 1'600'000'000;
  fake_.header().intent.valid = 1;
  files_ = std::make_shared<RankFiles>(none_, 3);
  auto fold = std::make_shared<RankFold>(none_, 3);
  drain = NewDrain(fold);
  Start(kStartNs + 300, 3, "step 2", ring::kKindStep);
  End(kStartNs + 390, 3);
  ASSERT_TRUE(FlushAll(*drain).ok());
  EXPECT_THAT(Steps(*fold), ElementsAre(2));
}

TEST_F(SegmentDrainTest, TellsTheFoldOfLostMarks) {
  auto fold = std::make_shared<RankFold>(dir_, 3);
  fake_.header().dropped = 3;  // before this proxy came
  auto drain = NewDrain(fold);
  Start(kStartNs + 100, 1, "step 7", ring::kKindStep);
  ASSERT_TRUE(FlushAll(*drain).ok());
  fake_.header().dropped = 8;
  End(kStartNs + 200, 1);
  ASSERT_TRUE(FlushAll(*drain).ok());
  std::vector<StepFold> steps = fold->TakeFinished();
  ASSERT_EQ(steps.size(), 1u);
  EXPECT_EQ(steps[0].broken, 5u);
}

}  // namespace
}  // namespace taskd::proxy
