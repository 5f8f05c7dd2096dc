#include "proxy/ring_segment.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <string>
#include <thread>

#include "common/testing/deadline.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proxy/testing/fake_segment.h"

namespace taskd::proxy {
namespace {

using ::testing::ElementsAre;
using testing::FakeSegment;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::unique_ptr<RingSegment> OpenSegment(const FakeSegment& fake) {
  auto opened = RingSegment::Open(fake.Fd());
  EXPECT_TRUE(opened.ok()) << opened.status();
  return *std::move(opened);
}

std::vector<std::string> Names(const RingBatch& batch) {
  std::vector<std::string> names;
  for (const RingRecord& record : batch.records) names.emplace_back(batch.Name(record));
  return names;
}

// Reads and commits what there is.
std::vector<std::string> Drain(RingSegment& segment, uint64_t cut = UINT64_MAX) {
  RingBatch batch;
  segment.Read(cut, 1 << 20, batch);
  segment.StageCursors(batch);
  segment.CommitCursors(batch);
  return Names(batch);
}

TEST(RingSegment, ReadsRecordsInTheOrderOfTime) {
  FakeSegment fake;
  int a = fake.AddRing();
  int b = fake.AddRing();
  fake.Append(a, {.ticks = 10, .name = "first"});
  fake.Append(a, {.ticks = 30, .name = "third"});
  fake.Append(b, {.ticks = 20, .name = "second, which is longer than a word"});
  auto segment = OpenSegment(fake);
  EXPECT_GT(segment->Pending(), 0u);
  EXPECT_THAT(Drain(*segment), ElementsAre("first", "second, which is longer than a word", "third"));
  EXPECT_EQ(segment->Pending(), 0u);
  EXPECT_EQ(segment->lost(), 0u);
}

// Both forms in one ring, with names whose padding is 0 and 7 bytes and none.
TEST(RingSegment, ReadsTheTrailerOfASourcesRecords) {
  FakeSegment fake;
  int a = fake.AddRing();
  fake.Append(a, {.ticks = 10, .id = 5, .name = "12345678", .flags = ring::kFlagStream});
  fake.Append(a, {.type = ring::kRecordRangeStart,
                  .ticks = 11,
                  .id = 6,
                  .name = "123456789",
                  .kind = ring::kKindStep,
                  .flags = ring::kFlagSource | ring::kFlagStream,
                  .timestamp_ns = 1'700'000'000'000'000'001,
                  .process_id = 0xfffffffe,
                  .thread_id = 0xffffffff});
  fake.Append(a, {.type = ring::kRecordRangeEnd,
                  .ticks = 12,
                  .id = 6,
                  .flags = ring::kFlagSource | ring::kFlagDevice,
                  .timestamp_ns = 7,
                  .process_id = 1,
                  .thread_id = 2});
  fake.Append(a, {.ticks = 13, .id = 7, .name = std::string(ring::kMaxNameBytes, 'n'), .flags = ring::kFlagSource});
  auto segment = OpenSegment(fake);
  RingBatch batch;
  segment->Read(UINT64_MAX, 1 << 20, batch);
  ASSERT_EQ(segment->fault(), "");
  EXPECT_THAT(Names(batch), ElementsAre("12345678", "123456789", "", std::string(ring::kMaxNameBytes, 'n')));
  EXPECT_EQ(batch.records[0].timestamp_ns, 0u);
  EXPECT_EQ(batch.records[0].tid, 77u);
  EXPECT_EQ(batch.records[1].id, 6u);
  EXPECT_EQ(batch.records[1].kind, ring::kKindStep);
  EXPECT_EQ(batch.records[1].flags, ring::kFlagSource | ring::kFlagStream);
  EXPECT_EQ(batch.records[1].timestamp_ns, 1'700'000'000'000'000'001u);
  EXPECT_EQ(batch.records[1].process_id, 0xfffffffeu);
  EXPECT_EQ(batch.records[1].thread_id, 0xffffffffu);
  EXPECT_EQ(batch.records[2].timestamp_ns, 7u);
  EXPECT_EQ(batch.records[2].process_id, 1u);
  EXPECT_EQ(batch.records[2].thread_id, 2u);
}

TEST(RingSegment, StopsAtTheCutAndGoesOnThere) {
  FakeSegment fake;
  int a = fake.AddRing();
  fake.Append(a, {.ticks = 10, .name = "before"});
  fake.Append(a, {.ticks = 20, .name = "at"});
  fake.Append(a, {.ticks = 21, .name = "after"});
  auto segment = OpenSegment(fake);
  EXPECT_THAT(Drain(*segment, 20), ElementsAre("before", "at"));
  EXPECT_THAT(Drain(*segment, 21), ElementsAre("after"));
}

TEST(RingSegment, WhatWasUnreadIsReadAgain) {
  FakeSegment fake;
  int a = fake.AddRing();
  fake.Append(a, {.ticks = 10, .name = "first"});
  auto segment = OpenSegment(fake);
  EXPECT_THAT(Drain(*segment), ElementsAre("first"));
  fake.Append(a, {.ticks = 20, .name = "second"});
  fake.Append(fake.AddRing(), {.ticks = 21, .name = "third"});
  RingBatch batch;
  segment->Read(UINT64_MAX, 1 << 20, batch);
  segment->Unread();
  EXPECT_THAT(Drain(*segment, 20), ElementsAre("second"));
  EXPECT_THAT(Drain(*segment), ElementsAre("third"));
  EXPECT_EQ(segment->lost(), 0u);
}

TEST(RingSegment, CursorsThatWereNotCommittedDoNotCount) {
  FakeSegment fake;
  int a = fake.AddRing();
  fake.Append(a, {.ticks = 10, .name = "x"});
  auto segment = OpenSegment(fake);
  RingBatch batch;
  segment->Read(UINT64_MAX, 1 << 20, batch);
  segment->StageCursors(batch);
  EXPECT_THAT(Drain(*segment), IsEmpty()) << "a reader does not read twice";
  segment = OpenSegment(fake);
  EXPECT_THAT(Drain(*segment), ElementsAre("x"));
  EXPECT_THAT(Drain(*segment), IsEmpty());
}

// A reader may be ahead of what is committed: what its successor finds is what the rings still hold, and the rest is
// counted.
TEST(RingSegment, BatchesAreCommittedLaterThanRead) {
  FakeSegment fake;
  int a = fake.AddRing();
  fake.Append(a, {.ticks = 10, .name = "one"});
  auto segment = OpenSegment(fake);
  RingBatch one;
  RingBatch two;
  segment->Read(UINT64_MAX, 1 << 20, one);
  int b = fake.AddRing();
  fake.Append(b, {.ticks = 11, .name = "two"});
  segment->Read(UINT64_MAX, 1 << 20, two);
  EXPECT_THAT(Names(one), ElementsAre("one"));
  EXPECT_THAT(Names(two), ElementsAre("two"));
  EXPECT_EQ(segment->Pending(), 0u);
  segment->StageCursors(one);
  segment->CommitCursors(one);
  EXPECT_THAT(Drain(*OpenSegment(fake)), ElementsAre("two"));
  segment->StageCursors(two);
  segment->CommitCursors(two);
  EXPECT_THAT(Drain(*OpenSegment(fake)), IsEmpty());
  const int total = 30'000;
  for (int i = 0; i < total; ++i) {
    fake.Append(a, {.ticks = uint64_t(i + 20), .id = uint64_t(i + 1), .name = "n"});
    if (i % 1000 == 0) segment->Read(UINT64_MAX, 1 << 20, one);
  }
  EXPECT_EQ(segment->lost(), 0u);
  auto next = OpenSegment(fake);
  const uint64_t found = Drain(*next).size();
  EXPECT_GT(next->lost(), 0u);
  EXPECT_EQ(found + next->lost(), uint64_t(total));
}

TEST(RingSegment, ASuccessorMayCommitWhatWasStaged) {
  FakeSegment fake;
  int a = fake.AddRing();
  fake.Append(a, {.ticks = 10, .name = "written"});
  RingBatch batch;
  auto segment = OpenSegment(fake);
  segment->Read(UINT64_MAX, 1 << 20, batch);
  segment->StageCursors(batch);
  fake.Append(a, {.ticks = 11, .name = "new"});
  auto next = OpenSegment(fake);
  next->CommitStagedCursors();
  EXPECT_THAT(Drain(*next), ElementsAre("new"));
}

TEST(RingSegment, ANewReaderGoesOnAtTheCommittedCursor) {
  FakeSegment fake;
  int a = fake.AddRing();
  fake.Append(a, {.ticks = 10, .name = "old"});
  EXPECT_THAT(Drain(*OpenSegment(fake)), ElementsAre("old"));
  fake.Append(a, {.ticks = 11, .name = "new"});
  EXPECT_THAT(Drain(*OpenSegment(fake)), ElementsAre("new"));
}

TEST(RingSegment, CountsWhatWasOverwritten) {
  FakeSegment fake;
  int a = fake.AddRing();
  const int total = 30'000;  // 40 bytes each: more than twice the ring
  for (int i = 0; i < total; ++i) fake.Append(a, {.ticks = uint64_t(i + 1), .id = uint64_t(i + 1), .name = "n"});
  auto segment = OpenSegment(fake);
  RingBatch batch;
  uint64_t read = 0;
  uint64_t last = 0;
  do {
    segment->Read(UINT64_MAX, 64 * 1024, batch);
    for (const RingRecord& record : batch.records) {
      EXPECT_GT(record.ticks, last);
      last = record.ticks;
    }
    read += batch.records.size();
    segment->StageCursors(batch);
    segment->CommitCursors(batch);
  } while (batch.more);
  EXPECT_EQ(last, uint64_t(total));
  EXPECT_GT(segment->lost(), 0u);
  EXPECT_EQ(read + segment->lost(), uint64_t(total));
}

TEST(RingSegment, OverwrittenUndecidedRecordsCountOnlyIfWanted) {
  for (bool wanted : {false, true}) {
    FakeSegment fake;
    int a = fake.AddRing();
    for (int i = 0; i < 30'000; ++i) {
      fake.Append(a, {.ticks = uint64_t(i + 1), .name = "n", .flags = ring::kFlagUndecided});
    }
    auto segment = OpenSegment(fake);
    segment->set_count_undecided(wanted);
    Drain(*segment);
    EXPECT_EQ(segment->lost() > 0, wanted);
  }
}

TEST(RingSegment, AByteLimitNeverTurnsTimeBack) {
  FakeSegment fake;
  int a = fake.AddRing();
  int b = fake.AddRing();
  for (int i = 0; i < 6000; ++i) fake.Append(a, {.ticks = uint64_t(2 * i + 1), .name = "a"});
  for (int i = 0; i < 100; ++i) fake.Append(b, {.ticks = uint64_t(100 * i + 2), .name = "b"});
  auto segment = OpenSegment(fake);
  RingBatch batch;
  uint64_t last = 0;
  size_t total = 0;
  do {
    segment->Read(UINT64_MAX, 64 * 1024, batch);
    for (const RingRecord& record : batch.records) {
      EXPECT_GE(record.ticks, last);
      last = record.ticks;
    }
    total += batch.records.size();
    segment->StageCursors(batch);
    segment->CommitCursors(batch);
  } while (batch.more);
  EXPECT_EQ(total, 6100u);
}

TEST(RingSegment, AWriterThatOvertakesTheReaderCostsOnlyCountedRecords) {
  FakeSegment fake;
  int a = fake.AddRing();
  auto segment = OpenSegment(fake);
  constexpr int kTotal = 400'000;
  std::thread writer([&] {
    for (int i = 1; i <= kTotal; ++i)
      fake.Append(a, {.ticks = uint64_t(i), .id = uint64_t(i), .name = std::to_string(i)});
  });
  uint64_t read = 0;
  uint64_t last = 0;
  while (last != kTotal) {
    RingBatch batch;
    segment->Read(UINT64_MAX, 1 << 20, batch);
    ASSERT_FALSE(segment->faulted()) << segment->fault();
    for (const RingRecord& record : batch.records) {
      ASSERT_EQ(batch.Name(record), std::to_string(record.id));
      ASSERT_GT(record.ticks, last);
      last = record.ticks;
    }
    read += batch.records.size();
    segment->StageCursors(batch);
    segment->CommitCursors(batch);
  }
  writer.join();
  EXPECT_EQ(read + segment->lost(), uint64_t(kTotal));
}

TEST(RingSegment, RefusesWhatIsNoSegment) {
  UniqueFd empty(memfd_create("empty", MFD_CLOEXEC));
  EXPECT_TRUE(absl::IsInvalidArgument(RingSegment::Open(std::move(empty)).status()));
  FakeSegment fake;
  fake.header().version = ring::kVersion + 1;
  auto other_version = RingSegment::Open(fake.Fd());
  EXPECT_TRUE(absl::IsFailedPrecondition(other_version.status()));
  EXPECT_THAT(std::string(other_version.status().message()), HasSubstr("version 2"));
}

// Each entry breaks one rule of ring.h; the reader must say so and read nothing more.
struct HostileCase {
  const char* name;
  void (*damage)(FakeSegment&);
};

class HostileSegment : public ::testing::TestWithParam<HostileCase> {};

TEST_P(HostileSegment, IsFaulted) {
  FakeSegment fake;
  int a = fake.AddRing();
  fake.Append(a, {.ticks = 1, .name = "fine"});
  GetParam().damage(fake);
  auto segment = OpenSegment(fake);
  segment->Pending();
  EXPECT_THAT(Drain(*segment), IsEmpty());
  EXPECT_TRUE(segment->faulted());
  EXPECT_NE(segment->fault(), "");
  segment->SetGate(0);
  EXPECT_EQ(segment->Pending(), 0u);
}

INSTANTIATE_TEST_SUITE_P(
    Rules, HostileSegment,
    ::testing::Values(
        HostileCase{"TooManyRings", [](FakeSegment& f) { f.header().slots = 1 << 30; }},
        HostileCase{"RingOutside", [](FakeSegment& f) { f.slot(0).data_offset = 1ull << 40; }},
        HostileCase{"RingWraps", [](FakeSegment& f) { f.slot(0).data_offset = UINT64_MAX - 4095; }},
        HostileCase{"RingOverHeader", [](FakeSegment& f) { f.slot(0).data_offset = 0; }},
        HostileCase{"RingUnaligned", [](FakeSegment& f) { f.slot(0).data_offset += 8; }},
        HostileCase{"RingSize", [](FakeSegment& f) { f.slot(0).data_bytes = 12345; }},
        HostileCase{"HeadBehindCursor", [](FakeSegment& f) { f.slot(0).consumed = 4096; }},
        HostileCase{"OddCursor", [](FakeSegment& f) { f.slot(0).consumed = 3; }},
        HostileCase{"OddHead", [](FakeSegment& f) { f.slot(0).head = 41; }},
        HostileCase{"HeadBeyondReserved", [](FakeSegment& f) { f.slot(0).head = 1ull << 50; }},
        HostileCase{"ReservedUnaligned", [](FakeSegment& f) { f.slot(0).reserved = 100'000; }},
        HostileCase{"RecordOfNoBytes",
                    [](FakeSegment& f) { f.Store(0, 0, ring::PackWord0(0, ring::kRecordMark, 0, 1)); }},
        HostileCase{"RecordOddBytes",
                    [](FakeSegment& f) { f.Store(0, 0, ring::PackWord0(41, ring::kRecordMark, 0, 1)); }},
        HostileCase{"RecordTooLong",
                    [](FakeSegment& f) {
                      f.slot(0).head = 4096;
                      f.Store(0, 0, ring::PackWord0(4096, ring::kRecordMark, 0, 1));
                    }},
        HostileCase{"RecordTooShort",
                    [](FakeSegment& f) { f.Store(0, 0, ring::PackWord0(8, ring::kRecordMark, 0, 1)); }},
        HostileCase{"UnknownType",
                    [](FakeSegment& f) { f.Store(0, 0, ring::PackWord0(40, static_cast<ring::RecordType>(9), 0, 1)); }},
        HostileCase{"PadInsideBlock",
                    [](FakeSegment& f) { f.Store(0, 0, ring::PackWord0(40, ring::kRecordPad, 0, 0)); }},
        HostileCase{"NameBeyondRecord", [](FakeSegment& f) { f.Store(0, 24, ring::PackWord3(0, 200, 0, 0)); }},
        HostileCase{"UnknownDomain", [](FakeSegment& f) { f.Store(0, 24, ring::PackWord3(0, 4, 99, 0)); }},
        HostileCase{"UnknownKind", [](FakeSegment& f) { f.Store(0, 24, ring::PackWord3(0, 4, 0, 17)); }},
        // 40 bytes hold a name of 4 or a trailer, not both.
        HostileCase{
            "NoTrailer",
            [](FakeSegment& f) { f.Store(0, 0, ring::PackWord0(40, ring::kRecordMark, ring::kFlagSource, 1)); }},
        HostileCase{"TrailerWithoutAName",
                    [](FakeSegment& f) {
                      f.Store(0, 0, ring::PackWord0(40, ring::kRecordMark, ring::kFlagSource, 1));
                      f.Store(0, 24, ring::PackWord3(0, 0, 0, 0));
                    }},
        HostileCase{
            "DeviceWithoutSource",
            [](FakeSegment& f) { f.Store(0, 0, ring::PackWord0(40, ring::kRecordMark, ring::kFlagDevice, 1)); }},
        HostileCase{"UndecidedSource",
                    [](FakeSegment& f) {
                      f.slot(0).head = 56;
                      f.Store(0, 0,
                              ring::PackWord0(56, ring::kRecordMark, ring::kFlagSource | ring::kFlagUndecided, 1));
                    }},
        HostileCase{"IdZero", [](FakeSegment& f) { f.Store(0, 16, 0); }}),
    [](const auto& info) { return info.param.name; });

TEST(RingSegment, ATruncatedSegmentIsAFaultNotACrash) {
  FakeSegment fake;
  int a = fake.AddRing();
  fake.Append(a, {.ticks = 1, .name = "x"});
  auto segment = OpenSegment(fake);
  segment->Pending();
  ASSERT_EQ(ftruncate(fake.Fd().get(), 0), 0);
  EXPECT_THAT(Drain(*segment), IsEmpty());
  segment->SetGate(0);
  EXPECT_TRUE(segment->faulted());
  EXPECT_THAT(segment->fault(), HasSubstr("truncated"));
}

// As libtaskd.so's thread for MSPTI waits, in its own process and mapping.
TEST(RingSegment, AChangedGateWakesWhoWaitsForIt) {
  FakeSegment fake;
  auto segment = OpenSegment(fake);
  const uint32_t old_gate = fake.header().gate;
  pid_t child = fork();
  if (child == 0) {
    const std::atomic<uint32_t>& gate = fake.header().gate;
    while (gate == old_gate) syscall(SYS_futex, &gate, FUTEX_WAIT, old_gate, nullptr, nullptr, 0);
    _exit(gate == ring::kGateStep ? 0 : 1);
  }
  auto sleeps = [&] {
    char text[256] = {};
    UniqueFd stat(open(("/proc/" + std::to_string(child) + "/stat").c_str(), O_RDONLY | O_CLOEXEC));
    return read(stat.get(), text, sizeof(text) - 1) > 0 && std::string(text).find(") S ") != std::string::npos;
  };
  EXPECT_TRUE(taskd::testing::WaitUntil(sleeps));
  segment->SetGate(ring::kGateStep);
  int status = -1;
  EXPECT_TRUE(taskd::testing::WaitUntil([&] { return waitpid(child, &status, WNOHANG) == child || status != -1; }));
  if (status == -1) {
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
  }
  EXPECT_EQ(status, 0);
}

TEST(RingSegment, KnowsWhetherAProcessHoldsTheWritersLock) {
  FakeSegment fake;
  auto segment = OpenSegment(fake);
  EXPECT_FALSE(segment->WriterLives());
  int ready[2];
  int go[2];
  ASSERT_EQ(pipe(ready), 0);
  ASSERT_EQ(pipe(go), 0);
  pid_t child = fork();
  if (child == 0) {
    struct flock lock = {};
    lock.l_type = F_WRLCK;
    char byte = fcntl(segment->fd(), F_SETLK, &lock) == 0 ? '+' : '-';
    (void)!write(ready[1], &byte, 1);
    (void)!read(go[0], &byte, 1);
    _exit(0);
  }
  char byte = 0;
  ASSERT_EQ(read(ready[0], &byte, 1), 1);
  EXPECT_EQ(byte, '+');
  EXPECT_TRUE(segment->WriterLives());
  ASSERT_EQ(write(go[1], "x", 1), 1);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_FALSE(segment->WriterLives());
  for (int fd : {ready[0], ready[1], go[0], go[1]}) close(fd);
}

}  // namespace
}  // namespace taskd::proxy
